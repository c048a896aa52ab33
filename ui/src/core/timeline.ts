// Bars on a time axis: where predicted jobs are on it, and where its labels are.

export interface Timeline {
  from: number;
  to: number;
}

interface Span {
  low: string | null;
  likely: string | null;
  high: string | null;
}

/** Positions of one job in percent of the axis: its likely start and end, and the 80 % range of each. */
export interface Bar {
  start: number;
  end: number;
  /** Earliest start and latest end. */
  low: number;
  high: number;
  /** The end lies beyond the axis, or is not known. */
  isOpen: boolean;
}

const time = (iso: string | null | undefined): number => (iso ? Date.parse(iso) / 1000 : NaN);
const first = (...values: number[]): number => values.find((value) => Number.isFinite(value)) ?? NaN;

/** The bar of a job; null if nothing is predicted of it before the end of the axis. */
export function barOf(job: { start: Span | null; end: Span | null }, startedAt: number | null, { from, to }: Timeline): Bar | null {
  const start = startedAt ?? first(time(job.start?.likely), time(job.start?.low));
  if (!Number.isFinite(start) || start >= to) return null;
  const end = first(time(job.end?.likely), time(job.end?.low), to + 1);
  const place = (at: number) => Math.min(100, Math.max(0, (100 * (at - from)) / (to - from)));
  const low = startedAt ?? first(time(job.start?.low), start);
  const high = first(time(job.end?.high), end);
  return { start: place(start), end: place(Math.min(end, to)), low: place(low), high: place(Math.max(high, Math.min(end, to))), isOpen: end > to };
}

/** An axis from now until the last end that is predicted, at least a quarter of an hour. */
export function axisOf(jobs: readonly { start: Span | null; end: Span | null }[], now: number, horizon: number): Timeline {
  let to = now + 900;
  for (const job of jobs) for (const span of [job.start, job.end]) to = Math.max(to, ...[span?.likely, span?.high].map((iso) => time(iso) || 0));
  return { from: now, to: Number.isFinite(horizon) ? Math.min(to, Math.max(horizon, now + 900)) : to };
}

const STEPS = [300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Moments to label: at most `most` of them, on full hours or days of the local clock. */
export function ticks({ from, to }: Timeline, most: number, offset: number): number[] {
  const step = STEPS.find((one) => (to - from) / one <= most) ?? Math.ceil((to - from) / most / 604800) * 604800;
  const found = [];
  for (let at = Math.ceil((from + offset) / step) * step - offset; at < to; at += step) found.push(at);
  return found;
}
