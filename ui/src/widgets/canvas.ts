// The canvases of all strips: drawn together, at most once per frame, and only where it can be seen.

import { effect, signal } from "@preact/signals";
import { assignColours, barAt, type GpuHistory, type GpuSample, type Series, stepsPerBar } from "../core/gpus";
import { history, samples, table, tick } from "../net/live";
import { paint } from "../palette";
import { colourBy, isDark } from "../prefs";

const colours = signal<ReadonlyMap<string, number>>(new Map());

/** What a job's colour stands for: the job or its user. */
const ownerOf = (id: number) => (colourBy.value === "user" ? (table.byId(id)?.user ?? "") : String(id));

/** Give colours to the jobs on the GPUs that are shown; jobs that stay keep theirs. */
export function updateColours(): void {
  const visible: string[] = [];
  for (const sample of samples.value.values()) for (const job of sample[6]) visible.push(ownerOf(job[0]));
  const next = assignColours(colours.peek(), visible);
  const isSame = next.size === colours.peek().size && [...next].every(([key, colour]) => colours.peek().get(key) === colour);
  if (!isSame) colours.value = next;
}

export function colourOf(id: number): string | null {
  const colour = colours.value.get(ownerOf(id));
  return colour === undefined ? null : paint(colour);
}

/** A canvas of a GPU, and what it shows. */
interface Drawn {
  key: string;
  /** Memory of the GPU. */
  total: number | null;
  width: number;
  height: number;
  isVisible: boolean;
  /** What was drawn; empty if that is out of date. */
  looks: string;
}

type Inks = ReturnType<typeof inksNow>;

function inksNow() {
  const style = getComputedStyle(document.documentElement);
  return { past: style.getPropertyValue("--bar-past"), foreign: style.getPropertyValue("--bar-foreign"), line: style.getPropertyValue("--line") };
}

const MIN_BAR_PIXELS = 2;
/** A bar whose height changes by less is not drawn again before the next one begins. */
const VISIBLE_PIXELS = 2;
/** From this height on there is a line of the memory. */
const LINE_PIXELS = 30;

const shown = new Map<Element, Drawn>();
let frame = 0;

const later = (): void => {
  frame ||= requestAnimationFrame(drawAll);
};

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) Object.assign(shown.get(target) ?? {}, { width: contentRect.width, height: contentRect.height, looks: "" });
  later();
});

const visibility = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) Object.assign(shown.get(target) ?? {}, { isVisible: isIntersecting });
  later();
});

effect(() => {
  colours.value;
  isDark.value;
  for (const drawn of shown.values()) drawn.looks = "";
  later();
});

effect(() => {
  for (const source of [tick, history, samples]) source.value;
  if (shown.size) later();
});

/** Draw the strip of a GPU on a canvas whenever it changes; the result ends that. */
export function keepDrawn(canvas: HTMLCanvasElement, key: string, total: number | null): () => void {
  shown.set(canvas, { key, total, width: 0, height: 0, isVisible: false, looks: "" });
  sizes.observe(canvas);
  visibility.observe(canvas);
  return () => {
    shown.delete(canvas);
    sizes.unobserve(canvas);
    visibility.unobserve(canvas);
  };
}

function drawAll(): void {
  frame = 0;
  const made = history.peek();
  if (!made) return;
  const scale = window.devicePixelRatio || 1;
  let inks: Inks | null = null;
  for (const [canvas, drawn] of shown) {
    const series = made.series.get(drawn.key);
    if (!drawn.isVisible || !drawn.width || !series) continue;
    const sample = samples.peek().get(drawn.key);
    const bars = barsOf(made, series, drawn);
    const { value, job } = bars.at(0);
    const [, , , , , state, jobs = []] = sample ?? [];
    // Painting costs more than all else of a page with many GPUs: only when it makes a difference.
    const looks = [made.serial, bars.last, Math.round(((value ?? -10) / 100) * drawn.height / VISIBLE_PIXELS), job, state, drawn.width, jobs.map(([id, share]) => `${id} ${share}`)].join();
    if (looks === drawn.looks) continue;
    drawn.looks = looks;
    draw(canvas as HTMLCanvasElement, drawn, series, bars, sample, (inks ??= inksNow()), scale);
  }
}

/** The bars of a strip, counted from the newest; with several steps in each they move only when one is complete. */
function barsOf(made: GpuHistory, series: Series, { width }: Drawn) {
  const each = stepsPerBar(made.length, Math.max(1, Math.floor(width / MIN_BAR_PIXELS)));
  const last = Math.floor((made.end / made.step - 1) / each);
  const start = made.length - made.end / made.step;
  return { last, count: Math.floor(made.length / each), at: (back: number) => barAt(series, start + (last - back) * each, Math.min(made.length, start + (last - back + 1) * each)) };
}

function draw(canvas: HTMLCanvasElement, drawn: Drawn, series: Series, bars: ReturnType<typeof barsOf>, sample: GpuSample | undefined, inks: Inks, scale: number): void {
  const width = Math.round(drawn.width * scale);
  const height = Math.round(drawn.height * scale);
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d")!;
  context.clearRect(0, 0, width, height);
  const thin = Math.max(1, Math.round(1.5 * scale));
  const step = width / bars.count;
  for (let i = 0; i < bars.count; i++) {
    const { value, job } = bars.at(bars.count - 1 - i);
    if (value === null && job === null) continue;
    const left = Math.round(i * step);
    const w = Math.max(1, Math.round((i + 1) * step) - left - (step > 3 * scale ? 1 : 0));
    const h = Math.max(thin, Math.round(((value ?? 0) / 100) * height));
    context.fillStyle = job === null ? ((value ?? 0) > 3 ? inks.foreign : inks.past) : (colourOf(job) ?? inks.past);
    context.globalAlpha = job === null && (value ?? 0) <= 3 ? 0.6 : 1;
    context.fillRect(left, height - h, w, h);
  }
  context.globalAlpha = 1;
  slices(context, sample?.[6] ?? [], width, height, scale);
  if (sample?.[5] === "foreign") hatch(context, width, height, scale, inks.foreign);
  if (drawn.total && drawn.height > LINE_PIXELS) memoryLine(context, series, drawn.total, width, height, scale, inks.line);
}

function memoryLine(context: CanvasRenderingContext2D, series: Series, total: number, width: number, height: number, scale: number, colour: string): void {
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1, scale);
  context.beginPath();
  let isDown = false;
  for (const [i, used] of series.memory.entries()) {
    if (used == null) {
      isDown = false;
      continue;
    }
    const x = ((i + 0.5) * width) / series.memory.length;
    const y = height - 1 - (Math.min(1, used / total) * (height - 2));
    isDown ? context.lineTo(x, y) : context.moveTo(x, y);
    isDown = true;
  }
  context.stroke();
}

/** The parts of a GPU that its jobs hold now, above each other at the right edge. */
function slices(context: CanvasRenderingContext2D, jobs: GpuSample[6], width: number, height: number, scale: number): void {
  if (jobs.length < 2) return;
  const wide = Math.min(10 * scale, width / 8);
  let top = height;
  const whole = Math.max(1, jobs.reduce((sum, job) => sum + Number(job[1]), 0));
  context.clearRect(width - wide, 0, wide, height);
  for (const [id, share] of jobs) {
    const part = Math.round((height * Number(share)) / whole);
    top -= part;
    context.fillStyle = colourOf(id) ?? "gray";
    context.fillRect(width - wide + scale, top, wide - scale, part - scale);
  }
}

function hatch(context: CanvasRenderingContext2D, width: number, height: number, scale: number, colour: string): void {
  context.strokeStyle = colour;
  context.globalAlpha = 0.45;
  context.lineWidth = scale;
  context.beginPath();
  for (let x = -height; x < width; x += 7 * scale) {
    context.moveTo(x, height);
    context.lineTo(x + height, 0);
  }
  context.stroke();
  context.globalAlpha = 1;
}
