// The Gantt chart of a simulated cluster: which job held which part of which GPU, and when.

/** Segments by column; begins as differences, times in ticks. */
export interface SegmentColumns {
  job: number[];
  row: number[];
  gpu: number[];
  gpus: number[];
  begin: number[];
  long: number[];
  /** Segments that go on after the end of the chart. */
  on: number[];
}

export interface Segment {
  job: number;
  /** The machine, and its first GPU that is held. */
  row: number;
  gpu: number;
  gpus: number;
  begin: number;
  end: number;
  isOpen: boolean;
  /** The part of the height of its GPUs: jobs that share a GPU are stacked. */
  from: number;
  to: number;
}

/** Segments from their columns, with those that share GPUs beside each other. */
export function segmentsOf(columns: SegmentColumns): Segment[] {
  let at = 0;
  const open = new Set(columns.on);
  const segments = columns.job.map((job, i): Segment => {
    at += columns.begin[i]!;
    return { job, row: columns.row[i]!, gpu: columns.gpu[i]!, gpus: columns.gpus[i]!, begin: at, end: at + columns.long[i]!, isOpen: open.has(i), from: 0, to: 1 };
  });
  const lanes = new Map<string, Segment[]>();
  for (const segment of segments) {
    const lane = `${segment.row}/${segment.gpu}`;
    const beside = (lanes.get(lane) ?? []).filter((each) => each.end > segment.begin);
    lanes.set(lane, beside);
    stack(segment, beside);
    beside.push(segment);
  }
  return segments;
}

function stack(segment: Segment, beside: Segment[]): void {
  if (segment.gpus < 1) {
    // Parts of a GPU: in the lowest gap that is large enough.
    for (const each of beside.sort((a, b) => a.from - b.from)) if (each.from < segment.from + segment.gpus - 1e-6) segment.from = Math.max(segment.from, each.to);
    segment.from = Math.min(segment.from, 1 - segment.gpus);
    segment.to = segment.from + segment.gpus;
    return;
  }
  // Two jobs share whole GPUs: half the height each.
  const other = beside.at(-1);
  if (!other || other.gpus < 1) return;
  [other.from, other.to] = other.from ? [0.5, 1] : [0, 0.5];
  [segment.from, segment.to] = other.from ? [0, 0.5] : [0.5, 1];
}

/** Where the machines of a chart are: their rows have equal heights per GPU. */
export interface Rows {
  sizes: readonly number[];
  lane: number;
  gap: number;
  /** The top of each row, and below the last. */
  tops: number[];
}

export function rowsOf(sizes: readonly number[]): Rows {
  const lanes = sizes.reduce((sum, size) => sum + size, 0);
  const lane = Math.max(4, Math.min(16, Math.floor(560 / lanes)));
  const gap = lane > 7 ? 4 : 2;
  const tops = [4];
  for (const size of sizes) tops.push(tops.at(-1)! + size * lane + gap);
  return { sizes, lane, gap, tops };
}

/** Top and height of a segment. */
export function placeOf(segment: Segment, { sizes, lane, tops }: Rows): [top: number, height: number] {
  const high = segment.gpus < 1 ? lane : Math.min(segment.gpus, sizes[segment.row]! - segment.gpu) * lane;
  return [tops[segment.row]! + segment.gpu * lane + segment.from * high, (segment.to - segment.from) * high];
}

/** The segment at a time and height, or the nearest within `slack`. */
export function segmentAt(segments: readonly Segment[], rows: Rows, at: number, y: number, slack: number): Segment | null {
  let best: Segment | null = null;
  let nearest = slack;
  for (const segment of segments) {
    const off = Math.max(segment.begin - at, at - segment.end, 0);
    if (off > nearest || (best && off === nearest)) continue;
    const [top, height] = placeOf(segment, rows);
    if (y >= top && y < top + height) [best, nearest] = [segment, off];
  }
  return best;
}

/** The next segment of the same GPU (`along`), or the nearest in time of the next GPU (`down`). */
export function neighbour(segments: readonly Segment[], rows: Rows, here: Segment, along: number, down: number): Segment | null {
  const lane = (segment: Segment) => rows.tops[segment.row]! + segment.gpu * rows.lane;
  const there = segments.filter((segment) => (along ? lane(segment) === lane(here) && (segment.begin - here.begin) * along > 0 : (lane(segment) - lane(here)) * down > 0));
  const far = (segment: Segment) => (along ? 0 : Math.abs(lane(segment) - lane(here)) * 1e9) + Math.abs(segment.begin - here.begin);
  return there.reduce<Segment | null>((best, each) => (best === null || far(each) < far(best) ? each : best), null);
}
