// Curves of a job: what it reports, and how its GPUs were used.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { JobView, MetricsReply } from "../api";
import type { Curve } from "../chart";
import { duration, exact, figure, memory, unix } from "../core/format";
import type { HistoryReply } from "../core/gpus";
import { groupOf } from "../core/states";
import { get, withQuery } from "../net/api";
import { isLive } from "../net/live";
import { paint } from "../palette";
import { setParameters, parameter } from "../route";
import { Chart } from "../widgets/chart";

function smooth(values: (number | null)[], weight: number): (number | null)[] {
  let mean: number | null = null;
  return values.map((value) => (value == null ? null : (mean = mean === null ? value : weight * mean + (1 - weight) * value)));
}

export function Metrics({ job }: { job: JobView }) {
  const replies = useSignal<MetricsReply[]>([]);
  const isLog = useSignal(false);
  const isTime = useSignal(false);
  const weight = useSignal(0);
  const others = parameter("vs");
  const isRunning = groupOf(job.state) === "running";
  useEffect(() => {
    let isGone = false;
    const load = async () => {
      const ids = [String(job.id), ...others.split(",").filter(Boolean).slice(0, 4)];
      const got = await Promise.allSettled(ids.map((id) => get<MetricsReply>(withQuery(`jobs/${encodeURIComponent(exact(id))}/metrics`, { points: 600 }))));
      if (!isGone) replies.value = got.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
    };
    void load();
    const timer = isRunning ? window.setInterval(load, 10_000) : 0;
    return () => ((isGone = true), window.clearInterval(timer));
  }, [job.id, job.attempt, others, isRunning, isLive.value]);
  const names = [...new Set(replies.value.flatMap((reply) => Object.keys(reply.series)))].slice(0, 24);
  if (!names.length) return null;
  return (
    <section class="panel">
      <header>
        <h2>Curves</h2>
        <span class="more">
          <label class="toggle"><input type="checkbox" checked={isLog.value} onChange={() => (isLog.value = !isLog.value)} /> log</label>
          <label class="toggle"><input type="checkbox" checked={isTime.value} onChange={() => (isTime.value = !isTime.value)} /> by time</label>
          <label class="toggle">smooth <input type="range" min="0" max="0.98" step="0.02" value={weight.value} onInput={(event) => (weight.value = Number(event.currentTarget.value))} /></label>
          <label class="toggle">compare <input class="short" type="text" inputMode="numeric" placeholder="job" defaultValue={others} onChange={(event) => setParameters({ vs: event.currentTarget.value.replace(/[^\d_,]/g, "") })} /></label>
        </span>
      </header>
      <div class="charts">
        {names.map((name) => {
          const series = replies.value.flatMap((reply, at): Curve[] => {
            const points = reply.series[name] ?? [];
            const kept = isLog.value ? points.filter((point) => (point[1] ?? 0) > 0) : points;
            const pairs = kept.map((point): [number, number | null] => [point[isTime.value ? 2 : 0] ?? 0, point[1] ?? null]).sort((a, b) => a[0] - b[0]);
            return pairs.length ? [{ label: `job ${reply.label}`, colour: paint(at), x: pairs.map((pair) => pair[0]), y: smooth(pairs.map((pair) => pair[1]), weight.value) }] : [];
          });
          return <Chart key={`${name}${weight.value}`} title={name} series={series} isLog={isLog.value} isTime={isTime.value} />;
        })}
      </div>
    </section>
  );
}

interface Usage {
  gpu_seconds: number;
  busy_gpu_seconds: number;
  energy_joules: number | null;
  utilization: number | null;
  memory_peak: number | null;
  measured_seconds: number;
  cpu_seconds: number | null;
  rss_peak: number | null;
}

export function Use({ job }: { job: JobView }) {
  const usage = useSignal<Usage | null>(null);
  const reply = useSignal<HistoryReply | null>(null);
  const isRunning = groupOf(job.state) === "running";
  const isOver = !isRunning && job.started_at !== null && job.ended_at !== null;
  useEffect(() => {
    if (!isRunning && !isOver) return;
    let isGone = false;
    const load = async () => {
      const start = unix(job.started_at);
      const minutes = Math.min(20160, Math.max(5, (Date.now() / 1000 - start) / 60));
      const step = minutes <= 10 ? 4 : minutes <= 360 ? Math.max(30, Math.ceil((minutes * 60) / 300 / 30) * 30) : 600;
      const gpu = (job.devices.gpu ?? []).map((id) => `${job.node}/${id}`);
      const [used, past] = await Promise.allSettled([
        get<{ total: Usage }>(`jobs/${exact(job.id)}/usage`),
        gpu.length ? get<HistoryReply>(withQuery("gpus/history", { minutes: Math.ceil(minutes), step, gpu })) : Promise.reject(new Error("no GPU")),
      ]);
      if (isGone) return;
      if (used.status === "fulfilled") usage.value = used.value.total;
      if (past.status === "fulfilled") reply.value = past.value;
    };
    void load();
    const timer = isRunning ? window.setInterval(load, 15_000) : 0;
    return () => ((isGone = true), window.clearInterval(timer));
  }, [job.id, job.attempt, job.state, isLive.value]);
  const used = usage.value;
  if (!used?.gpu_seconds && used?.rss_peak == null && !reply.value) return null;
  const past = reply.value;
  const of = (field: "utilization" | "memory"): Curve[] =>
    Object.entries(past?.gpus ?? {}).flatMap(([key, values], at): Curve[] => {
      const indices = values.jobs.flatMap((id, i) => (id === job.id ? [i] : []));
      return indices.length > 1 ? [{ label: `GPU ${key.split("/").pop()}`, colour: paint(at), x: indices.map((i) => past!.t + i * past!.step), y: indices.map((i) => values[field][i] ?? null) }] : [];
    });
  const utilization = of("utilization");
  const memories = of("memory");
  return (
    <section class="panel">
      <header><h2>Use</h2></header>
      {used?.rss_peak == null ? null : (
        <dl class="facts">
          <dt>CPU time</dt><dd>{duration(used.cpu_seconds)}</dd>
          <dt>largest process</dt><dd>{memory(used.rss_peak)}</dd>
        </dl>
      )}
      {used?.gpu_seconds ? (
        <dl class="facts">
          <dt>GPU-hours</dt><dd>{figure(used.gpu_seconds / 3600)}</dd>
          <dt>of them busy</dt><dd>{used.measured_seconds ? `${figure(used.busy_gpu_seconds / 3600)} (${Math.round((100 * used.busy_gpu_seconds) / used.measured_seconds)} %)` : "not measured"}</dd>
          <dt>mean utilisation</dt><dd>{used.utilization == null ? "–" : `${Math.round(used.utilization)} %`}</dd>
          <dt>peak memory</dt><dd>{memory(used.memory_peak)}</dd>
          <dt>energy</dt><dd>{used.energy_joules == null ? "–" : `${figure(used.energy_joules / 3.6e6)} kWh`}</dd>
        </dl>
      ) : null}
      <div class="charts">
        {utilization.length ? <Chart title="utilisation, %" series={utilization} isTime range={[0, 100]} height={120} /> : null}
        {memories.length ? <Chart title="memory" series={memories} isTime format={memory} height={120} /> : null}
      </div>
    </section>
  );
}
