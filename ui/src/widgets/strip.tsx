// A GPU over time: bars of utilisation in the colour of the job that held it, memory as a line.

import { effect, signal, useComputed } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { GpuView } from "../api";
import { clock, duration, memory, memoryOf, safe } from "../core/format";
import { assignColours, type GpuSample, type Series } from "../core/gpus";
import { alarms, history, isStale, now, samples, table, tick, version } from "../net/live";
import { paint } from "../palette";
import { colourBy, isDark, zone } from "../prefs";
import { go, jobPath } from "../route";
import { JobLink, Ticking } from "./bits";
import { Name } from "./plain";

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

export function Swatch({ id }: { id: number }) {
  return <span class="swatch" style={{ background: colourOf(id) ?? "var(--muted)" }} aria-hidden="true" />;
}

/** The bars of a series; the newest at the right edge. */
function draw(canvas: HTMLCanvasElement, series: Series | undefined, total: number | null, sample: GpuSample | undefined): void {
  const scale = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * scale);
  const height = Math.round(canvas.clientHeight * scale);
  if (!width || !height) return;
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d")!;
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  const past = style.getPropertyValue("--bar-past");
  const foreign = style.getPropertyValue("--bar-foreign");
  const thin = Math.max(1, Math.round(1.5 * scale));
  if (!series) return;
  const n = series.utilization.length;
  const step = width / n;
  for (let i = 0; i < n; i++) {
    const value = series.utilization[i];
    const job = series.jobs[i];
    if (value == null && job == null) continue;
    const left = Math.round(i * step);
    const w = Math.max(1, Math.round((i + 1) * step) - left - (step > 3 * scale ? 1 : 0));
    const h = Math.max(thin, Math.round(((value ?? 0) / 100) * height));
    context.fillStyle = job == null ? ((value ?? 0) > 3 ? foreign : past) : (colourOf(job) ?? past);
    context.globalAlpha = job == null && (value ?? 0) <= 3 ? 0.6 : 1;
    context.fillRect(left, height - h, w, h);
  }
  context.globalAlpha = 1;
  slices(context, sample?.[6] ?? [], width, height, scale);
  if (sample?.[5] === "foreign") hatch(context, width, height, scale, foreign);
  if (total && height > 30 * scale) {
    context.strokeStyle = style.getPropertyValue("--line");
    context.lineWidth = Math.max(1, scale);
    context.beginPath();
    let isDown = false;
    for (let i = 0; i < n; i++) {
      const used = series.memory[i];
      if (used == null) {
        isDown = false;
        continue;
      }
      const x = (i + 0.5) * step;
      const y = height - 1 - (Math.min(1, used / total) * (height - 2));
      isDown ? context.lineTo(x, y) : context.moveTo(x, y);
      isDown = true;
    }
    context.stroke();
  }
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

function Canvas({ gpu }: { gpu: GpuView }) {
  const ref = useRef<HTMLCanvasElement>(null);
  const key = `${gpu.node}/${gpu.id}`;
  useEffect(() => {
    let frame = 0;
    const later = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => ref.current && draw(ref.current, history.peek()?.series.get(key), gpu.memory, samples.peek().get(key)));
    };
    // Painting costs more than all else of a page with many GPUs: only when it makes a difference.
    let drawn = "";
    const stop = effect(() => {
      tick.value;
      const made = history.value;
      const series = made?.series.get(key);
      const last = Math.round((series?.utilization.at(-1) ?? -5) / 5);
      const job = series?.jobs.at(-1);
      const state = [made?.serial, made?.end, last, job, samples.value.get(key)?.slice(5), [job, ...(samples.value.get(key)?.[6] ?? []).map(([id]) => id)].map((id) => id && colourOf(id)), isDark.value, colourBy.value].join();
      if (state !== drawn) later();
      drawn = state;
    });
    const watch = new ResizeObserver(later);
    watch.observe(ref.current!);
    return () => (stop(), watch.disconnect(), cancelAnimationFrame(frame));
  }, [key, gpu.memory]);
  /** What a position of the pointer stands for. */
  const under = (event: MouseEvent): { at: number; job: number | null; utilization: number | null; memory: number | null } | null => {
    const made = history.peek();
    const series = made?.series.get(key);
    if (!made || !series) return null;
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const i = Math.min(made.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * made.length)));
    return { at: made.end - (made.length - i) * made.step, job: series.jobs[i] ?? null, utilization: series.utilization[i] ?? null, memory: series.memory[i] ?? null };
  };
  const describe = (event: MouseEvent) => {
    const found = under(event);
    const canvas = event.currentTarget as HTMLElement;
    if (!found) return;
    const job = found.job === null ? "no job" : `job ${table.byId(found.job)?.label ?? found.job} ${safe(table.byId(found.job)?.name ?? "", 60)}`;
    const value = found.utilization === null ? "not measured" : `${Math.round(found.utilization)} %`;
    canvas.title = `${clock(found.at, now.peek(), zone.value === "utc")}  ${value}  ${found.memory === null ? "" : memory(found.memory)}  ${job}`;
  };
  const follow = (event: MouseEvent) => {
    const found = under(event);
    if (found?.job != null) go(jobPath(found.job).slice(2));
  };
  return <canvas ref={ref} aria-hidden="true" onMouseMove={describe} onClick={follow} />;
}

const percent = (value: number | null | undefined) => (value == null ? "–" : `${Math.round(value)} %`);

/** What the GPU does, in words. */
function Holder({ gpu, sample }: { gpu: GpuView; sample: GpuSample | undefined }) {
  const state = sample?.[5] ?? gpu.state;
  const jobs = sample?.[6] ?? [];
  if (jobs.length === 0) {
    const other = gpu.foreign_process ? safe(gpu.foreign_process, 80) : "";
    const word = state === "drained" && gpu.drained ? `drained: ${safe(gpu.drained, 60)}` : state === "foreign" ? `used by ${other || "another process"}` : other ? `${state}: ${other}` : state;
    return <span class={`holder none ${state}`}>{word}</span>;
  }
  return (
    <span class="holder">
      {jobs.slice(0, 4).map(([id, share]) => {
        const row = table.byId(id);
        const known = gpu.jobs.find((job) => job.id === id);
        return (
          <span class="held" key={id}>
            <Swatch id={id} />
            <JobLink id={id} label={row?.label ?? known?.label ?? String(id)} name={row?.name ?? known?.name ?? ""} />
            {jobs.length > 1 || share !== "1" ? <span class="muted">{share}</span> : null}
          </span>
        );
      })}
      {jobs.length > 4 ? <span class="muted">+{jobs.length - 4}</span> : null}
    </span>
  );
}

function times(id: number): string {
  version.value;
  const row = table.byId(id);
  if (!row?.started) return "";
  const elapsed = duration(now.value - row.started);
  if (row.expected) return `${elapsed} · ~${duration(row.expected - now.value)} left`;
  return row.limit ? `${elapsed} of ${duration(row.limit)}` : elapsed;
}

/** Whether there is an alarm about this GPU, or about the job on it. */
const hasAlarm = (gpu: GpuView, job: number | undefined): boolean =>
  alarms.value.some((alarm) => (alarm.gpu === null ? alarm.job !== null && alarm.job === job : [gpu.id, gpu.uuid, `${gpu.node}/${gpu.id}`].includes(alarm.gpu) && (alarm.node ?? gpu.node) === gpu.node));

export function Strip({ gpu }: { gpu: GpuView }) {
  version.value;
  const sample = useComputed(() => samples.value.get(`${gpu.node}/${gpu.id}`)).value;
  const [, utilization, used, temperature, power, state, jobs] = sample ?? [];
  const first = jobs?.[0]?.[0];
  const user = first === undefined ? "" : (table.byId(first)?.user ?? gpu.jobs[0]?.user ?? "");
  const isIdle = !!jobs?.length && utilization != null && utilization < 1;
  return (
    <article class={`strip ${state ?? gpu.state}${hasAlarm(gpu, first) ? " alarm" : ""}`} aria-label={`GPU ${gpu.id} of ${gpu.node}`}>
      <div class="line">
        <Holder gpu={gpu} sample={sample} />
        <span class="who">
          {user ? <><Name text={user} limit={20} /> · </> : null}
          {first === undefined ? null : <Ticking key={first} text={() => times(first)} />}
        </span>
      </div>
      <Canvas gpu={gpu} />
      <div class="line foot">
        <span class="gpuname" title={gpu.uuid ?? undefined}>GPU {gpu.id} <span class="muted">{safe((gpu.model ?? "").replace(/^NVIDIA (GeForce )?/, ""), 40)}</span></span>
        <span class="figures">
          {isStale.value ? <b>–</b> : isIdle ? <em class="idle" title="0 %">idle</em> : <b>{percent(utilization)}</b>}
          <span>{memoryOf(used, gpu.memory)}</span>
          <span>{temperature == null ? "" : `${Math.round(temperature)} °C`}</span>
          <span>{power == null ? "" : `${Math.round(power)} W`}</span>
        </span>
      </div>
    </article>
  );
}

/** One line of 16 px, for many GPUs. */
export function StripLine({ gpu }: { gpu: GpuView }) {
  version.value;
  const sample = useComputed(() => samples.value.get(`${gpu.node}/${gpu.id}`)).value;
  const [, utilization, used, , , state, jobs] = sample ?? [];
  const first = jobs?.[0]?.[0];
  const row = first === undefined ? null : table.byId(first);
  const text = first === undefined ? (state ?? gpu.state) : `${row?.label ?? first} ${safe(row?.name ?? "", 40)}`;
  const title = `GPU ${gpu.id} of ${gpu.node}: ${percent(utilization)}, ${memory(used)}, ${text}${row?.user ? `, ${safe(row.user, 30)}` : ""}`;
  return (
    <div class={`stripline ${state ?? gpu.state}${hasAlarm(gpu, first) ? " alarm" : ""}`} title={title}>
      <span class="no">{gpu.id}</span>
      <Canvas gpu={gpu} />
      <span class={jobs?.length && utilization != null && utilization < 1 ? "util idle" : "util"}>{utilization == null || isStale.value ? "–" : Math.round(utilization)}</span>
      {first === undefined ? <span class="muted">{text}</span> : <a href={jobPath(first)} style={{ color: "inherit" }}><Swatch id={first} />{text}</a>}
    </div>
  );
}
