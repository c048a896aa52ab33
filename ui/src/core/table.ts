// All jobs as columns of numbers, loaded once and then changed by frames of the live stream.

const CODED = ["name", "user", "queue", "labels", "state", "node", "cause"] as const;
const INTEGERS = ["id", "array", "first", "priority", "sweep", "epochs", "total_epochs", "attempt"] as const;
const NUMBERS = ["gpus", "submitted", "started", "ended", "begin", "limit", "expected"] as const;

type Coded = (typeof CODED)[number];
type Integer = (typeof INTEGERS)[number];
type Numeric = (typeof NUMBERS)[number];

/** One job with plain values, as in the `jobs` frames. */
export type Row = Record<Exclude<Coded, "state">, string | null> & Record<Exclude<Integer, "id">, number | null> &
  Record<Numeric, number | null> & { id: number; state: string; label: string; held: boolean; devices: string[] | null };

export interface ColumnsReply {
  seq: number;
  boot: string;
  now: number;
  total: number;
  counts: Record<string, number>;
  columns: Record<string, unknown[]>;
  dictionary: Record<string, string[]>;
}

export interface JobsFrame {
  seq: number;
  changed?: Row[];
  gone?: number[];
  reorder?: boolean;
  reset?: boolean;
}

/** What a frame did: nothing, changed rows, or `reload`: the columns have to be loaded again. */
export type Applied = "older" | "changed" | "reload";

/** No value in a column of integers. */
export const NONE = -1;

export class JobTable {
  seq = -1;
  /** Number of rows; entries with `alive` 0 were removed. */
  size = 0;
  live = 0;
  alive = new Uint8Array(0);
  held = new Uint8Array(0);
  devices: (string[] | null)[] = [];
  readonly codes = {} as Record<Coded, Int32Array>;
  readonly integers = {} as Record<Integer, Int32Array>;
  readonly numbers = {} as Record<Numeric, Float64Array>;
  readonly words = {} as Record<Coded, string[]>;
  private codeOf = {} as Record<Coded, Map<string, number>>;
  private rows = new Map<number, number>();
  private capacity = 0;

  constructor() {
    this.clear(0);
  }

  private clear(capacity: number): void {
    this.size = this.live = 0;
    this.capacity = capacity;
    this.alive = new Uint8Array(capacity);
    this.held = new Uint8Array(capacity);
    this.devices = [];
    this.rows = new Map();
    for (const name of CODED) {
      this.codes[name] = new Int32Array(capacity).fill(NONE);
      this.words[name] = [];
      this.codeOf[name] = new Map();
    }
    for (const name of INTEGERS) this.integers[name] = new Int32Array(capacity).fill(NONE);
    for (const name of NUMBERS) this.numbers[name] = new Float64Array(capacity).fill(NaN);
  }

  /** Replace everything by the reply of `GET /v1/jobs/columns`. */
  load(reply: ColumnsReply): void {
    const ids = (reply.columns.id ?? []) as number[];
    this.clear(ids.length + 64);
    for (const name of CODED) {
      this.words[name] = [...(reply.dictionary[name] ?? [])];
      this.words[name].forEach((word, code) => this.codeOf[name].set(word, code));
      fill(this.codes[name], reply.columns[name], NONE);
    }
    for (const name of INTEGERS) fill(this.integers[name], reply.columns[name], NONE);
    for (const name of NUMBERS) fill(this.numbers[name], reply.columns[name], NaN);
    const held = reply.columns.held ?? [];
    for (let i = 0; i < held.length; i++) this.held[i] = held[i] ? 1 : 0;
    this.devices = (reply.columns.devices ?? []) as (string[] | null)[];
    for (let i = 0; i < ids.length; i++) this.rows.set(ids[i]!, i);
    this.alive.fill(1, 0, ids.length);
    this.size = this.live = ids.length;
    this.seq = reply.seq;
  }

  /** Apply a frame of the stream; an older one than the columns changes nothing. */
  apply(frame: JobsFrame): Applied {
    if (frame.reset) return frame.seq > this.seq ? "reload" : "older";
    if (frame.seq <= this.seq) return "older";
    this.seq = frame.seq;
    for (const row of frame.changed ?? []) this.put(row);
    for (const id of frame.gone ?? []) this.remove(id);
    // The server's order of pending jobs is that of the columns; only it knows the new one.
    return frame.reorder ? "reload" : "changed";
  }

  private put(row: Row): void {
    let at = this.rows.get(row.id);
    if (at === undefined) {
      at = this.size++;
      if (at >= this.capacity) this.grow();
      this.rows.set(row.id, at);
      this.alive[at] = 1;
      this.live++;
    }
    for (const name of CODED) this.codes[name][at] = this.code(name, row[name] ?? null);
    for (const name of INTEGERS) this.integers[name][at] = row[name] ?? NONE;
    for (const name of NUMBERS) this.numbers[name][at] = row[name] ?? NaN;
    this.held[at] = row.held ? 1 : 0;
    this.devices[at] = row.devices ?? null;
  }

  private remove(id: number): void {
    const at = this.rows.get(id);
    if (at === undefined) return;
    this.rows.delete(id);
    this.alive[at] = 0;
    this.devices[at] = null;
    this.live--;
  }

  private code(name: Coded, word: string | null): number {
    if (word === null) return NONE;
    const known = this.codeOf[name].get(word);
    if (known !== undefined) return known;
    const code = this.words[name].push(word) - 1;
    this.codeOf[name].set(word, code);
    return code;
  }

  private grow(): void {
    this.capacity = Math.max(64, this.capacity * 2);
    const wider = <T extends Uint8Array | Int32Array | Float64Array>(old: T): T => {
      const next = new (old.constructor as new (n: number) => T)(this.capacity);
      next.set(old);
      return next;
    };
    this.alive = wider(this.alive);
    this.held = wider(this.held);
    for (const name of CODED) this.codes[name] = wider(this.codes[name]);
    for (const name of INTEGERS) this.integers[name] = wider(this.integers[name]);
    for (const name of NUMBERS) this.numbers[name] = wider(this.numbers[name]);
  }

  /** Index of a job, or undefined. */
  indexOf(id: number): number | undefined {
    return this.rows.get(id);
  }

  /** A word of a coded column of a row. */
  word(name: Coded, at: number): string | null {
    const code = this.codes[name][at] ?? NONE;
    return code < 0 ? null : (this.words[name][code] ?? null);
  }

  /** What users call the job. */
  label(at: number): string {
    const { id, array, first } = this.integers;
    return array[at] === NONE ? String(id[at]) : `${array[at]}_${id[at]! - array[at]! + first[at]!}`;
  }

  /** The row at an index with plain values. */
  row(at: number): Row {
    const row: Record<string, unknown> = {
      id: this.integers.id[at], label: this.label(at), held: this.held[at] === 1, devices: this.devices[at] ?? null,
    };
    for (const name of CODED) row[name] = this.word(name, at);
    for (const name of INTEGERS.slice(1)) row[name] = this.integers[name][at] === NONE && name !== "priority" ? null : this.integers[name][at];
    for (const name of NUMBERS) row[name] = Number.isNaN(this.numbers[name][at]) ? null : this.numbers[name][at];
    return row as Row;
  }

  /** The row of a job, or null. */
  byId(id: number): Row | null {
    const at = this.rows.get(id);
    return at === undefined ? null : this.row(at);
  }
}

function fill(target: Int32Array | Float64Array, values: unknown[] | undefined, none: number): void {
  if (values) for (let i = 0; i < values.length; i++) target[i] = (values[i] as number | null) ?? none;
}
