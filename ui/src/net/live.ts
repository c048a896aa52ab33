// The live stream and what it keeps current: jobs, GPUs, counts, nodes, sweeps.

import { batch, computed, signal } from "@preact/signals";
import type { GpuList, GpuView, History, JobList, JobView, NodeList, NodeView, SweepList, SweepView, UsageSummary } from "../api";
import { safe } from "../core/format";
import { GpuHistory, gpuHours, type GpuFrame, type GpuSample, type HistoryReply } from "../core/gpus";
import { frameParser } from "../core/sse";
import { groupOf } from "../core/states";
import { JobTable, type ColumnsReply, type JobsFrame, type Row } from "../core/table";
import { range } from "../prefs";
import { ApiError, get, open, withQuery } from "./api";

export type LinkState = "connecting" | "live" | "lost" | "signed-out";

interface Hello {
  version: string;
  boot: string;
  seq: number;
  now: number;
  user: string;
  rights: string[];
  read_only: boolean;
}

export interface Alarm {
  kind: string;
  job: number | null;
  node: string | null;
  gpu: string | null;
  since: string | number | null;
  text: string;
  action: string | null;
}

const TOPICS = "gpus,counts,jobs,sweeps,nodes,alarms";
const SILENCE_SECONDS = 20;
/** A hidden page keeps its stream for this time; then it asks for the counts only. */
const HIDDEN_SECONDS = 60;
/** A difference of the clocks of daemon and browser from which one of them has jumped. */
const JUMP_SECONDS = 10;
/** With more GPUs only every second frame is shown, so that an open page stays cheap. */
const FEW_GPUS = 128;
const RETRY_SECONDS = [0.5, 1, 2, 3, 5];

export const link = signal<{ state: LinkState; since: number }>({ state: "connecting", since: 0 });
export const hello = signal<Hello | null>(null);
export const counts = signal<Record<string, number>>({});
/** Facts about GPUs that do not change often. */
export const gpus = signal<GpuView[] | null>(null);
export const gpuNote = signal<string | null>(null);
/** The last sample of each GPU by its key `node/id`. */
export const samples = signal<ReadonlyMap<string, GpuSample>>(new Map());
/** Counts frames, for what is drawn on a canvas. */
export const tick = signal(0);
export const nodes = signal<NodeView[] | null>(null);
export const sweeps = signal<SweepView[]>([]);
export const table = new JobTable();
/** Changes when the table does. */
export const version = signal(0);
export const loaded = signal(false);
export const history = signal<GpuHistory | null>(null);
/** GPU-hours of today: held, of them idle, and of attempts that failed before their work counted. */
export const hours = signal<{ held: number; idle: number; lost: number } | null>(null);
export const alarms = signal<Alarm[]>([]);
/** The clock of the daemon, in steps of a second. */
export const now = signal(Date.now() / 1000);
/** The same in steps of a minute, for times of day. */
export const minute = computed(() => Math.floor(now.value / 60) * 60);
/** Announced by the live region: new failures and alarms. */
export const announcement = signal("");
/** Pending jobs whose dependency can never be met: the first ones, and how many more. */
export const stuck = signal<{ jobs: JobView[]; more: number }>({ jobs: [], more: 0 });
/** The last jobs that ended, newest first. */
export const ended = signal<JobView[] | null>(null);

export const mayAct = computed(() => !!hello.value && !hello.value.read_only && hello.value.rights.includes("act"));
export const isStale = computed(() => link.value.state === "lost");
export const isLive = computed(() => link.value.state === "live");

let frames = 0;
let clockOffset = 0;
/** By the clock that does not jump. */
let lastByte = 0;
let boot = "";
let waiting: JobsFrame[] | null = null;
let reloadAt = 0;
let loadSeconds = 0;
let scheduled: Record<string, number> = {};

/** Run a function once, after a delay, however often it is asked for meanwhile. */
function once(name: string, seconds: number, run: () => void): void {
  if (scheduled[name]) return;
  scheduled[name] = window.setTimeout(() => {
    delete scheduled[name];
    run();
  }, seconds * 1000);
}

function changed(): void {
  once("version", table.live > 5000 ? 0.5 : 0.08, () => version.value++);
}

/** Load in the background, and again after a failure: networks change, daemons restart. */
function keepTrying(load: () => Promise<unknown>): void {
  load().catch((error: unknown) => {
    if (error instanceof ApiError && error.status === 401) signedOut();
    else once(`again ${load.name}`, 3, () => keepTrying(load));
  });
}

export function signedOut(): void {
  if (link.peek().state === "signed-out") return;
  link.value = { state: "signed-out", since: Date.now() / 1000 };
  current?.abort();
}

export async function loadJobs(): Promise<void> {
  if (waiting) return;
  waiting = [];
  const start = performance.now();
  try {
    const reply = await get<ColumnsReply>("jobs/columns?limit=200000");
    table.load(reply);
    for (const frame of waiting) if (table.apply(frame) === "reload") reloadSoon();
    loadSeconds = (performance.now() - start) / 1000;
    batch(() => {
      loaded.value = true;
      version.value++;
    });
  } finally {
    waiting = null;
    reloadAt = performance.now();
  }
}

/** Load the columns again, but spend at most a twentieth of the time with it. */
function reloadSoon(): void {
  const pause = Math.min(30, Math.max(0.3, 20 * loadSeconds));
  once("reload", Math.max(0.05, pause - (performance.now() - reloadAt) / 1000), () => keepTrying(loadJobs));
}

async function loadGpus(): Promise<void> {
  const reply = await get<GpuList>("gpus");
  batch(() => {
    gpus.value = reply.gpus;
    gpuNote.value = reply.note;
    if (samples.peek().size === 0) samples.value = new Map(reply.gpus.map((gpu) => [`${gpu.node}/${gpu.id}`, sampleOf(gpu)]));
  });
}

function sampleOf(gpu: GpuView): GpuSample {
  const jobs = gpu.jobs.map((job): GpuSample[6][number] => [job.id, job.share, job.memory]);
  return [`${gpu.node}/${gpu.id}`, gpu.utilization, gpu.memory_used, gpu.temperature, gpu.power, gpu.state, jobs];
}

async function loadNodes(): Promise<void> {
  nodes.value = (await get<NodeList>("nodes")).nodes;
}

async function loadSweeps(): Promise<void> {
  sweeps.value = (await get<SweepList>("sweeps")).sweeps;
}

export async function loadHistory(): Promise<void> {
  const { minutes, step } = range.value;
  const length = Math.round((minutes * 60) / step);
  // Until the daemon has answered, the live frames are shown.
  if (history.peek()?.step !== step) history.value = new GpuHistory(step, length);
  const made = new GpuHistory(step, length);
  const reply = await get<HistoryReply>(`gpus/history?minutes=${minutes}&step=${step}`);
  made.load(reply, now.peek(), history.peek());
  // The period may have been changed meanwhile.
  if (range.peek().step === step) history.value = made;
}

async function loadEnded(): Promise<void> {
  ended.value = (await get<History>("history?limit=6")).jobs.reverse();
}

async function loadStuck(): Promise<void> {
  const { jobs, more } = await get<JobList>("jobs?never=1&limit=3");
  stuck.value = { jobs, more };
}

async function loadHours(): Promise<void> {
  const midnight = new Date(now.peek() * 1000).setHours(0, 0, 0, 0) / 1000;
  const minutes = Math.ceil((now.peek() - midnight) / 60);
  const reply = await get<HistoryReply>(`gpus/history?minutes=${Math.max(10, minutes)}&step=${minutes > 360 ? 600 : 30}`);
  const usage = await get<UsageSummary>(withQuery("usage", { since: new Date(midnight * 1000).toISOString() }));
  hours.value = { ...gpuHours(reply), lost: usage.total.wasted_gpu_hours ?? 0 };
}

async function loadAlarms(): Promise<void> {
  const before = new Set(alarms.peek().map(alarmKey));
  alarms.value = (await get<{ alarms: Alarm[] }>("alarms")).alarms;
  const added = alarms.peek().filter((alarm) => !before.has(alarmKey(alarm)));
  if (added.length) say(added.length > 1 ? `${added.length} new alarms` : `alarm: ${added[0]!.text}`);
}

export const alarmKey = ({ kind, job, node, gpu }: Alarm): string => [kind, job, node, gpu].join();

function loadAll(): void {
  for (const load of [loadJobs, loadGpus, loadHistory, loadEnded, loadNodes, loadSweeps, loadStuck]) keepTrying(load);
  once("hours", 1.5, () => keepTrying(loadHours));
  once("alarms", 0.5, () => keepTrying(loadAlarms));
}

function onFrame(event: string, data: string): void {
  const value: unknown = JSON.parse(data);
  if (event === "hello") onHello(value as Hello);
  else if (event === "gpus") onGpus(value as GpuFrame);
  else if (event === "counts") counts.value = (value as { counts: Record<string, number> }).counts;
  else if (event === "jobs") onJobs(value as JobsFrame);
  else if (event === "nodes") once("nodes", 0.5, () => [loadNodes, loadGpus].forEach((load) => keepTrying(load)));
  else if (event === "alarms") once("alarms", 0.5, () => keepTrying(loadAlarms));
  else if (event === "sweeps") once("sweeps", 0.5, () => keepTrying(loadSweeps));
}

function onHello(value: Hello): void {
  setClock(value.now);
  hello.value = value;
  link.value = { state: "live", since: Date.now() / 1000 };
  if (value.boot !== boot) {
    boot = value.boot;
    loadAll();
  } else keepTrying(loadHistory);
}

/** Use the daemon's clock; only differences are taken from the one of the browser. */
function setClock(at: number): void {
  clockOffset = at - Date.now() / 1000;
  now.value = at;
}

function onGpus(frame: GpuFrame): void {
  if (Math.abs(frame.t - Date.now() / 1000 - clockOffset) > JUMP_SECONDS) {
    setClock(frame.t);
    keepTrying(loadHistory);
  }
  history.peek()?.add(frame);
  frames++;
  if (frame.g.length > FEW_GPUS && frames % 2 === 0) return;
  batch(() => {
    const before = samples.peek();
    // A sample that did not change keeps its identity, so that its strip is not drawn again.
    samples.value = new Map(frame.g.map((sample) => {
      const old = before.get(sample[0]);
      return [sample[0], old && String(old) === String(sample) ? old : sample];
    }));
    tick.value++;
  });
  if (gpus.peek() && frame.g.length !== gpus.peek()!.length) once("gpus", 1, () => keepTrying(loadGpus));
}

function onJobs(frame: JobsFrame): void {
  const failures = (frame.changed ?? []).filter((row) => {
    const before = table.byId(row.id);
    return groupOf(row.state) === "failed" && before && groupOf(before.state) !== "failed";
  });
  if (failures.length) announce(failures);
  if (frame.gone?.length || failures.length) once("ended", 1, () => keepTrying(loadEnded));
  once("stuck", 2, () => keepTrying(loadStuck));
  waiting?.push(frame);
  const what = table.apply(frame);
  if (what === "reload") reloadSoon();
  if (what !== "older") changed();
}

function announce(rows: Row[]): void {
  const first = rows[0]!;
  say(rows.length > 1 ? `${rows.length} jobs failed` : `job ${first.label} failed: ${first.cause ?? first.state}`);
}

function say(text: string): void {
  once("announce", 0.5, () => {
    announcement.value = safe(text, 200);
    once("quiet", 10, () => (announcement.value = ""));
  });
}

async function readStream(signal: AbortSignal): Promise<void> {
  const since = table.seq >= 0 ? table.seq : undefined;
  const body = await open(withQuery("live", { topics: TOPICS, since }), signal);
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parse = frameParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    lastByte = performance.now();
    for (const frame of parse(decoder.decode(value, { stream: true }))) onFrame(frame.event, frame.data);
  }
}

function lost(): void {
  if (link.peek().state === "live") link.value = { state: "lost", since: Math.max((Date.now() - performance.now() + lastByte) / 1000, link.peek().since) };
  else if (link.peek().state === "connecting") link.value = { state: "lost", since: Date.now() / 1000 };
}

const sleep = (seconds: number, signal?: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(done, seconds * 1000);
    signal?.addEventListener("abort", () => (clearTimeout(timer), done()));
  });

let current: AbortController | null = null;
let pause: AbortController | null = null;

/** Keep the stream open for the life of the page. */
export async function connect(): Promise<void> {
  window.setInterval(() => {
    now.value = Date.now() / 1000 + clockOffset;
    if (current && lastByte && performance.now() - lastByte > SILENCE_SECONDS * 1000) current.abort();
  }, 1000);
  window.setInterval(() => link.peek().state === "live" && keepTrying(loadHours), 300_000);
  let hiddenTimer = 0;
  document.addEventListener("visibilitychange", () => {
    window.clearTimeout(hiddenTimer);
    // A browser opens only six connections to one server, whatever the number of its tabs.
    if (document.hidden) hiddenTimer = window.setTimeout(() => current?.abort(), HIDDEN_SECONDS * 1000);
    else pause?.abort();
  });
  for (let failures = 0; ; ) {
    current = new AbortController();
    lastByte = performance.now();
    const opened = lastByte;
    try {
      await readStream(current.signal);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) signedOut();
    }
    current = null;
    failures = performance.now() - opened > 5000 ? 0 : failures + 1;
    if (link.peek().state === "signed-out") await signedIn();
    else if (document.hidden) await pollCounts();
    else {
      lost();
      pause = new AbortController();
      await sleep(RETRY_SECONDS[Math.min(failures, RETRY_SECONDS.length - 1)]! * (0.8 + 0.4 * Math.random()), pause.signal);
    }
  }
}

/** While the page is hidden: the counts for its title, every 30 s. */
async function pollCounts(): Promise<void> {
  while (document.hidden) {
    try {
      counts.value = (await get<ColumnsReply>("jobs/columns?limit=0")).counts;
    } catch {
      lost();
    }
    pause = new AbortController();
    await sleep(30, pause.signal);
  }
}

/** Wait until another tab has opened a session, or this page is loaded again. */
async function signedIn(): Promise<void> {
  for (;;) {
    await sleep(5);
    try {
      await get("daemon");
      link.value = { state: "connecting", since: Date.now() / 1000 };
      return;
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) continue;
    }
  }
}

range.subscribe(() => {
  if (link.peek().state === "live") keepTrying(loadHistory);
});
