// Axes of parallel coordinates: where the values of trials are on them, and which trials pass.

export interface TrialLike {
  id: number;
  params: Record<string, unknown>;
  value: number | null;
}

export interface Axis {
  name: string;
  kind: "linear" | "log" | "choice";
  /** Choices from bottom to top; of a numeric axis, its ends. */
  labels: string[];
  /** Position of a trial: 0 at the bottom, 1 at the top; null if it has no value. */
  at: (trial: TrialLike) => number | null;
}

/** A range of positions on an axis. */
export type Brushes = ReadonlyMap<string, readonly [number, number]>;

/** A ratio of the largest to the smallest value from which an axis is logarithmic. */
const LOG_RATIO = 50;

function axisOf(name: string, read: (trial: TrialLike) => unknown, trials: readonly TrialLike[], isLog: boolean | null): Axis | null {
  const values = trials.map(read).filter((value) => value !== null && value !== undefined);
  if (values.length === 0) return null;
  const numbers = values.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  const distinct = [...new Set(values.map((value) => JSON.stringify(value)))];
  if (numbers.length === values.length && distinct.length > 2) {
    const low = Math.min(...numbers);
    const high = Math.max(...numbers);
    const log = low > 0 && (isLog ?? high / low >= LOG_RATIO);
    const scale = log ? Math.log : (value: number) => value;
    const size = scale(high) - scale(low);
    const at = (trial: TrialLike) => {
      const value = read(trial);
      return typeof value === "number" && Number.isFinite(value) ? (scale(value) - scale(low)) / size : null;
    };
    return { name, kind: log ? "log" : "linear", labels: [String(low), String(high)], at };
  }
  distinct.sort((a, b) => (numbers.length === values.length ? Number(a) - Number(b) : a.localeCompare(b)));
  const places = new Map(distinct.map((text, i) => [text, distinct.length > 1 ? i / (distinct.length - 1) : 0.5]));
  const labels = distinct.map((text) => (text.startsWith('"') ? (JSON.parse(text) as string) : text));
  return { name, kind: "choice", labels, at: (trial) => places.get(JSON.stringify(read(trial))) ?? null };
}

/** One axis for each parameter that differs between trials, and the metric on the last. */
export function axesOf(trials: readonly TrialLike[], metric: string | null, isLog: ReadonlyMap<string, boolean>): Axis[] {
  const names = [...new Set(trials.flatMap((trial) => Object.keys(trial.params)))];
  const axes = names.map((name) => axisOf(name, (trial) => trial.params[name], trials, isLog.get(name) ?? null));
  const last = metric === null ? null : axisOf(metric, (trial) => trial.value, trials, null);
  return [...axes, last].filter((axis): axis is Axis => axis !== null && axis.labels.length > 1);
}

/** Whether a trial is inside all brushes. */
export function passes(trial: TrialLike, axes: readonly Axis[], brushes: Brushes): boolean {
  return axes.every((axis) => {
    const range = brushes.get(axis.name);
    if (!range) return true;
    const at = axis.at(trial);
    return at !== null && at >= range[0] && at <= range[1];
  });
}

/** Returns the place of a trial by its value: 0 the best, 1 the worst, and those without a value. */
export function rankOf(trials: readonly TrialLike[], sign: number): (trial: TrialLike) => number {
  const values = trials.flatMap((trial) => (trial.value === null ? [] : [trial.value])).sort((a, b) => sign * (a - b));
  const ranks = new Map(values.map((value, i) => [value, i / Math.max(1, values.length - 1)]));
  return (trial) => (trial.value === null ? 1 : (ranks.get(trial.value) ?? 1));
}

/** Steps at which early stopping ended trials: how many came so far, and how many it stopped there. */
export function rungsOf(trials: readonly { step: number | null; stopped: boolean }[]): { step: number; reached: number; stopped: number }[] {
  const steps = [...new Set(trials.flatMap((trial) => (trial.stopped && trial.step !== null ? [trial.step] : [])))].sort((a, b) => a - b);
  return steps.map((step) => ({
    step, reached: trials.filter((trial) => (trial.step ?? -1) >= step).length, stopped: trials.filter((trial) => trial.stopped && trial.step === step).length,
  }));
}

/** At most `limit` trials to draw: the best and the worst, and every n-th of the others. */
export function decimate<T extends TrialLike>(trials: readonly T[], limit: number): T[] {
  if (trials.length <= limit) return [...trials];
  const sorted = [...trials].sort((a, b) => (a.value ?? Infinity) - (b.value ?? Infinity));
  const ends = Math.floor(limit / 4);
  const middle = sorted.slice(ends, sorted.length - ends);
  const step = middle.length / (limit - 2 * ends);
  const some = Array.from({ length: limit - 2 * ends }, (_, i) => middle[Math.floor(i * step)]!);
  return [...sorted.slice(0, ends), ...some, ...sorted.slice(sorted.length - ends)];
}

/** Whether parameters with a distribution are sampled on a logarithmic scale. */
export function scalesOf(definition: Record<string, unknown>): Map<string, boolean> {
  const parameters = Object.entries((definition.parameters ?? {}) as Record<string, { distribution?: string }>);
  return new Map(parameters.flatMap(([name, { distribution }]) => (distribution ? [[name, distribution.includes("log")]] : [])));
}
