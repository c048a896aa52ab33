// Which rows a list shows and in which order: filter, sort, folded arrays and sweeps, facets.

import { groupOf, type Group } from "./states";
import { NONE, type JobTable } from "./table";

export type Sort = "start" | "submitted" | "elapsed" | "name" | "gpus" | "user";

/** Members of an array or sweep in one group of states, shown as one row. */
export interface Fold {
  key: string;
  owner: number;
  group: Group;
  isSweep: boolean;
  members: number[];
}

/** An entry is the index of a row, or `-1 - n` for the n-th fold. */
export interface Listing {
  entries: Int32Array;
  folds: Fold[];
  /** Number of jobs that match, folded ones too. */
  jobs: number;
  /** Indices of all matching rows, in order. */
  rows: Int32Array;
  facets: Record<"state" | "user" | "queue" | "label" | "sweep", [string, number][]>;
}

const GROUPS: readonly Group[] = ["running", "pending", "failed", "done"];

/** Matching rows in the order of the server: running, pending in scheduling order, failures newest first. */
function ordered(table: JobTable, test: (at: number) => boolean): { rows: Int32Array; ends: number[] } {
  const groups = table.words.state.map((state) => GROUPS.indexOf(groupOf(state)));
  const lists: number[][] = [[], [], [], []];
  for (let at = 0; at < table.size; at++)
    if (table.alive[at] && test(at)) lists[groups[table.codes.state[at]!] ?? 2]!.push(at);
  const ids = table.integers.id;
  lists[0]!.sort((a, b) => ids[a]! - ids[b]!);
  for (const list of [lists[2]!, lists[3]!]) list.sort((a, b) => (table.numbers.ended[b] || 0) - (table.numbers.ended[a] || 0) || ids[b]! - ids[a]!);
  const rows = Int32Array.from(lists.flat());
  const ends: number[] = [];
  let end = 0;
  for (const list of lists) ends.push((end += list.length));
  return { rows, ends };
}

function sortRows(table: JobTable, rows: Int32Array, sort: Sort, descending: boolean, now: number): void {
  const { numbers, integers } = table;
  const sign = descending ? -1 : 1;
  const byNumber = (value: (at: number) => number) => rows.sort((a, b) => sign * (value(a) - value(b)) || integers.id[a]! - integers.id[b]!);
  if (sort === "start") {
    if (descending) rows.reverse();
  } else if (sort === "name" || sort === "user") {
    const words = table.words[sort];
    const rank = new Map([...words.keys()].sort((a, b) => words[a]!.localeCompare(words[b]!)).map((code, at) => [code, at]));
    byNumber((at) => rank.get(table.codes[sort][at]!) ?? -1);
  } else if (sort === "elapsed") byNumber((at) => (numbers.started[at]! > 0 ? (numbers.ended[at] || now) - numbers.started[at]! : -1));
  else byNumber((at) => numbers[sort][at] || 0);
}

/** Compute a list. `open`: keys of folds that are unfolded; null: show every job as a row. */
export function listing(
  table: JobTable, test: (at: number) => boolean, sort: Sort, descending: boolean, now: number,
  open: ReadonlySet<string> | null,
): Listing {
  const { rows } = ordered(table, test);
  if (sort !== "start" || descending) sortRows(table, rows, sort, descending, now);
  const facets = facetsOf(table, rows);
  if (open === null) return { entries: rows, folds: [], jobs: rows.length, rows, facets };
  const groups = table.words.state.map(groupOf);
  const found = new Map<string, Fold>();
  const slots: (Fold | number)[] = [];
  for (const at of rows) {
    const owner = table.integers.array[at]!;
    const group = groups[table.codes.state[at]!] ?? "failed";
    if (owner === NONE || group === "running") {
      slots.push(at);
      continue;
    }
    const key = `${owner}${group[0]}`;
    const fold = found.get(key);
    if (fold) fold.members.push(at);
    else {
      const made = { key, owner, group, isSweep: table.integers.sweep[at] !== NONE, members: [at] };
      found.set(key, made);
      slots.push(made);
    }
  }
  const folds: Fold[] = [];
  const entries: number[] = [];
  for (const slot of slots) {
    if (typeof slot === "number") entries.push(slot);
    else if (slot.members.length === 1) entries.push(slot.members[0]!);
    else {
      entries.push(-folds.push(slot));
      if (open.has(slot.key)) for (const at of slot.members) entries.push(at);
    }
  }
  return { entries: Int32Array.from(entries), folds, jobs: rows.length, rows, facets };
}

function facetsOf(table: JobTable, rows: Int32Array): Listing["facets"] {
  const tally = (codes: Int32Array, word: (code: number) => string | undefined): [string, number][] => {
    const counts = new Map<number, number>();
    for (const at of rows) {
      const code = codes[at]!;
      if (code !== NONE) counts.set(code, (counts.get(code) ?? 0) + 1);
    }
    return [...counts].map(([code, n]) => [word(code) ?? "", n]);
  };
  const first = (values: [string, number][]) => values.sort((a, b) => b[1] - a[1]).slice(0, 12);
  const coded = (name: "state" | "user" | "queue" | "labels") => tally(table.codes[name], (code) => table.words[name][code]);
  // A job may have several labels.
  const labels = new Map<string, number>();
  for (const [texts, n] of coded("labels")) for (const label of texts.split(",")) labels.set(label, (labels.get(label) ?? 0) + n);
  return { state: first(coded("state")), user: first(coded("user")), queue: first(coded("queue")), label: first([...labels]), sweep: first(tally(table.integers.sweep, String)) };
}

/** Index in `entries` of the row of a job, or -1. */
export function positionOf(list: Listing, table: JobTable, id: number): number {
  const at = table.indexOf(id);
  return at === undefined ? -1 : list.entries.indexOf(at);
}
