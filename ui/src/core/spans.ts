// Lengths of simulated time: how they are written, and where an axis of them is labelled.

import { count } from "./format";

/** A unit of time and its seconds. */
export type Unit = readonly [name: string, seconds: number];

const SECOND: Unit = ["s", 1];
const UNITS: readonly Unit[] = [["d", 86400], ["h", 3600], ["min", 60], SECOND];

/** Three significant digits. */
export function digits(value: number): string {
  if (value >= 99.95) return count(value);
  if (value >= 9.995) return value.toFixed(1);
  return value >= 0.0995 || value === 0 ? value.toFixed(2) : String(Number(value.toPrecision(2)));
}

/** Seconds with three digits, in the largest unit of which it is at least one, or in the given one. */
export function span(seconds: number | null, unit?: Unit): string {
  if (seconds === null) return "–";
  if (seconds === 0) return "0";
  const [name, size] = unit ?? UNITS.find((each) => seconds >= each[1]) ?? SECOND;
  return `${digits(seconds / size)} ${name}`;
}

/** The unit of a column, that of its smallest value, so that its figures compare at a glance. */
export function unitOf(values: readonly (number | null)[]): Unit {
  const least = Math.min(...values.filter((value): value is number => value !== null && value > 0));
  return UNITS.find((each) => least >= 0.5 * each[1]) ?? SECOND;
}

/** A time since the start: `2 d 05:03:20`. */
export function elapsed(seconds: number): string {
  const whole = Math.round(seconds);
  const rest = whole % 86400;
  const two = (value: number) => String(Math.floor(value)).padStart(2, "0");
  return `${whole >= 86400 ? `${Math.floor(whole / 86400)} d ` : ""}${two(rest / 3600)}:${two((rest / 60) % 60)}:${two(rest % 60)}`;
}

/** A short time: `300 µs`. */
export function instant(seconds: number): string {
  return seconds < 1e-3 ? `${digits(seconds * 1e6)} µs` : seconds < 1 ? `${digits(seconds * 1e3)} ms` : `${digits(seconds)} s`;
}

/** Round values in a range, `about` as many. */
export function ticks(low: number, high: number, about: number): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / about;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= rough * (1 - 1e-9))!;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

export interface Label {
  at: number;
  text: string;
}

/** Labels of an axis of times since the start, and the word for their unit. */
export function timeLabels(from: number, until: number, about: number): { word: string; labels: Label[] } {
  const long = until - from;
  const [name, size] = UNITS.find((each) => long >= 2 * each[1]) ?? SECOND;
  const word = { d: "days", h: "hours", min: "minutes", s: "seconds" }[name]!;
  return { word, labels: ticks(from / size, until / size, about).map((at) => ({ at: at * size, text: String(at) })) };
}

const ROUND = [1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 18000, 43200, 86400, 172800, 432000, 864000, 1728000, 4320000, 8640000, 86400000];
const BETWEEN = [30, 1800, 10800, 21600, 28800, 64800, 129600, 259200, 604800, 2592000];

/** Round times in a range, at most `most`, for a logarithmic axis. */
export function roundSpans(low: number, high: number, most: number): Label[] {
  const inside = (values: number[]) => values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  const few = inside(ROUND);
  const found = few.length > 2 ? few : inside([...ROUND, ...BETWEEN]).sort((a, b) => a - b);
  const every = Math.ceil(found.length / most);
  const chosen = found.length ? found.filter((_, i) => i % every === 0) : [low, high];
  return chosen.map((at) => ({ at, text: span(at).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ") }));
}

/** Labels at least `gap` apart: of two that are closer, the later goes. */
export function roomy(labels: readonly Label[], place: (at: number) => number, gap: number): Label[] {
  let last = -Infinity;
  return labels.filter(({ at }) => place(at) - last >= gap && ((last = place(at)), true));
}

/** The share of values that are at most `value`, of which the quantiles at `shares` are known. */
export function shareAt(quantiles: readonly number[], shares: readonly number[], value: number): number {
  let low = 0;
  let high = quantiles.length - 1;
  if (!(value >= quantiles[0]!)) return 0;
  if (value >= quantiles[high]!) return 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (quantiles[middle]! <= value) low = middle;
    else high = middle;
  }
  const part = quantiles[high]! > quantiles[low]! ? (value - quantiles[low]!) / (quantiles[high]! - quantiles[low]!) : 1;
  return shares[low]! + part * (shares[high]! - shares[low]!);
}
