import assert from "node:assert/strict";
import { test } from "node:test";
import { LogLines, firstError, search, textOf } from "../src/core/ansi";
import type { JobView } from "../src/api";
import { submitCommand, submitPython } from "../src/core/copy";
import { compile, format, parse, selects, serverText, toggle } from "../src/core/filter";
import { bytes, clock, duration, memory, memoryOf, plural, quoted, ranges, safe } from "../src/core/format";
import { GpuHistory, assignColours, barAt, gpuHours, stepsPerBar } from "../src/core/gpus";
import { listing } from "../src/core/listing";
import { frameParser } from "../src/core/sse";
import { groupOf, stateSymbol, stateWord } from "../src/core/states";
import { JobTable, type ColumnsReply, type JobsFrame, type Row } from "../src/core/table";
import { scrollTo, visibleWindow } from "../src/core/virtual";

/** A row with the fields that a test names. */
function row(id: number, fields: Partial<Row> = {}): Row {
  return {
    id, label: String(id), array: null, first: null, labels: null, name: "train", user: "ana", queue: "default", state: "PENDING", node: null, cause: null,
    gpus: 1, devices: null, priority: 0, held: false, submitted: 1000 + id, started: null, ended: null, begin: null,
    limit: null, expected: null, sweep: null, epochs: null, total_epochs: null, attempt: 0, ...fields,
  };
}

/** The reply of `GET /v1/jobs/columns` for these rows, as the daemon builds it. */
function columns(rows: Row[], seq = 1): ColumnsReply {
  const reply: ColumnsReply = { seq, boot: "b", now: 2000, total: rows.length, counts: {}, columns: {}, dictionary: {} };
  for (const name of Object.keys(row(0)) as (keyof Row)[]) {
    if (["name", "user", "queue", "labels", "state", "node", "cause"].includes(name)) {
      const words = [...new Set(rows.map((r) => r[name]).filter((word) => word !== null))] as string[];
      reply.dictionary[name] = words;
      reply.columns[name] = rows.map((r) => (r[name] === null ? null : words.indexOf(r[name] as string)));
    } else if (name !== "label") reply.columns[name] = rows.map((r) => r[name]);
  }
  return reply;
}

function table(rows: Row[], seq = 1): JobTable {
  const made = new JobTable();
  made.load(columns(rows, seq));
  return made;
}

const rowsOf = (t: JobTable) => Array.from({ length: t.size }, (_, at) => at).filter((at) => t.alive[at]).map((at) => t.row(at));
const labels = (t: JobTable, filter = "", open: ReadonlySet<string> | null = null, sort: Parameters<typeof listing>[2] = "start") => {
  const list = listing(t, compile(parse(filter), t, 2000, null), sort, false, 2000, open);
  return [...list.entries].map((entry) => (entry < 0 ? `fold ${list.folds[-1 - entry]!.key} ×${list.folds[-1 - entry]!.members.length}` : t.label(entry)));
};

test("columns give back the rows that they were made of", () => {
  const rows = [row(1, { state: "RUNNING", node: "box", devices: ["0", "1"], started: 1500, epochs: 3, total_epochs: 10 }), row(13, { label: "12_1", array: 12, first: 0, labels: "lr,x", name: "<b>", held: true, gpus: 0.5 })];
  assert.deepEqual(rowsOf(table(rows)), rows);
});

test("frames applied to columns give the same rows as columns loaded later", () => {
  let state = new Map([row(1), row(2), row(3)].map((r) => [r.id, r]));
  const t = table([...state.values()], 1);
  let seed = 7;
  const random = (n: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
  for (let seq = 2; seq < 400; seq++) {
    const frame: JobsFrame = { seq, changed: [], gone: [] };
    for (let i = random(3); i >= 0; i--) {
      const id = 1 + random(40);
      const next = row(id, { state: ["PENDING", "RUNNING", "FAILED"][random(3)]!, user: `u${random(5)}`, started: random(2) ? seq : null, name: `n${seq % 90}` });
      frame.changed!.push(next);
      state.set(id, next);
      if (random(4) === 0) {
        frame.gone!.push(id);
        state.delete(id);
      }
    }
    state = new Map([...state].filter(([id]) => !frame.gone!.includes(id)));
    t.apply(frame);
    const byId = (a: Row, b: Row) => a.id - b.id;
    assert.deepEqual(rowsOf(t).sort(byId), [...state.values()].sort(byId));
    assert.equal(t.live, state.size);
  }
});

test("older frames change nothing, a reset and a new order load again", () => {
  const t = table([row(1)], 5);
  assert.equal(t.apply({ seq: 5, changed: [row(2)] }), "older");
  assert.equal(t.byId(2), null);
  assert.equal(t.apply({ seq: 5, reset: true }), "older");
  assert.equal(t.apply({ seq: 6, reset: true }), "reload");
  assert.equal(t.apply({ seq: 7, changed: [row(2)], gone: [1] }), "changed");
  assert.equal(t.apply({ seq: 8, changed: [], reorder: true }), "reload");
});

test("a list has running jobs, pending ones in the order of the server, failures newest first", () => {
  const t = table([row(9), row(4), row(5, { state: "FAILED", ended: 10 }), row(6, { state: "TIMEOUT", ended: 20 }), row(8, { state: "RUNNING" }), row(7, { state: "RUNNING" })]);
  assert.deepEqual(labels(t), ["7", "8", "9", "4", "6", "5"]);
  t.apply({ seq: 2, changed: [row(10)], gone: [] });
  assert.deepEqual(labels(t), ["7", "8", "9", "4", "10", "6", "5"]);
  assert.deepEqual(labels(t, "", null, "submitted"), ["4", "5", "6", "7", "8", "9", "10"]);
});

test("members of an array that wait are one row until it is unfolded; running ones are rows", () => {
  const member = (id: number, index: number, state = "PENDING") => row(id, { label: `20_${index}`, array: 20, first: index - id + 20, state });
  const t = table([member(21, 1, "RUNNING"), member(22, 2), row(40), member(23, 3), member(24, 4, "FAILED")]);
  assert.deepEqual(labels(t, "", new Set()), ["20_1", "fold 20p ×2", "40", "20_4"]);
  assert.deepEqual(labels(t, "", new Set(["20p"])), ["20_1", "fold 20p ×2", "20_2", "20_3", "40", "20_4"]);
});

test("filters select by state, user, words, numbers, and their negation", () => {
  const t = table([row(1, { state: "RUNNING", started: 1000, gpus: 4 }), row(2, { user: "ben", name: "ResNet 50" }), row(3, { held: true, queue: "night" }), row(4, { state: "OUT_OF_MEMORY" }), row(5, { sweep: 5, array: 5, first: 0, labels: "lr,paper", gpus: null })]);
  const cases: [string, string[]][] = [
    ["state:running", ["1"]], ["state:pending", ["2", "3", "5_0"]], ["state:held", ["3"]], ["state:failed", ["4"]],
    ["state:running,failed", ["1", "4"]], ["state:OUT_OF_MEMORY", ["4"]], ["user:ben", ["2"]], ["-user:ana", ["2"]], ["queue:night", ["3"]], ["resnet", ["2"]],
    ['"resnet 50"', ["2"]], ["gpus:>1", ["1"]], ["gpus:0", ["5_0"]], ["elapsed:>10m", ["1"]], ["elapsed:>1h", []],
    ["sweep:5", ["5_0"]], ["label:paper", ["5_0"]], ["label:pap", []], ["-train state:pending", ["2"]], ["name:net user:ben", ["2"]], ["gpus:many", []], ["nokey:x", []],
  ];
  for (const [filter, expected] of cases) assert.deepEqual(labels(t, filter), expected, filter);
});

test("the server matches commands", () => {
  assert.equal(serverText(parse("state:running -x")), "");
  assert.equal(serverText(parse("lr label:a,b user:ana 0.1")), "lr 0.1");
  const t = table([row(1), row(2), row(3)]);
  const test = (text: string) => [...listing(t, compile(parse(text), t, 0, new Set([2])), "start", false, 0, null).entries].map((at) => t.label(at));
  assert.deepEqual(test("--lr"), ["2"]);
});

test("a filter is parsed from its own text, and a facet toggles in it", () => {
  for (const text of ["state:running user:ana,ben -queue:night gpus:>1 resnet", 'user:"a b" "two words"', "-x"]) assert.deepEqual(parse(format(parse(text))), parse(text));
  assert.equal(toggle("", "user", "ana"), "user:ana");
  assert.equal(toggle("user:ana x", "user", "ben"), "user:ana,ben x");
  assert.equal(toggle("user:ana,ben x", "user", "ana"), "user:ben x");
  assert.equal(toggle("user:ben", "user", "ben"), "");
  assert.ok(selects("user:ana,ben", "user", "ben") && !selects("-user:ben", "user", "ben"));
  assert.ok(selects(toggle("", "user", 'o"dd name'), "user", "odd name"));
});

test("facets count the filtered jobs", () => {
  const t = table([row(1), row(2, { user: "ben", labels: "lr" }), row(3, { user: "ben", labels: "lr,paper", state: "RUNNING" })]);
  const list = listing(t, compile(parse("user:ben"), t, 0, null), "start", false, 0, null);
  assert.deepEqual(list.facets.user, [["ben", 2]]);
  assert.deepEqual(list.facets.label, [["lr", 2], ["paper", 1]]);
  assert.deepEqual(list.facets.state, [["RUNNING", 1], ["PENDING", 1]]);
});

test("100,000 rows are loaded, filtered and listed", () => {
  const rows = Array.from({ length: 100_000 }, (_, i) => row(i + 1, { name: `job${i % 900}`, user: `u${i % 7}` }));
  const reply = columns(rows.slice(0, 1));
  for (const name of Object.keys(reply.columns)) reply.columns[name] = rows.map((r) => ["name", "user", "queue", "state"].includes(name) ? 0 : (r as never)[name] ?? null);
  const t = new JobTable();
  t.load(reply);
  assert.equal(listing(t, compile(parse("job0 -user:x gpus:1"), t, 0, null), "start", false, 0, new Set()).jobs, 100_000);
});

test("only visible rows exist, and a scroll position reaches every row", () => {
  const w = visibleWindow(100_000, 28, 28_000, 560, 4);
  assert.deepEqual([w.from, w.to, w.height], [996, 1024, 2_800_000]);
  assert.equal(w.top, 996 * 28);
  assert.deepEqual(visibleWindow(0, 28, 0, 500), { height: 0, from: 0, to: 0, top: 0 });
  const huge = visibleWindow(5_000_000, 28, 10_000_000, 560, 0);
  assert.equal(huge.to, 5_000_000);
  assert.equal(huge.height, 10_000_000);
  const position = scrollTo(2_345_678, 5_000_000, 28, 0, 560);
  const shown = visibleWindow(5_000_000, 28, position, 560, 0);
  assert.ok(shown.from <= 2_345_678 && 2_345_678 < shown.to);
  assert.equal(scrollTo(3, 100, 28, 0, 560), 0);
});

test("server-sent events are parsed across pieces, comments are skipped", () => {
  const parse = frameParser();
  assert.deepEqual(parse("retry: 1000\n\nevent: hel"), []);
  assert.deepEqual(parse('lo\ndata: {"a":1}\n\n: still here\n\ndata: x\ndata: y\n\n'), [{ event: "hello", data: '{"a":1}' }, { event: "message", data: "x\ny" }]);
});

const lines = (log: LogLines) => Array.from({ length: log.count }, (_, at) => textOf(log.line(at)!));

test("colours of logs become styles, other control sequences are dropped", () => {
  const log = new LogLines();
  log.add("\x1b[1;31mred\x1b[0m plain \x1b[38;5;46mgreen\x1b[m\x1b]0;title\x07\x1b[2J\n");
  assert.deepEqual(log.lines[0]!.pieces, [{ text: "red", style: "b f1" }, { text: " plain ", style: "" }, { text: "green", style: "f10" }]);
});

test("a log in any pieces gives the same lines", () => {
  const text = "a\r\n\x1b[32mok\x1b[0m\r 1%\r 50%\r100%\nx\x1b]0;t\x07y\n\x1b[Ktail\r\x1b[Kend";
  const whole = new LogLines();
  whole.add(text);
  assert.deepEqual(lines(whole), ["a", "100%", "xy", "end"]);
  for (let size = 1; size < 9; size++) {
    const pieces = new LogLines();
    for (let at = 0; at < text.length; at += size) pieces.add(text.slice(at, at + size));
    assert.deepEqual(lines(pieces), lines(whole), `pieces of ${size}`);
  }
});

test("a line of a megabyte is cut and says so", () => {
  const log = new LogLines();
  log.add("x".repeat(1_000_000) + "\nnext\n");
  assert.equal(lines(log)[0]!.length, 20_000 + " … 980000 more characters".length);
  assert.equal(lines(log)[1], "next");
});

test("errors and words are found in logs", () => {
  const log = new LogLines();
  log.add("no errors so far\nTraceback (most recent call last):\n  File\nValueError: bad\n");
  assert.equal(firstError(log), 1);
  assert.equal(firstError(log, 2), 3);
  assert.deepEqual(search(log, "file"), [2]);
});

test("jobs keep their colours while visible, and neighbours differ", () => {
  const first = assignColours(new Map(), [1, 2, 3]);
  assert.deepEqual([...first.values()], [0, 1, 2]);
  const second = assignColours(first, [2, 3, 4]);
  assert.equal(second.get(2), 1);
  assert.equal(second.get(4), 0);
  assert.equal(new Set(assignColours(new Map(), [..."abcdefgh"]).values()).size, 8);
});

test("the history of a GPU begins with the daemon's and goes on with frames", () => {
  const history = new GpuHistory(10, 6);
  history.load({ t: 900, step: 10, gpus: { "box/0": { utilization: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], memory: [], jobs: [7, 7, 7, 7, 7, 7, 7, 7, 7, 7] } } }, 1000);
  assert.deepEqual(history.series.get("box/0")!.utilization, [5, 6, 7, 8, 9, 10]);
  history.add({ t: 1001, g: [["box/0", 50, 100, 40, 60, "busy", [[8, "1", null]]]] });
  history.add({ t: 1003, g: [["box/0", 100, 100, 40, 60, "busy", [[8, "1", null]]]] });
  assert.deepEqual(history.series.get("box/0")!.utilization, [6, 7, 8, 9, 10, 75]);
  assert.equal(history.series.get("box/0")!.jobs.at(-1), 8);
  history.add({ t: 1031, g: [["box/0", null, null, null, null, "free", []]] });
  assert.deepEqual(history.series.get("box/0")!.utilization, [9, 10, 75, null, null, null]);
});

test("after a restart of the daemon a history keeps what it knew", () => {
  const before = new GpuHistory(10, 6);
  before.load({ t: 940, step: 10, gpus: { "box/0": { utilization: [1, 2, 3, 4, 5, 6], memory: [], jobs: [7, 7, 7, 7, 7, 7] } } }, 1000);
  const after = new GpuHistory(10, 6);
  after.load({ t: 960, step: 10, gpus: { "box/0": { utilization: [null, null, null, null, 60, 70], memory: [], jobs: [] } } }, 1020, before);
  assert.deepEqual(after.series.get("box/0")!.utilization, [3, 4, 5, 6, 60, 70]);
  assert.deepEqual(after.series.get("box/0")!.jobs, [7, 7, 7, 7, null, null]);
});

test("a jump of the clock by years leaves the history of a GPU empty, at once", () => {
  const history = new GpuHistory(10, 6);
  const frame = (t: number, value: number): [number, number] => [t, value];
  for (const [t, value] of [frame(1001, 50), frame(4_000_000_000, 60), frame(4_000_000_012, 70)]) history.add({ t, g: [["box/0", value, 100, 40, 60, "busy", []]] });
  assert.deepEqual(history.series.get("box/0")!.utilization, [null, null, null, null, 60, 70]);
});

test("GPU-hours are those held by jobs, and idle those without utilisation", () => {
  const hours = gpuHours({ t: 0, step: 1800, gpus: { a: { utilization: [90, 0, 0, null], memory: [], jobs: [1, 1, null, 2] } } });
  assert.deepEqual(hours, { held: 1.5, idle: 0.5 });
});

test("figures are short", () => {
  assert.deepEqual([5, 61, 3700, 90000, 172800, NaN].map(duration), ["5 s", "1 min", "1 h 01", "1 d 1 h", "2 d", "–"]);
  assert.deepEqual([512, 20480, 1500, null].map(memory), ["512 MB", "20 GB", "1.5 GB", "–"]);
  assert.equal(bytes(999), "999 B");
  assert.deepEqual([memoryOf(20480, 81920), memoryOf(3, 81920), memoryOf(20480, null)], ["20/80 GB", "3 MB / 80 GB", "20 GB"]);
  assert.equal(plural(98000, "job"), "98\u202f000 jobs");
  assert.equal(clock(1_794_950_000, 1_794_950_500, true), "21:13");
});

test("ids become ranges, and words are quoted for a shell", () => {
  assert.equal(ranges([5, 3, 4, 9, 1]), "1-1,3-5,9-9");
  assert.equal(ranges([5, 3, 4, 9], (id) => `7_${id}`), "3-5,7_9");
  assert.equal(quoted("a b'c"), `'a b'\\''c'`);
});

test("names cannot reorder or hide text, and are short", () => {
  assert.equal(safe("a\u202eb\nc\u0007"), "a\ufffdb c\ufffd");
  assert.equal(safe("x".repeat(1_000_000)).length, 201);
});

test("every state has a group, a word and a symbol", () => {
  assert.deepEqual(["RUNNING", "PENDING", "TIMEOUT", "COMPLETED", "UNKNOWN"].map(groupOf), ["running", "pending", "failed", "done", "failed"]);
  assert.equal(stateWord("PENDING", true), "held");
  assert.notEqual(stateSymbol("PENDING", true), stateSymbol("PENDING"));
});

test("a job is copied as a command and as a call", () => {
  const request = { gpus: "2", most_gpus: null, model: "a100", min_vram: null, gpu_memory: null, cpus: "8", memory: 1024, machines: null };
  const job = { name: "a b", request, time_limit: 90, queue: "default", priority: 3, training: null, directory: "/tmp", command: 'python train.py "x y"' } as unknown as JobView;
  assert.equal(submitCommand(job), "stoker submit --name 'a b' --gpus a100:2 --cpus 8 --mem 1024M --time 2 --priority 3 --chdir /tmp python train.py \"x y\"");
  const lines = ["import stoker", "", "stoker.Client().submit(", '    "python train.py \\"x y\\"",', '    name="a b",', '    gpus="a100:2",', '    cpus="8",', '    mem="1024M",', '    time="2",', "    priority=3,", '    chdir="/tmp",', ")", ""];
  assert.deepEqual(submitPython(job).split("\n"), lines);
});

test("a bar of several steps has their mean and their last job, and nothing where nothing is known", () => {
  const series = { utilization: [10, null, 50, null, null], memory: [], jobs: [1, 2, null, null, null] };
  assert.deepEqual(barAt(series, 0, 3), { value: 30, job: 2 });
  assert.deepEqual(barAt(series, -1, 1), { value: 10, job: 1 });
  assert.deepEqual(barAt(series, 3, 5), { value: null, job: null });
  assert.deepEqual([stepsPerBar(120, 165), stepsPerBar(120, 120), stepsPerBar(120, 25)], [1, 1, 5]);
});
