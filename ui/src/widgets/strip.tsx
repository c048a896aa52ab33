// A GPU over time: bars of utilisation in the colour of the job that held it, memory as a line.

import { useComputed } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { GpuView } from "../api";
import { clock, duration, memory, memoryOf, safe } from "../core/format";
import type { GpuSample } from "../core/gpus";
import { alarms, history, isStale, now, samples, table, version } from "../net/live";
import { zone } from "../prefs";
import { go, jobPath } from "../route";
import { JobLink, Ticking } from "./bits";
import { colourOf, keepDrawn } from "./canvas";
import { Name } from "./plain";

export function Swatch({ id }: { id: number }) {
  return <span class="swatch" style={{ background: colourOf(id) ?? "var(--muted)" }} aria-hidden="true" />;
}

function Canvas({ gpu }: { gpu: GpuView }) {
  const ref = useRef<HTMLCanvasElement>(null);
  const key = `${gpu.node}/${gpu.id}`;
  useEffect(() => keepDrawn(ref.current!, key, gpu.memory), [key, gpu.memory]);
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

/** One line of 16 px, for many GPUs: what changes with every frame is set without rendering the line. */
export function StripLine({ gpu }: { gpu: GpuView }) {
  const key = `${gpu.node}/${gpu.id}`;
  const sample = useComputed(() => samples.value.get(key));
  const utilization = useComputed(() => (sample.value?.[1] == null || isStale.value ? "–" : String(Math.round(sample.value[1]))));
  const kind = useComputed(() => (sample.value?.[6].length && sample.value[1] != null && sample.value[1] < 1 ? "util idle" : "util"));
  const holder = useComputed(() => sample.value?.[6][0]?.[0]);
  const doing = useComputed(() => sample.value?.[5] ?? gpu.state);
  const text = useComputed(() => {
    version.value;
    if (holder.value === undefined) return doing.value;
    const row = table.byId(holder.value);
    return `${row?.label ?? holder.value} ${safe(row?.name ?? "", 40)}`;
  });
  const first = holder.value;
  const describe = (event: MouseEvent) => {
    const user = first === undefined ? "" : (table.byId(first)?.user ?? "");
    (event.currentTarget as HTMLElement).title = `GPU ${gpu.id} of ${gpu.node}: ${percent(sample.peek()?.[1])}, ${memory(sample.peek()?.[2])}, ${text.peek()}${user ? `, ${safe(user, 30)}` : ""}`;
  };
  return (
    <div class={`stripline ${doing.value}${hasAlarm(gpu, first) ? " alarm" : ""}`} onMouseEnter={describe}>
      <span class="no">{gpu.id}</span>
      <Canvas gpu={gpu} />
      <span class={kind}>{utilization}</span>
      {first === undefined ? <span class="muted">{text}</span> : <a href={jobPath(first)} style={{ color: "inherit" }}><Swatch id={first} />{text}</a>}
    </div>
  );
}
