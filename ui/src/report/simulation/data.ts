// The data of a simulation's report, as simulate/report/page.py writes it.

import type { SegmentColumns } from "../../core/segments";
import { digits, instant, span, type Unit } from "../../core/spans";
import { reportData } from "../data";

export type Quantity = "jct" | "waiting" | "slowdown";

export interface Run {
  label: string;
  jobs: number;
  parameters: Record<string, number | string | boolean | null>;
  notes: string[];
  cost: { events: number; seconds: number; median: number; p99: number };
  /** Quantiles at `shares`. */
  curves: Record<Quantity, number[]>;
  /** Jobs, median and 90th percentile of the wait, by size. */
  sizes: Record<string, [jobs: number, median: number, p90: number]>;
  /** GPUs in use and pending jobs: means of equal parts of each of `spans`. */
  use: number[][];
  queue: number[][];
  most: number;
}

export interface Measure {
  title: string;
  kind: "time" | "share" | "number" | "instant";
  better: "less" | "more" | "";
  /** One for each run; the best is null if all are equal. */
  values: (number | null)[];
  best: number | null;
}

export interface Groups {
  left_out: number;
  rows: [name: string, jobs: number, service: number, runs: ([number, number, number, number] | null)[]][];
}

export interface Cluster {
  /** Seconds per tick, and the end in ticks. */
  tick: number;
  end: number;
  machines: string[];
  sizes: number[];
  /** Machines, with those that are not in the chart. */
  all: number;
  /** Of each job: its number as a difference, submission (-1: not known), user, GPUs. */
  jobs: number[];
  at: number[];
  user: number[];
  gpus: number[];
  users: string[];
  coloured: number;
  pieces: SegmentColumns[];
}

interface Report {
  title: string;
  gpus: number;
  machines: number;
  end: number;
  last: number;
  spans: number[];
  base: number;
  notes: string[];
  warnings: string[];
  measures: Measure[];
  shares: number[];
  runs: Run[];
  users: Groups;
  queues: Groups;
  cluster: Cluster | null;
}

export const data = reportData<Report>();
export const { runs } = data;

export const measured = (title: string): Measure => data.measures.find((measure) => measure.title === title)!;

/** Groups of jobs by their GPUs, and their titles. */
export const SIZES = [["none", "No GPU"], ["<1", "Part of a GPU"], ["1", "1 GPU"], ["2–4", "2–4 GPUs"], ["5–8", "5–8 GPUs"], [">8", "More than 8 GPUs"]] as const;

/** A value as text; times in a given unit. */
export function written(value: number | null, kind: Measure["kind"], unit?: Unit): string {
  if (value === null) return "–";
  if (kind === "time") return span(value, unit);
  if (kind === "share") return `${(100 * value).toFixed(1)} %`;
  return kind === "instant" ? instant(value) : digits(value);
}
