// History of GPUs for their strips, and the colours of jobs.

export type GpuSample = [key: string, utilization: number | null, memory: number | null, temperature: number | null,
  power: number | null, state: string, jobs: [id: number, share: string, memory: number | null][]];

export interface GpuFrame {
  t: number;
  g: GpuSample[];
}

export interface HistoryReply {
  t: number;
  step: number;
  gpus: Record<string, { utilization: (number | null)[]; memory: (number | null)[]; jobs: (number | null)[] }>;
}

/** Values of one GPU in steps of equal length; the last one is not complete. */
export interface Series {
  utilization: (number | null)[];
  memory: (number | null)[];
  jobs: (number | null)[];
}

/** How many steps one bar stands for, so that there are not more bars than fit. */
export const stepsPerBar = (steps: number, most: number): number => Math.max(1, Math.ceil(steps / most));

/** The values of a bar: the mean of its steps, and the last job in them. */
export function barAt(series: Series, from: number, to: number): { value: number | null; job: number | null } {
  let sum = 0;
  let known = 0;
  let job: number | null = null;
  for (let i = Math.max(0, from); i < to; i++) {
    const value = series.utilization[i];
    if (value != null) [sum, known] = [sum + value, known + 1];
    job = series.jobs[i] ?? job;
  }
  return { value: known ? sum / known : null, job };
}

let serials = 0;

/** History of all GPUs over one period. */
export class GpuHistory {
  readonly series = new Map<string, Series>();
  /** Time of the end of the last step. */
  end = 0;
  readonly serial = ++serials;
  private samples = 0;

  constructor(readonly step: number, readonly length: number) {}

  /** Start with what the daemon has kept; after its restart, `before` knows more. */
  load(reply: HistoryReply, now: number, before: GpuHistory | null = null): void {
    this.series.clear();
    this.end = Math.ceil(now / this.step) * this.step;
    this.samples = 0;
    const start = this.end - this.length * this.step;
    for (const [key, values] of Object.entries(reply.gpus)) {
      const series = this.seriesOf(key);
      for (let i = 0; i < this.length; i++) {
        const at = Math.floor((start + (i + 0.5) * this.step - reply.t) / reply.step);
        series.utilization[i] = values.utilization[at] ?? null;
        series.memory[i] = values.memory[at] ?? null;
        series.jobs[i] = values.jobs[at] ?? null;
      }
      const older = before?.step === this.step ? before.series.get(key) : undefined;
      if (older) this.fill(series, older, Math.round((this.end - before!.end) / this.step));
    }
  }

  /** Add a frame of the stream. */
  add(frame: GpuFrame): void {
    if (this.end === 0) this.end = Math.ceil(frame.t / this.step) * this.step;
    // After a long pause, or a jump of the clock, nothing of the period is known.
    if (frame.t >= this.end + this.length * this.step) this.restart(frame.t);
    while (frame.t >= this.end) this.shift();
    this.samples++;
    for (const [key, utilization, memory, , , , jobs] of frame.g) {
      const series = this.seriesOf(key);
      const last = this.length - 1;
      const before = series.utilization[last];
      if (utilization != null) series.utilization[last] = before == null || this.samples === 1 ? utilization : before + (utilization - before) / this.samples;
      if (memory != null) series.memory[last] = memory;
      series.jobs[last] = jobs[0]?.[0] ?? series.jobs[last] ?? null;
    }
  }

  /** Take what another history knows, shifted by a number of steps. */
  private fill(series: Series, older: Series, shift: number): void {
    for (let i = 0; i < this.length; i++) {
      if (series.utilization[i] !== null || series.jobs[i] !== null) continue;
      series.utilization[i] = older.utilization[i + shift] ?? null;
      series.memory[i] = older.memory[i + shift] ?? null;
      series.jobs[i] = older.jobs[i + shift] ?? null;
    }
  }

  private restart(at: number): void {
    this.end = Math.ceil((at + 1e-3) / this.step) * this.step;
    this.samples = 0;
    this.series.clear();
  }

  private shift(): void {
    this.end += this.step;
    this.samples = 0;
    for (const series of this.series.values())
      for (const list of [series.utilization, series.memory, series.jobs]) {
        list.shift();
        list.push(null);
      }
  }

  private seriesOf(key: string): Series {
    let series = this.series.get(key);
    if (!series) {
      const empty = () => new Array<number | null>(this.length).fill(null);
      series = { utilization: empty(), memory: empty(), jobs: empty() };
      this.series.set(key, series);
    }
    return series;
  }
}

export const COLOURS = 8;

/** Colours 0–7 of the visible owners: kept while visible, else the first that is free, else the least used. */
export function assignColours<K>(before: ReadonlyMap<K, number>, visible: Iterable<K>): Map<K, number> {
  const result = new Map<K, number>();
  const uses = new Array<number>(COLOURS).fill(0);
  const waiting: K[] = [];
  for (const key of visible) {
    const colour = before.get(key);
    if (result.has(key)) continue;
    if (colour === undefined) waiting.push(key);
    else {
      result.set(key, colour);
      uses[colour]!++;
    }
  }
  for (const key of waiting) {
    if (result.has(key)) continue;
    const colour = uses.indexOf(Math.min(...uses));
    result.set(key, colour);
    uses[colour]!++;
  }
  return result;
}

/** GPU-hours held by jobs, and those of them in which the GPU computed nothing. */
export function gpuHours(reply: HistoryReply): { held: number; idle: number } {
  let held = 0;
  let idle = 0;
  for (const { utilization, jobs } of Object.values(reply.gpus))
    for (let i = 0; i < jobs.length; i++) {
      if (jobs[i] == null) continue;
      held++;
      const value = utilization[i];
      if (value != null && value <= 1) idle++;
    }
  return { held: (held * reply.step) / 3600, idle: (idle * reply.step) / 3600 };
}
