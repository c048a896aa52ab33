// All jobs: filter, facets, sort, select, act, move.

import { computed, effect, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { act, APPLIES, edit, move, openMenu, titleOf, VERBS, type Verb } from "../actions";
import { compile, parse, selects, serverText, toggle } from "../core/filter";
import { count, duration, plural, safe } from "../core/format";
import { listing, positionOf, type Fold, type Sort } from "../core/listing";
import { groupOf, stateWord } from "../core/states";
import type { ColumnsReply } from "../core/table";
import { detail, useDetails } from "../details";
import { editPriority, keysOf } from "../keys";
import { get, withQuery } from "../net/api";
import { link, loaded, mayAct, now, sweeps, table, version } from "../net/live";
import { go, parameter, route, setParameters } from "../route";
import { At, Estimate, JobLink, Since } from "../widgets/bits";
import { Name, Progress, StateChip } from "../widgets/plain";
import { Grid } from "../widgets/grid";

const unfolded = signal<ReadonlySet<string>>(new Set());
const selected = signal<ReadonlySet<number>>(new Set());
/** Where the keyboard is: `j12` a job, `f12p` a fold. */
const cursor = signal("");
const matched = signal<ReadonlySet<number> | null>(null);
const visible = signal<readonly [number, number]>([0, 0]);
const narrow = matchMedia("(max-width: 700px)");
const isNarrow = signal(narrow.matches);
narrow.addEventListener("change", () => (isNarrow.value = narrow.matches));

const filter = computed(() => parameter("f"));
const sort = computed(() => (parameter("s").replace("-", "") || "start") as Sort);
const isDescending = computed(() => parameter("s").startsWith("-"));
const isFlat = computed(() => parameter("flat") === "1");
const terms = computed(() => parse(filter.value));
const asked = computed(() => serverText(terms.value));

// Commands are not in the columns: the server finds them.
let latest = 0;
effect(() => {
  const text = asked.value;
  const mine = ++latest;
  matched.value = null;
  if (!text || route.value.page !== "q") return;
  setTimeout(async () => {
    if (mine !== latest) return;
    try {
      const reply = await get<ColumnsReply>(withQuery("jobs/columns", { text }));
      if (mine === latest) matched.value = new Set(reply.columns.id as number[]);
    } catch {
      // Without an answer, names, users and ids are matched here.
    }
  }, 200);
});

/** Elapsed times change each second; a list that is sorted by them need not. */
const list = computed(() => {
  version.value;
  const test = compile(terms.value, table, now.peek(), matched.value);
  return listing(table, test, sort.value, isDescending.value, now.peek(), isFlat.value ? null : unfolded.value);
});

const foldAt = (at: number): Fold | null => (list.value.entries[at]! < 0 ? list.value.folds[-1 - list.value.entries[at]!]! : null);
const idOf = (row: number) => table.integers.id[row]!;
const idsAt = (at: number): number[] => foldAt(at)?.members.map(idOf) ?? [idOf(list.value.entries[at]!)];

function keyAt(at: number): string {
  const fold = foldAt(at);
  return fold ? `f${fold.key}` : `j${idOf(list.value.entries[at]!)}`;
}

const cursorAt = computed(() => {
  const key = cursor.value;
  if (key.startsWith("j")) return positionOf(list.value, table, Number(key.slice(1)));
  return list.value.entries.findIndex((entry) => entry < 0 && `f${list.value.folds[-1 - entry]!.key}` === key);
});

function moveCursor(by: number): void {
  const next = Math.min(list.value.entries.length - 1, Math.max(0, cursorAt.value + by));
  if (list.value.entries.length) cursor.value = keyAt(next);
}

function toggleFold(key: string): void {
  const next = new Set(unfolded.value);
  if (!next.delete(key)) next.add(key);
  unfolded.value = next;
}

let anchor = -1;

/** Select or deselect an entry; with `isRange`, all from the last one on. */
function select(at: number, isRange: boolean): void {
  const next = new Set(selected.value);
  const from = isRange && anchor >= 0 ? Math.min(anchor, at) : at;
  const to = isRange && anchor >= 0 ? Math.max(anchor, at) : at;
  const isOn = isRange || !idsAt(at).every((id) => next.has(id));
  for (let i = from; i <= to; i++) for (const id of idsAt(i)) isOn ? next.add(id) : next.delete(id);
  anchor = at;
  selected.value = next;
}

function selectAll(): void {
  const { rows } = list.value;
  selected.value = selected.value.size >= rows.length ? new Set() : new Set(Array.from(rows, idOf));
}

/** Selected jobs that still exist, else those at the cursor. */
function targets(): number[] {
  const chosen = [...selected.value].filter((id) => table.indexOf(id) !== undefined);
  if (chosen.length) return chosen;
  return cursorAt.value >= 0 ? idsAt(cursorAt.value) : [];
}

/** Those of the jobs whose state allows the verb. */
function allowed(verb: Verb, ids: number[]): number[] {
  return ids.filter((id) => {
    const at = table.indexOf(id);
    return at !== undefined && APPLIES[verb](table.word("state", at) ?? "", table.held[at] === 1);
  });
}

function shift(by: 1 | -1): void {
  const at = cursorAt.value;
  const other = at + by;
  if (at < 0 || foldAt(at) || other < 0 || other >= list.value.entries.length || sort.value !== "start") return;
  const ids = idsAt(other);
  void move(idsAt(at)[0]!, by > 0 ? "after" : "before", by > 0 ? ids.at(-1)! : ids[0]!);
}

keysOf("q", {
  j: () => moveCursor(1),
  k: () => moveCursor(-1),
  ArrowDown: () => moveCursor(1),
  ArrowUp: () => moveCursor(-1),
  PageDown: () => moveCursor(20),
  PageUp: () => moveCursor(-20),
  Home: () => moveCursor(-1e9),
  End: () => moveCursor(1e9),
  Enter: () => {
    const fold = cursorAt.value >= 0 ? foldAt(cursorAt.value) : null;
    if (fold) toggleFold(fold.key);
    else if (cursorAt.value >= 0) go(`j/${idsAt(cursorAt.value)[0]}`);
  },
  x: () => cursorAt.value >= 0 && select(cursorAt.value, false),
  X: () => cursorAt.value >= 0 && select(cursorAt.value, true),
  "*": selectAll,
  Escape: () => (selected.value = new Set()),
  c: () => act("cancel", allowed("cancel", targets())),
  r: () => act("retry", allowed("retry", targets())),
  h: () => {
    const ids = targets();
    const free = allowed("hold", ids);
    act(free.length ? "hold" : "release", free.length ? free : allowed("release", ids));
  },
  l: () => cursorAt.value >= 0 && !foldAt(cursorAt.value) && go(`j/${idsAt(cursorAt.value)[0]}`),
  e: () => {
    if (!selected.value.size && cursorAt.value >= 0) select(cursorAt.value, false);
    setTimeout(editPriority);
  },
  ".": () => openMenu(VERBS.map((verb) => [verb, allowed(verb, targets())])),
  J: () => shift(1),
  K: () => shift(-1),
});

const COLUMNS: [title: string, sort: Sort | "", kind: string][] = [
  ["", "", "check"], ["State", "start", "st"], ["Job", "submitted", "id"], ["Name", "name", "nm"], ["User", "user", "us"],
  ["GPUs", "gpus", "num"], ["Time", "elapsed", "num"], ["Start or end", "", "eta"], ["Why", "", "why"],
];

function Head() {
  return (
    <div class="row" role="row" aria-rowindex={1}>
      {COLUMNS.map(([title, by, kind]) =>
        kind === "check" ? (
          <span role="columnheader" class="check" key="check">
            <input type="checkbox" aria-label="Select all" checked={selected.value.size > 0 && selected.value.size >= list.value.jobs} onChange={selectAll} />
          </span>
        ) : (
          <span role="columnheader" class={kind} key={title} aria-sort={by && sort.value === by ? (isDescending.value ? "descending" : "ascending") : undefined}>
            {by ? (
              <button type="button" onClick={() => setParameters({ s: sort.value === by && !isDescending.value ? `-${by}` : by === "start" ? "" : by })}>
                {title}{sort.value === by ? (isDescending.value ? " ↓" : by === "start" ? "" : " ↑") : ""}
              </button>
            ) : title}
          </span>
        ),
      )}
    </div>
  );
}

let dragged: number | null = null;

function JobRow({ at }: { at: number }) {
  const job = table.row(list.value.entries[at]!);
  const view = detail(job.id);
  const isOn = selected.value.has(job.id);
  const group = groupOf(job.state);
  const isWaiting = group === "pending";
  const canMove = isWaiting && mayAct.value && sort.value === "start";
  const why = isWaiting ? (view?.reason_text ?? view?.reason ?? "") : group === "failed" ? (job.cause ?? "") : (view?.reason_text ?? (job.node ? `${job.node}${job.devices?.length ? `: GPU ${job.devices.join(", ")}` : ""}` : ""));
  return (
    <div
      class={`row ${group} ${isOn ? "on" : ""} ${cursorAt.value === at ? "cursor" : ""}`} role="row" id={`row-j${job.id}`} aria-rowindex={at + 2} aria-selected={isOn}
      draggable={canMove}
      onClick={(event) => {
        cursor.value = `j${job.id}`;
        if (event.shiftKey) select(at, true);
      }}
      onDblClick={() => go(`j/${job.id}`)}
      onDragStart={() => (dragged = job.id)}
      onDragOver={(event) => dragged !== null && isWaiting && event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        if (dragged !== null && dragged !== job.id) void move(dragged, "before", job.id);
        dragged = null;
      }}
    >
      <span role="gridcell" class="check"><input type="checkbox" tabIndex={-1} aria-label={`Select job ${job.label}`} checked={isOn} onClick={(event) => (event.stopPropagation(), select(at, event.shiftKey))} /></span>
      <span role="gridcell" class="st"><StateChip state={job.state} held={job.held} /></span>
      <span role="gridcell" class="id"><JobLink id={job.id} label={job.label} /></span>
      <span role="gridcell" class="nm"><Name text={job.name} /></span>
      <span role="gridcell" class="us"><Name text={job.user} limit={24} /></span>
      <span role="gridcell" class="num gp">{job.gpus ?? "–"}</span>
      <span role="gridcell" class="num tm">{job.started ? (job.ended ? duration(job.ended - job.started) : <Since time={job.started} />) : ""}</span>
      <span role="gridcell" class="eta">
        {group === "failed" || group === "done" ? <At time={job.ended} />
          : isWaiting ? (view?.foreseen ? <Estimate view={view.foreseen} which="start" /> : job.expected ? <>~<At time={job.expected} /></> : <span class="muted">–</span>)
          : job.total_epochs ? <><Progress done={job.epochs} total={job.total_epochs} label="epochs" /> {job.expected ? <>~<At time={job.expected} /></> : `${job.epochs ?? 0}/${job.total_epochs}`}</>
          : job.expected ? <>~<At time={job.expected} /></> : job.limit && job.started ? <>≤ <At time={job.started + job.limit} /></> : <span class="muted">–</span>}
      </span>
      <span role="gridcell" class="why" title={safe(why, 600)}>{safe(why, 240)}</span>
    </div>
  );
}

function FoldRow({ at, fold }: { at: number; fold: Fold }) {
  const first = table.row(fold.members[0]!);
  const ids = fold.members.map(idOf);
  const isOn = ids.every((id) => selected.value.has(id));
  const isOpen = unfolded.value.has(fold.key);
  const sweep = fold.isSweep ? sweeps.value.find((one) => one.id === fold.owner) : undefined;
  const gpus = fold.members.reduce((sum, row) => sum + (table.numbers.gpus[row] || 0), 0);
  const flip = () => toggleFold(fold.key);
  return (
    <div class={`row fold ${fold.group} ${isOn ? "on" : ""} ${cursorAt.value === at ? "cursor" : ""}`} role="row" id={`row-f${fold.key}`} aria-rowindex={at + 2} aria-selected={isOn} onClick={() => (cursor.value = `f${fold.key}`)} onDblClick={flip}>
      <span role="gridcell" class="check"><input type="checkbox" tabIndex={-1} aria-label={`Select ${fold.members.length} jobs of ${fold.owner}`} checked={isOn} onClick={(event) => (event.stopPropagation(), select(at, event.shiftKey))} /></span>
      <span role="gridcell" class="st"><StateChip state={first.state} held={first.held} /></span>
      <span role="gridcell" class="id"><button type="button" class="plain" tabIndex={-1} aria-expanded={isOpen} aria-label={`${isOpen ? "Fold" : "Unfold"} ${fold.owner}`} onClick={flip}><b>{isOpen ? "▾" : "▸"} {fold.owner}</b></button></span>
      <span role="gridcell" class="nm"><Name text={first.name} /> <span class="badge">{count(fold.members.length)} {fold.isSweep ? "trials" : "jobs"}</span></span>
      <span role="gridcell" class="us"><Name text={first.user} limit={24} /></span>
      <span role="gridcell" class="num gp">{gpus || "–"}</span>
      <span role="gridcell" class="num tm" />
      <span role="gridcell" class="eta">{sweep?.eta ? <>all ~<At time={Date.parse(sweep.eta) / 1000} /></> : ""}</span>
      <span role="gridcell" class="why">{fold.group === "failed" ? causes(fold) : sweep?.best?.value != null ? `best ${sweep.metric ?? "value"} ${sweep.best.value}` : ""}</span>
    </div>
  );
}

function causes(fold: Fold): string {
  const tally = new Map<string, number>();
  for (const row of fold.members) {
    const cause = table.word("cause", row) ?? "unknown";
    tally.set(cause, (tally.get(cause) ?? 0) + 1);
  }
  return [...tally].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([cause, n]) => `${safe(cause, 60)} ×${n}`).join(", ");
}

function Facets() {
  const { facets } = list.value;
  const names = { state: (value: string) => stateWord(value), user: safe, queue: safe, label: safe, sweep: (value: string) => `${value} ${safe(sweeps.value.find((one) => String(one.id) === value)?.name ?? "", 30)}` };
  return (
    <div class="facets">
      {(Object.keys(names) as (keyof typeof names)[]).map((key) => {
        const values = facets[key];
        if (values.length < 2 && !values.some(([value]) => selects(filter.value, key, value))) return null;
        return (
          <div key={key} role="group" aria-label={`Filter by ${key}`}>
            <h2>{key}</h2>
            {values.map(([value, n]) => (
              <button type="button" key={value} aria-pressed={selects(filter.value, key, value)} onClick={() => setParameters({ f: toggle(filter.value, key, value) })}>
                <span>{names[key](value)}</span><span class="muted">{count(n)}</span>
              </button>
            ))}
          </div>
        );
      })}
    </div>
  );
}

function Bulk() {
  const ids = targets();
  if (!selected.value.size || !ids.length) return null;
  const verbs = (["cancel", "hold", "release", "retry", "dismiss"] as const).map((verb) => [verb, allowed(verb, ids)] as const).filter(([, some]) => some.length);
  const editable = allowed("cancel", ids);
  return (
    <div class="bulk" role="toolbar" aria-label="Selected jobs">
      <b>{plural(ids.length, "job")} selected</b>
      {mayAct.value ? verbs.map(([verb, some]) => (
        <button type="button" key={verb} class={verb === "cancel" ? "danger" : ""} onClick={() => act(verb, some)}>
          {titleOf(verb)} {some.length === ids.length ? "" : count(some.length)}
        </button>
      )) : null}
      {mayAct.value && editable.length ? (
        <form onSubmit={(event) => {
          event.preventDefault();
          const value = new FormData(event.currentTarget).get("priority");
          if (value) void edit(editable, { priority: String(value) });
        }}>
          <label>Priority <input name="priority" type="number" step="1" /></label>
          <button type="submit">Set</button>
        </form>
      ) : null}
      <button type="button" onClick={() => (selected.value = new Set())}>Clear</button>
    </div>
  );
}

const HELP = "state:running,failed  user:ana  -queue:night  gpus:>1  elapsed:>2h  sweep:17  label:x  or any words";

export function Queue() {
  const box = useRef<HTMLInputElement>(null);
  const { entries, jobs } = list.value;
  const [from, to] = visible.value;
  const ids: number[] = [];
  for (let at = from; at < Math.min(to, entries.length); at++) if (entries[at]! >= 0) ids.push(idOf(entries[at]!));
  useDetails(ids);
  useEffect(() => {
    if (document.activeElement !== box.current && box.current) box.current.value = filter.value;
  }, [filter.value]);
  const at = cursorAt.value;
  return (
    <div class="queue">
      <h1 class="hidden">Queue</h1>
      <div class="toolbar">
        <input ref={box} type="search" id="search" class="search" aria-label="Filter" placeholder={HELP} title={HELP} defaultValue={filter.value} spellcheck={false} autocomplete="off" onInput={(event) => setParameters({ f: event.currentTarget.value })} />
        <label class="toggle"><input type="checkbox" checked={!isFlat.value} onChange={() => setParameters({ flat: isFlat.value ? "" : "1" })} /> Fold arrays</label>
        <span class="muted total" aria-live="off">{loaded.value ? (jobs === table.live ? plural(jobs, "job") : `${count(jobs)} of ${plural(table.live, "job")}`) : link.value.state === "lost" ? "" : "Loading …"}</span>
      </div>
      <Bulk />
      <div class="queue-body">
        {isNarrow.value ? <details class="facet-box"><summary>Filters</summary><Facets /></details> : <Facets />}
        {entries.length === 0 && loaded.value ? (
          <p class="empty">{table.live === 0 ? <>No jobs. <code>stoker submit --gpus 1 python train.py</code> adds one.</> : <>No job matches <code>{safe(filter.value, 100)}</code>. <button type="button" onClick={() => setParameters({ f: "" })}>Show all</button></>}</p>
        ) : (
          <Grid
            label="Jobs" rows={entries.length} rowHeight={isNarrow.value ? 54 : 30} cursor={at} activeId={at >= 0 ? `row-${keyAt(at)}` : undefined}
            head={<Head />}
            row={(index, slot) => {
              const fold = foldAt(index);
              return fold ? <FoldRow at={index} fold={fold} key={`f${slot}`} /> : <JobRow at={index} key={`j${slot}`} />;
            }}
            onVisible={(first, last) => (visible.value = [first, last])}
          />
        )}
      </div>
    </div>
  );
}
