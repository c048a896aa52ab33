// What a user does to jobs and nodes: confirm, send, show what happened, undo.

import { signal } from "@preact/signals";
import type { ActionReply, DrainReply } from "./api";
import { exact, plural, quoted, ranges } from "./core/format";
import { groupOf } from "./core/states";
import { ApiError, post } from "./net/api";
import { mayAct, table } from "./net/live";

export type Verb = "cancel" | "hold" | "release" | "retry" | "pause" | "resume" | "dismiss";

const DONE: Record<Verb, string> = {
  cancel: "cancelled", hold: "held", release: "released", retry: "requeued", pause: "paused", resume: "resumed", dismiss: "marked as seen",
};
const UNDO: Partial<Record<Verb, Verb>> = { hold: "release", release: "hold", pause: "resume", resume: "pause" };

/** What may be done to a job in a state. */
export const APPLIES: Record<Verb, (state: string, held: boolean) => boolean> = {
  cancel: (state) => ["running", "pending"].includes(groupOf(state)),
  hold: (state, held) => state === "PENDING" && !held,
  release: (state, held) => state === "PENDING" && held,
  retry: (state) => ["failed", "done"].includes(groupOf(state)),
  pause: (state) => state === "RUNNING",
  resume: (state) => state === "SUSPENDED",
  dismiss: (state) => groupOf(state) === "failed",
};
export const VERBS = Object.keys(APPLIES) as Verb[];

export const titleOf = (verb: Verb): string => (verb === "dismiss" ? "Mark as seen" : verb[0]!.toUpperCase() + verb.slice(1));

/** The actions of the open menu, with the jobs that each applies to. */
export const menu = signal<[Verb, readonly number[]][] | null>(null);

export function openMenu(items: [Verb, readonly number[]][]): void {
  if (mayAct.peek()) menu.value = items.filter(([, ids]) => ids.length);
}

/** What users call a job. */
function labelOf(id: number): string {
  const at = table.indexOf(id);
  return at === undefined ? exact(id) : table.label(at);
}

export interface Question {
  title: string;
  command: string;
  label: string;
  run: () => Promise<void>;
}

export interface Notice {
  id: number;
  text: string;
  detail?: string;
  isError?: boolean;
  undo?: () => void;
}

export const question = signal<Question | null>(null);
export const notices = signal<Notice[]>([]);
let nextNotice = 1;

export function notify(notice: Omit<Notice, "id">): void {
  const id = nextNotice++;
  notices.value = [...notices.value.slice(-3), { ...notice, id }];
  window.setTimeout(() => dismissNotice(id), notice.isError ? 20_000 : 10_000);
}

export function dismissNotice(id: number): void {
  notices.value = notices.value.filter((notice) => notice.id !== id);
}

/** Do something to jobs; ask first if it ends them or concerns several. */
export function act(verb: Verb, ids: readonly number[]): void {
  if (!mayAct.peek() || ids.length === 0) return;
  const selector = ranges(ids);
  const command = `stoker ${verb} ${ranges(ids, labelOf)}`;
  const run = () => send(verb, ids, selector);
  if (verb !== "cancel" && ids.length === 1) void run();
  else if (verb === "dismiss") void run();
  else {
    const name = verb[0]!.toUpperCase() + verb.slice(1);
    question.value = { title: `${name} ${plural(ids.length, "job")}?`, command, label: `${name} ${plural(ids.length, "job")}`, run };
  }
}

async function send(verb: Verb, ids: readonly number[], selector: string): Promise<void> {
  await tried(async () => {
    const path = verb === "dismiss" ? "jobs/dismiss" : verb;
    const busy = window.setTimeout(() => notify({ text: `${verb} ${selector.length > 40 ? plural(ids.length, "job") : selector} …` }), 500);
    const reply = await post<ActionReply>(path, { select: [selector] }).finally(() => window.clearTimeout(busy));
    const skipped = reply.skipped.map((job) => `${job.label}: ${job.why}`);
    const inverse = UNDO[verb];
    notify({
      text: reply.done.length ? `${reply.done.length === 1 ? `job ${reply.done[0]!.label}` : plural(reply.done.length, "job")} ${DONE[verb]}` : `nothing ${DONE[verb]}`,
      detail: skipped.length ? `${skipped.length} skipped: ${skipped.slice(0, 3).join("; ")}` : "",
      isError: reply.done.length === 0 && ids.length > 0,
      ...(inverse && reply.done.length ? { undo: () => void send(inverse, reply.done.map((job) => job.id), ranges(reply.done.map((job) => job.id))) } : {}),
    });
  });
}

/** Do something to an array or a sweep, with its future trials. */
export function actOn(verb: Verb, selector: string, jobs: number): void {
  if (!mayAct.peek()) return;
  const name = verb[0]!.toUpperCase() + verb.slice(1);
  question.value = { title: `${name} ${selector} with ${plural(jobs, "job")}?`, command: `stoker ${verb} ${selector}`, label: `${name} ${selector}`, run: () => send(verb, [0], selector) };
}

/** Change the limits of a sweep. */
export async function changeSweep(id: number, change: { max_running?: number; priority?: number }): Promise<void> {
  await tried(async () => {
    await post(`sweeps/${id}`, change);
    notify({ text: `sweep ${id} changed` });
  });
}

/** Move a pending job in the queue. */
export async function move(id: number, where: "before" | "after" | "first" | "last", other: number | null): Promise<void> {
  if (!mayAct.peek()) return;
  await tried(async () => {
    const reply = await post<ActionReply>("move", { select: [exact(id)], where, other: other === null ? null : exact(other) });
    const skipped = reply.skipped[0];
    if (skipped) notify({ text: `job ${skipped.label} was not moved`, detail: skipped.why ?? "", isError: true });
  });
}

/** Change one option of jobs, such as their priority or time limit. */
export async function edit(ids: readonly number[], options: Record<string, string>): Promise<void> {
  await tried(async () => {
    const reply = await post<ActionReply>("edit", { select: [ranges(ids)], options });
    const skipped = reply.skipped.map((job) => `${job.label}: ${job.why}`).slice(0, 3).join("; ");
    notify({ text: `${plural(reply.done.length, "job")} changed`, detail: skipped, isError: reply.done.length === 0 });
  });
}

/** Start no more jobs on a node or GPU, or use it again. */
export function drain(device: string, isDrained: boolean): void {
  if (!mayAct.peek()) return;
  const verb = isDrained ? "undrain" : "drain";
  const run = () =>
    tried(async () => {
      const body = { devices: [device], ...(isDrained ? {} : { reason: "from the dashboard" }) };
      const reply = await post<DrainReply>(verb, body);
      const left = reply.running.length ? `${plural(reply.running.length, "job")} still running there` : "";
      notify({ text: `${device} ${isDrained ? "is used again" : "is drained"}`, detail: left, undo: () => drain(device, !isDrained) });
    });
  if (isDrained) void run();
  else question.value = { title: `Drain ${device}?`, command: `stoker drain ${quoted(device)}`, label: `Drain ${device}`, run };
}

async function tried(run: () => Promise<void>): Promise<void> {
  try {
    await run();
  } catch (error) {
    const text = error instanceof ApiError ? error.message : String(error);
    notify({ text: text || "The request failed.", isError: true });
  }
}
