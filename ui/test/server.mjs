// A daemon of generated data, to look at pages with many GPUs, many jobs, or none. Not shipped.
//
//   node test/server.mjs [--port 8701] [--gpus 8] [--machines 1] [--jobs 60] [--failed 4] [--stop SECONDS]
//
// It serves what docs/api.md describes, as far as the pages read it. POST changes nothing.

import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";

const { values } = parseArgs({
  options: Object.fromEntries(["port", "gpus", "machines", "jobs", "failed", "stop"].map((name) => [name, { type: "string" }])),
});
const number = (name, initial) => Number(values[name] ?? initial);
const DIST = join(dirname(fileURLToPath(import.meta.url)), "../../src/stoker/ui/dist");
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css", svg: "image/svg+xml", json: "application/json" };

let seed = 42;
const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
const pick = (list) => list[Math.floor(random() * list.length)];
const clock = () => Date.now() / 1000;
const iso = (at) => (at == null ? null : new Date(at * 1000).toISOString());

const USERS = ["ana", "ben", "chiara", "dmitri", "emma"];
const NAMES = ["resnet50-lr0.1", "vit-b16-cosine", "llama-lora-r8", "unet-ct-seg", "gpt2-medium", "bert-squad", "diffusion-64", "whisper-ft", "yolo-v9-coco", "dqn-atari"];
const FIELDS = ["id", "array", "first", "labels", "name", "user", "queue", "state", "node", "cause", "gpus", "devices", "priority", "held", "submitted", "started", "ended", "begin", "limit", "expected", "sweep", "epochs", "total_epochs", "attempt"];
const CODED = ["name", "user", "queue", "labels", "state", "node", "cause"];

const start = clock();
const gpuCount = number("gpus", 8);
const machines = number("machines", Math.max(1, Math.ceil(gpuCount / 8)));
const rows = [];
const gpus = [];
let nextId = 4210;

function job(fields) {
  const id = nextId++;
  const row = { id, label: String(id), array: null, first: null, labels: pick([null, null, "thesis", "baseline"]), name: pick(NAMES), user: pick(USERS), queue: "default", state: "PENDING", node: null, cause: null, gpus: 1, devices: null, priority: 0, held: false, submitted: start - random() * 90000, started: null, ended: null, begin: null, limit: null, expected: null, sweep: null, epochs: null, total_epochs: null, attempt: 0, ...fields };
  rows.push(row);
  return row;
}

for (let m = 0; m < machines && gpuCount; m++) {
  const node = machines === 1 ? "box" : `gpu${String(m + 1).padStart(2, "0")}`;
  const own = Math.min(8, gpuCount - 8 * m);
  for (let i = 0; i < own; ) {
    const wide = random() < 0.25 && i + 2 <= own ? 2 : 1;
    const kind = random();
    const state = kind < 0.05 ? "foreign" : kind < 0.08 ? "free" : kind < 0.1 ? "drained" : "busy";
    const started = start - 300 - random() * 30000;
    const row = state === "busy" ? job({ state: "RUNNING", node, gpus: wide, devices: Array.from({ length: wide }, (_, k) => String(i + k)), started, limit: random() < 0.3 ? 86400 : null, expected: random() < 0.7 ? start + 600 + random() * 20000 : null, epochs: random() < 0.7 ? Math.floor(random() * 60) : null }) : null;
    if (row && row.epochs !== null) row.total_epochs = 90;
    for (let k = 0; k < wide; k++) gpus.push({ node, id: String(i + k), state, row, base: row ? (random() < 0.1 ? 0 : 55 + random() * 44) : 0, memory: row ? 20000 + random() * 50000 : state === "foreign" ? 31000 : 3, phase: random() * 9 });
    i += wide;
  }
}
const waiting = number("jobs", 40);
let array = 0;
for (let i = 0; i < waiting; i++) {
  if (array === 0 && random() < 0.05) array = -nextId;
  if (array < 0) {
    const owner = -array;
    job({ label: `${owner}_${nextId - owner}`, array: owner, first: 0, name: "sweep-lr", user: "ben", gpus: 1, epochs: null, sweep: owner % 2 ? owner : null });
    if (random() < 0.03) array = 0;
  } else job({ gpus: pick([1, 1, 1, 2, 4, null]), held: random() < 0.03, expected: random() < 0.6 ? start + random() * 50000 : null, priority: pick([0, 0, 0, 5]) });
}
for (let i = 0; i < number("failed", 3); i++) job({ state: i % 3 === 2 ? "TIMEOUT" : i % 3 ? "FAILED" : "OUT_OF_MEMORY", cause: ["CUDA out of memory", "exit 1", "time limit"][i % 3], started: start - 9000, ended: start - 60 - random() * 8000, node: "box", attempt: i % 2 });
for (const row of rows) for (const name of ["submitted", "started", "ended", "expected"]) if (row[name]) row[name] = Math.round(row[name]);

const idle = gpus.find((gpu) => gpu.row);
if (idle) idle.base = 0;
const use = (gpu, at) => (gpu.row ? (gpu.base < 2 ? 0 : Math.max(0, Math.min(100, gpu.base + 18 * Math.sin(at / 47 + gpu.phase) * Math.sin(at / 613) - (Math.floor(at / 600 + gpu.phase) % 5 === 0 && at % 600 < 70 ? 55 : 0) + 6 * Math.sin(at * 1.7)))) : gpu.state === "foreign" ? 64 + 20 * Math.sin(at / 91) : 0);
const sample = (gpu) => [`${gpu.node}/${gpu.id}`, Math.round(use(gpu, clock())), Math.round(gpu.memory), Math.round(38 + use(gpu, clock()) * 0.35), Math.round(60 + use(gpu, clock()) * 2.6), gpu.state, gpu.row ? [[gpu.row.id, "1", Math.round(gpu.memory)]] : []];

function columns(query) {
  const limit = Number(query.get("limit") ?? 200000);
  const text = query.get("text");
  const shown = (text ? rows.filter((row) => `${row.label} ${row.name} ${row.user} python train.py`.includes(text)) : rows).slice(0, limit);
  const dictionary = {};
  const result = {};
  for (const field of FIELDS) {
    if (CODED.includes(field)) {
      const codes = new Map();
      result[field] = shown.map((row) => {
        if (row[field] === null) return null;
        if (!codes.has(row[field])) codes.set(row[field], codes.size);
        return codes.get(row[field]);
      });
      dictionary[field] = [...codes.keys()];
    } else result[field] = shown.map((row) => row[field]);
  }
  return { seq: 1, boot: "dev", now: clock(), total: rows.length, offset: 0, counts: counts(), columns: result, dictionary };
}

function counts() {
  const totals = {};
  for (const row of rows) totals[row.state] = (totals[row.state] ?? 0) + 1;
  return totals;
}

function view(row) {
  const foreseen = row.state === "PENDING" || row.expected ? { at: iso(clock()), start: row.state === "PENDING" && row.expected ? { low: iso(row.expected - 600), likely: iso(row.expected), high: iso(row.expected + 2400), kind: "runs", basis: "earlier runs of the jobs ahead" } : null, end: row.state === "RUNNING" && row.expected ? { low: iso(row.expected - 300), likely: iso(row.expected), high: iso(row.expected + 900), kind: "epochs", basis: "37 epochs of this job" } : null, never: null } : undefined;
  return {
    id: row.id, label: row.label, name: row.name, user: row.user, state: row.state, reason: row.state === "PENDING" ? "Resources" : null,
    reason_text: row.state === "PENDING" ? (row.held ? "held by ana" : `waits for ${row.gpus ?? 0} GPU${row.gpus === 1 ? "" : "s"}: none of box is free; job ${rows[0].id} ends in about 24 min`) : null,
    queue: row.queue, labels: [], comment: null, priority: row.priority, command: `python train.py --model ${row.name} --lr 0.1 --epochs 90`, directory: "/home/ana/experiments",
    request: { gpus: row.gpus === null ? null : String(row.gpus), most_gpus: null, model: null, min_vram: null, gpu_memory: null, cpus: "8", memory: 32768, resources: {}, exclusive: false, machines: null, nodelist: [], not_nodes: [] },
    array: null, sweep: row.sweep, params: null, depends: null, node: row.node, nodes: row.node ? [row.node] : [], unreachable: false, devices: row.devices ? { gpu: row.devices } : {}, parts: [], attempt: row.attempt, pid: 4242,
    submitted_at: iso(row.submitted), started_at: iso(row.started), ended_at: iso(row.ended), begin_at: null, expected_start: row.state === "PENDING" ? iso(row.expected) : null, expected_end: null,
    time_limit: row.limit, time_left: row.limit ? row.limit - (clock() - row.started) : null, exit_code: row.ended ? 1 : null, signal: null, cause: row.cause, termination_note: null, dismissed: false,
    attempts: row.attempt ? [{ attempt: 0, started_at: iso(row.submitted + 10), ended_at: iso(row.submitted + 500), cause: "preempted for job 17", exit_code: 0 }] : [],
    training: row.total_epochs ? { epochs_done: row.epochs, epochs: 90, epoch_seconds: 214, remaining_seconds: 6200, memory_peak: 31000, memory_reserved: 34000, shortages: 0, preemptions: 1, stopping: null, elastic: null, metrics: { loss: 0.3121, accuracy: 0.887 } } : null,
    log: `/home/ana/.local/state/stoker/logs/${row.label}.out`, error_log: null, log_bytes: 120000, container: null,
    tail: row.ended ? { OUT_OF_MEMORY: ["  File \"train.py\", line 214, in step", "    loss.backward()", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"], TIMEOUT: ["epoch 41 step 3180 loss 0.2210"] }[row.state] ?? ["FileNotFoundError: [Errno 2] No such file or directory: 'data/val.csv'"] : undefined, foreseen,
  };
}

function history(query) {
  const [minutes, step] = [Number(query.get("minutes")), Number(query.get("step"))];
  const t = clock() - minutes * 60;
  const n = Math.floor((minutes * 60) / step);
  const series = (gpu) => {
    const times = Array.from({ length: n }, (_, i) => t + i * step);
    const held = times.map((at) => (gpu.row ? (at >= gpu.row.started ? gpu.row.id : at < gpu.row.started - 400 ? 7 : null) : null));
    return { utilization: times.map((at, i) => (gpu.row && held[i] === null ? 0 : Math.round(use(gpu, at)))), memory: times.map((_, i) => (held[i] === null && gpu.row ? 3 : Math.round(gpu.memory))), jobs: held };
  };
  return { t, step, gpus: Object.fromEntries(gpus.map((gpu) => [`${gpu.node}/${gpu.id}`, series(gpu)])) };
}

const gpuView = (gpu) => ({ node: gpu.node, id: gpu.id, uuid: `GPU-${gpu.node}-${gpu.id}`, model: "NVIDIA A100-SXM4-80GB", memory: 81920, memory_used: gpu.memory, utilization: use(gpu, clock()), temperature: 50, power: 200, state: gpu.state, drained: gpu.state === "drained" ? "fan replaced on Friday" : null, jobs: gpu.row ? [{ id: gpu.row.id, label: gpu.row.label, name: gpu.row.name, user: gpu.row.user, share: "1", memory: null }] : [], foreign: gpu.state === "foreign" ? [{ pid: 991, user: "frank", command: "python notebook.py", memory: 31000 }] : [], foreign_process: gpu.state === "foreign" ? "frank: python notebook.py" : null });

function nodeViews() {
  const names = gpuCount ? [...new Set(gpus.map((gpu) => gpu.node))] : ["box"];
  return names.map((name, at) => {
    const own = gpus.filter((gpu) => gpu.node === name);
    const held = own.filter((gpu) => gpu.row).length;
    const down = at === 3;
    return { name, kind: at ? "ssh" : "local", cluster: null, pilots: null, shape: null, allocation: null, state: down ? "unreachable" : "up", since: iso(start - 86400), why: down ? "no answer for 3 min: connection timed out; its jobs are kept" : null, notes: [], address: at ? `ssh://me@${name}` : null, resources: { gpu: { total: String(own.length), held: String(held), free: String(own.filter((gpu) => gpu.state === "free").length), devices: [] }, cpu: { total: "64", held: "40", free: "20", devices: [] }, mem: { total: "515072", held: "262144", free: "240000", devices: [] } }, jobs: held, measured: at ? { cores: 64, load: 38.2, memory: 515072, memory_available: 240000, disk_free: 812000, tools: [], gpus: [] } : null };
  });
}

const day = (back) => new Date(Date.now() - back * 86_400_000).toLocaleDateString("en-CA");
const GROUPS = { user: USERS, queue: ["default", "night", "interactive"], label: ["-", "thesis", "baseline", "paper-2"], sweep: ["-", "4101", "4187"], model: ["A100-SXM4-80GB", "H100"], group: ["vision", "nlp"], gpus: ["1", "2", "4", "0"], cause: ["done", "CUDA out of memory", "exit 1", "time limit", "stopped", "cancelled", "killed by SIGKILL"] };

function usage(query) {
  const by = query.get("by") ?? "user";
  const length = Math.max(1, Math.round((Date.now() - Date.parse(query.get("since"))) / 86_400_000));
  const weight = (key, at) => 1 + ((key.length * 37 + at * 13) % 7);
  const group = (key, at) => {
    const held = by === "cause" && key !== "done" ? weight(key, at) * 2.1 : weight(key, at) * length * 3.3;
    const good = ["done", "stopped", "cancelled"].includes(key);
    return { key, jobs: Math.round(held * 1.7), failed: by === "cause" ? (good ? 0 : Math.round(held * 1.7)) : at % 3, gpu_hours: held, wasted_gpu_hours: by === "cause" ? (good ? 0 : held * 0.8) : at % 2 ? held * 0.14 : 0.02, measured_gpu_hours: held * 0.97, busy_gpu_hours: held * 0.8, utilization: 64 + at * 7, kwh: held * 0.31, cpu_hours: held * 5.2, rss_peak: 9000 + 700 * at, wait_p50: 40 + 900 * at, wait_p90: 600 + 4000 * at, cost: held * 1.2 };
  };
  const keys = GROUPS[by] ?? USERS;
  const groups = keys.map(group).sort((one, two) => two.gpu_hours - one.gpu_hours);
  const days = Object.fromEntries(Array.from({ length }, (_, back) => [day(back), Object.fromEntries(keys.flatMap((key, at) => ((back * 3 + at) % 5 ? [[key, weight(key, at) * (2 + Math.sin(back * 1.3 + at) * 1.9)]] : [])))]));
  const sum = (name) => groups.reduce((total, one) => total + one[name], 0);
  const total = { ...group("total", 2), ...Object.fromEntries(["jobs", "failed", "gpu_hours", "wasted_gpu_hours", "measured_gpu_hours", "busy_gpu_hours", "kwh", "cost"].map((name) => [name, sum(name)])) };
  return { by, since: query.get("since"), until: iso(clock()), groups, total, energy: "power × time", currency: "EUR", days };
}

function eta() {
  const span = (at, wide) => ({ low: iso(at - wide * 0.4), likely: iso(at), high: iso(at + wide), kind: "runs", basis: "earlier runs of this job" });
  const shown = rows.filter((row) => row.state === "RUNNING" || (row.state === "PENDING" && !row.held)).slice(0, 70);
  let end = start + 900;
  const jobs = shown.map((row, at) => {
    const isRunning = row.state === "RUNNING";
    const begins = isRunning ? null : (end += 240 + ((at * 97) % 900));
    const ends = isRunning ? (row.expected ?? start + 4000) : begins + 1800 + ((at * 991) % 9000);
    return { id: row.id, label: row.label, name: row.name, user: row.user, state: row.state, at: iso(start), start: isRunning ? null : span(begins, 600 + at * 60), end: at % 9 === 8 ? null : span(ends, 900 + at * 90), never: null };
  });
  return { jobs, more: 4, at: iso(start), age: 2, futures: 9, horizon: iso(start + 86400), newer: false, trouble: null };
}

const policy = (queue, name, more) => ({ queue, own: false, chosen: "auto", policy: name, since: null, about: "", why: "planner, because a job has reported epochs", parameters: {}, changed: {}, strict: false, waiting: 41, running: 8, ...more });
const run = (policyName, factor) => ({ policy: policyName, waiting: { mean: 3400 * factor }, jct: { mean: 9100 * factor, p90: 31000 * factor }, busy: 0.83 / factor, makespan: 90000 * factor });
const whatIf = (query) => ({ change: query.get("policy") ? `policy ${query.get("policy")}` : "4 more GPUs", days: 7, gpus: { before: 8, after: 12 }, past: { runs: [run("today", 1), run("4 more GPUs", 0.71)] }, today: rows.filter((row) => row.state === "PENDING").slice(0, 30).map((row, at) => ({ ...row, before: { starts_at: null, ends_at: iso(start + 5000 + 800 * at) }, after: { starts_at: null, ends_at: iso(start + 5000 + 800 * at - 290 * at + (at === 3 ? 2000 : 0)) } })), lost: [], notes: [], assumed: "Assumed: jobs are submitted at the recorded times and take the recorded time." });
const session = (id, more) => ({ id, rights: "act", note: "", share: false, logs: true, created: iso(start - 4000), expires: iso(start + 39000), used: iso(start - 20), ...more });
const idleRow = idle?.row;

const ANSWERS = {
  "jobs/columns": columns,
  gpus: () => ({ gpus: gpus.map(gpuView), machines: [], note: null }),
  "gpus/history": history,
  nodes: () => ({ nodes: nodeViews() }),
  history: () => ({ jobs: rows.filter((row) => row.state === "RUNNING").slice(0, 6).map((row, i) => ({ ...view(row), id: row.id - 200, label: String(row.id - 200), state: i === 2 ? "CANCELLED" : "COMPLETED", ended_at: iso(start - 4000 + 600 * i), started_at: iso(start - 9000 - 900 * i) })), more: 0 }),
  sweeps: () => ({ sweeps: [] }),
  usage,
  eta,
  policies: () => ({ queues: [policy("default", "planner"), policy("night", "backfill", { own: true, chosen: "backfill", why: null, about: "EASY backfill by arrival", waiting: 3, running: 0 }), policy("*", "auto", { why: null, about: "planner where jobs report epochs, else backfill" })], policies: ["auto", "backfill", "planner", "srsf", "fifo"].map((name) => ({ name, about: `${name} policy`, parameters: {} })) }),
  "what-if": whatIf,
  sessions: () => ({ sessions: [session("a1b2c3"), session("d4e5f6", { rights: "view", share: true, logs: false, note: "for the lab's screen", used: null })] }),
  alarms: () => ({ alarms: idleRow ? [{ kind: "gpu_idle", job: idleRow.id, node: idleRow.node, gpu: idleRow.devices[0], since: iso(start - 840), text: "GPU 0 has computed nothing for 14 min; 20 GB of its memory are in use", action: "tell" }, { kind: "hot", job: null, node: idleRow.node, gpu: "3", since: iso(start - 400), text: "92 °C, which slows it down; drain it", action: "tell" }] : [] }),
  jobs: (query) => ({ jobs: query.getAll("select").map((id) => id.split("-")[0]).map((id) => rows.find((row) => String(row.id) === id || row.label === id)).filter(Boolean).map(view), more: 0, counts: counts(), seq: 1 }),
};

function jobAnswer(path) {
  const [id, what] = path.replace(/-\d+/, "").split("/");
  const row = rows.find((one) => String(one.id) === id);
  if (what === "why") return { id: row.id, label: row.label, state: row.state, text: view(row).reason_text, position: 3, ahead: [], coming: [], standing: { policy: "planner", by: "remaining GPU-seconds", position: 3, of: rows.length }, before: [{ label: "17", why: "20 min on 1 GPU left, as measured" }], unblocks: ["job 17 ends in about 20 min"], room: [], nodes: [{ node: "box", fits_empty: true, constraints: [{ name: "gpus", needs: "2", free: "1", text: "2 GPUs requested, 1 free", details: ["GPU 0 is held by job 39"] }] }], foreseen: view(row).foreseen };
  if (what === "usage") return { id: row.id, label: row.label, attempts: [], total: { gpu_seconds: 30000, busy_gpu_seconds: 26100, energy_joules: 8.1e6, utilization: 83, memory_peak: 61000, measured_seconds: 29800 } };
  const points = Array.from({ length: 300 }, (_, i) => i * 20);
  if (what === "metrics") return { job: row.id, label: row.label, names: ["loss", "accuracy"], series: { loss: points.map((x) => [x, 2.5 * Math.exp(-x / 2000) + 0.1 * Math.abs(Math.sin(x * 7)), start - 9000 + x]), accuracy: points.map((x) => [x, 0.95 - 0.9 * Math.exp(-x / 1500), start - 9000 + x]), lr: points.map((x) => [x, 0.1 * (x < 3000 ? 1 : 0.1), start - 9000 + x]) }, summary: {}, count: 300 };
  return null;
}

function log(response) {
  response.writeHead(200, { "Content-Type": "application/octet-stream" });
  for (let i = 0; i < 400; i++) response.write(`\x1b[2m${String(i).padStart(6)}\x1b[0m epoch ${Math.floor(i / 40)} step ${i * 20} \x1b[36mloss\x1b[0m ${(2.5 * Math.exp(-i / 90)).toFixed(4)} \x1b[32m${(310 + 9 * Math.sin(i)).toFixed(0)} img/s\x1b[0m\n`);
  response.write("\x1b[33mWarning:\x1b[0m lr_scheduler.step() was called before optimizer.step()\n");
  const timer = setInterval(() => response.write(`\r\x1b[Kepoch 10: ${Math.floor((Date.now() / 100) % 100)} %`), 300);
  response.on("close", () => clearInterval(timer));
}

function live(response) {
  response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  const send = (event, data) => response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  response.write("retry: 1000\n\n");
  send("hello", { version: "0.1.0", api: "1", boot: "dev", seq: 1, now: clock(), user: "ana", rights: ["view", "act", "admin"], read_only: false, topics: [] });
  send("counts", { seq: 1, counts: counts() });
  send("gpus", { t: clock(), g: gpus.map(sample) });
  const timer = setInterval(() => send("gpus", { t: clock(), g: gpus.map(sample) }), 2000);
  response.on("close", () => clearInterval(timer));
}

const server = createServer((request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://localhost");
  response.setHeader("Content-Security-Policy", POLICY);
  const name = pathname === "/" ? "index.html" : pathname.startsWith("/ui/") ? pathname.slice(4) : null;
  if (name !== null && !name.includes("..") && existsSync(join(DIST, name))) {
    response.writeHead(200, { "Content-Type": TYPES[name.split(".").pop()] });
    createReadStream(join(DIST, name)).pipe(response);
    return;
  }
  const path = pathname.slice(4);
  if (path === "live") return live(response);
  if (/^jobs\/[\d-]+\/log$/.test(path)) return log(response);
  const value = ANSWERS[path]?.(searchParams) ?? (path.startsWith("jobs/") ? jobAnswer(path.slice(5)) : null);
  if (request.method === "POST") response.end(JSON.stringify({ done: [], skipped: [{ id: 1, label: "1", why: "generated data cannot be changed" }] }));
  else if (value === null) response.writeHead(404).end(JSON.stringify({ error: { message: `no ${pathname}` } }));
  else {
    const body = gzipSync(JSON.stringify(value), { level: 1 });
    response.writeHead(200, { "Content-Type": "application/json", "Content-Encoding": "gzip" }).end(body);
  }
});
server.listen(number("port", 8701), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/`));
if (values.stop) setTimeout(() => process.exit(0), 1000 * number("stop", 600));
