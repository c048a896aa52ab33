// Full views of the few jobs that are on the screen: reasons, predictions, last log lines.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { JobList, JobView } from "./api";
import { exact } from "./core/format";
import { groupOf } from "./core/states";
import { link, table } from "./net/live";
import { get, withQuery } from "./net/api";

const MAX_REQUEST = 60;
const MAX_KEPT = 400;
/** Views are loaded again when something has changed, and now and then for their predictions. */
const CHANGED_SECONDS = 5;
const UNCHANGED_SECONDS = 60;
/** Where short jobs replace each other all the time, lists ask no more often than this. */
const PAUSE_SECONDS = 0.5;

interface Kept {
  view: JobView;
  at: number;
  seq: number;
}

const kept = new Map<number, Kept>();
const changes = signal(0);
let wanted = new Set<number>();
let timer = 0;
let loadedAt = 0;
let estimatedAt = 0;

/** The view of a job if it was loaded. Components that call it are drawn again when it arrives. */
export function detail(id: number): JobView | null {
  changes.value;
  return kept.get(id)?.view ?? null;
}

/** Load the views of these jobs, and again from time to time while the component is there. */
export function useDetails(ids: readonly number[]): void {
  const key = ids.join(",");
  useEffect(() => {
    want(ids);
    const repeat = window.setInterval(() => want(ids), CHANGED_SECONDS * 1000);
    return () => window.clearInterval(repeat);
  }, [key]);
}

function want(ids: readonly number[]): void {
  if (link.peek().state !== "live" || document.hidden) return;
  const now = Date.now();
  for (const id of ids) {
    const known = kept.get(id);
    const isFinal = known && ["failed", "done"].includes(groupOf(known.view.state));
    const state = table.byId(id)?.state;
    const age = (now - (known?.at ?? 0)) / 1000;
    const isOld = age > UNCHANGED_SECONDS || (known?.seq !== table.seq && age > 0.9 * CHANGED_SECONDS);
    if (!known || (state && state !== known.view.state) || (!isFinal && isOld)) wanted.add(id);
  }
  // A list that is scrolled fast wants many; only the latest are still visible.
  for (const id of wanted) {
    if (wanted.size <= MAX_REQUEST) break;
    wanted.delete(id);
  }
  if (wanted.size && !timer) timer = window.setTimeout(load, Math.max(100, loadedAt + 1000 * PAUSE_SECONDS - now));
}

async function request(ids: readonly number[], estimate: string): Promise<void> {
  try {
    const reply = await get<JobList>(withQuery("jobs", { select: ids.map(exact), tail: 3, limit: ids.length, estimate }));
    for (const view of reply.jobs) {
      kept.delete(view.id);
      kept.set(view.id, { view, at: Date.now(), seq: table.seq });
    }
    for (const id of kept.keys()) {
      if (kept.size <= MAX_KEPT) break;
      kept.delete(id);
    }
    changes.value++;
  } catch {
    // Asked for again by the next repetition.
  }
}

async function load(): Promise<void> {
  const ids = [...wanted].slice(0, MAX_REQUEST);
  for (const id of ids) wanted.delete(id);
  loadedAt = Date.now();
  await request(ids, "");
  // Predictions are computed on request only, and take a moment; asking once a minute keeps those
  // of all lists current.
  const pending = ids.filter((id) => kept.get(id)?.view.state === "PENDING");
  if (pending.length && Date.now() - estimatedAt > 60_000) {
    estimatedAt = Date.now();
    void request(pending, "1");
  }
  timer = wanted.size ? window.setTimeout(load, 60) : 0;
}
