// The share of the variance of a metric that each parameter explains alone, as `stoker sweep show`
// computes it (sweep/results/importance.py).

import type { TrialLike } from "./axes";

const MIN_TRIALS = 4;
const MAX_BINS = 8;

/** Shares between 0 and 1, corrected for chance, the largest first; empty with too few trials. */
export function importance(trials: readonly TrialLike[], names: readonly string[]): [name: string, share: number][] {
  const valued = trials.filter((trial) => trial.value !== null && Number.isFinite(trial.value));
  if (valued.length < MIN_TRIALS) return [];
  const values = valued.map((trial) => trial.value!);
  return names.map((name): [string, number] => [name, shareOf(groupsOf(valued.map((trial) => trial.params[name])), values)]).sort((a, b) => b[1] - a[1]);
}

const spread = (values: readonly number[]): number => {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
};

/** Epsilon squared: the variance between groups, less that of random groups. */
function shareOf(groups: readonly unknown[], values: readonly number[]): number {
  const members = new Map<unknown, number[]>();
  groups.forEach((group, i) => {
    const own = members.get(group);
    if (own) own.push(values[i]!);
    else members.set(group, [values[i]!]);
  });
  const total = spread(values);
  if (members.size < 2 || members.size === values.length || total <= 0) return 0;
  const within = [...members.values()].reduce((sum, group) => sum + spread(group), 0);
  const byChance = ((members.size - 1) * within) / (values.length - members.size);
  return Math.min(1, Math.max(0, (total - within - byChance) / total));
}

/** The group of each trial: by its value, or by quantile if there are many. */
function groupsOf(column: readonly unknown[]): unknown[] {
  if (!column.every((value): value is number => typeof value === "number" && Number.isFinite(value))) return column.map((value) => JSON.stringify(value));
  const bins = Math.min(MAX_BINS, Math.max(2, Math.floor(Math.sqrt(column.length))));
  if (new Set(column).size <= Math.max(bins, Math.floor(column.length / 2))) return [...column];
  const ranks = new Map<number, number>();
  [...column].sort((a, b) => a - b).forEach((value, rank) => ranks.has(value) || ranks.set(value, rank));
  return column.map((value) => Math.floor((ranks.get(value)! * bins) / column.length));
}
