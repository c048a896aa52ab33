// The report of a sweep: one file without a daemon, drawn by the modules of the page.

import { signal } from "@preact/signals";
import { render } from "preact";
import { useMemo } from "preact/hooks";
import type { Curve } from "../chart";
import { axesOf, passes, scalesOf, type Brushes } from "../core/axes";
import { count, duration, figure, safe } from "../core/format";
import { applyTheme } from "../prefs";
import { Chart } from "../widgets/chart";
import { Panel } from "../widgets/plain";
import { Scatter } from "../widgets/scatter";
import { Importance, Parallel, shade, TrialTable, type Trial } from "../widgets/trials";
import { reportData } from "./data";
import "../style.css";

interface Report {
  sweep: {
    label: string; name: string; state: string; method: string; metric: string | null; goal: string;
    counts: Record<string, number>; total: number | null; note: string | null; user: string;
  };
  command: string;
  fixed: Record<string, unknown>;
  parameters: Record<string, unknown>;
  importance: [name: string, share: number][];
  /** `counts`: it is compared with others; a trial that failed is not. */
  trials: (Trial & { counts: boolean })[];
  series: Record<string, [step: number | null, value: number | null][]>;
}

const MAX_CURVES = 60;
const data = reportData<Report>();
const trials: Trial[] = data.trials.map((trial) => (trial.counts ? trial : { ...trial, value: null }));
const { metric, goal } = data.sweep;
const sign = goal === "maximize" ? -1 : 1;
const brushes = signal<Brushes>(new Map());
const isLog = signal(false);
const ranked = trials.filter((trial) => trial.value !== null).sort((a, b) => sign * (a.value! - b.value!));

const assigned = (values: Record<string, unknown>): string => Object.entries(values).map(([name, value]) => `${safe(name, 40)}=${typeof value === "number" ? figure(value) : safe(typeof value === "object" ? JSON.stringify(value) : String(value), 60)}`).join("  ");

function Head() {
  const { sweep } = data;
  const best = ranked[0];
  const parts = Object.entries(sweep.counts).filter(([, n]) => n).map(([state, n]) => `${count(n)} ${state}`);
  const spent = trials.reduce((sum, trial) => sum + (trial.elapsed ?? 0), 0);
  return (
    <header class="jobhead">
      <h1><span class="muted">{safe(sweep.label, 40)}</span> {safe(sweep.name, 120)}</h1>
      <p class="headline"><span>{sweep.state.toLowerCase()}</span><span>{parts.join(", ")}{sweep.total ? ` of ${count(sweep.total)}` : ""}</span><span>{safe(sweep.method, 20)}{metric ? `, ${sign < 0 ? "highest" : "lowest"} ${safe(metric, 40)}` : ""}</span><span>{duration(spent)} in all trials</span></p>
      {best ? <p>Best: <b>{figure(best.value!)}</b> by {safe(best.label, 40)}, {assigned(best.params)}</p> : null}
      {sweep.note ? <p class="reason">{safe(sweep.note, 400)}</p> : null}
      <dl class="facts">
        <dt>Command</dt><dd><code>{safe(data.command, 2000)}</code></dd>
        {Object.keys(data.fixed).length ? <><dt>In all trials</dt><dd>{assigned(data.fixed)}</dd></> : null}
      </dl>
    </header>
  );
}

function Curves({ kept }: { kept: Trial[] }) {
  const ranks = new Map(ranked.map((trial, at) => [trial.id, at]));
  const order = [...kept].sort((a, b) => (ranks.get(a.id) ?? Infinity) - (ranks.get(b.id) ?? Infinity));
  const drawn = order.flatMap((trial): Curve[] => {
    const points = (data.series[trial.label] ?? []).filter(([step, value]) => step !== null && value !== null && (!isLog.value || value > 0));
    const place = (ranks.get(trial.id) ?? ranked.length) / Math.max(1, ranked.length - 1);
    return points.length ? [{ label: trial.label, colour: shade(Math.min(1, place)), x: points.map((point) => point[0]!), y: points.map((point) => point[1]) }] : [];
  }).slice(0, MAX_CURVES);
  if (!drawn.length) return null;
  // The best is drawn last, above all others.
  return (
    <Panel title="Learning curves" more={<label class="toggle"><input type="checkbox" checked={isLog.value} onChange={() => (isLog.value = !isLog.value)} /> log</label>}>
      <Chart key={String(isLog.value)} title={`${metric ?? ""}${drawn.length === MAX_CURVES ? `, the best ${MAX_CURVES}` : ""}`} series={drawn.reverse()} height={280} isLog={isLog.value} hasLegend={drawn.length <= 5} />
    </Panel>
  );
}

function Page() {
  const axes = useMemo(() => axesOf(trials, metric, scalesOf({ parameters: data.parameters })), []);
  const kept = trials.filter((trial) => passes(trial, axes, brushes.value));
  return (
    <>
      <Head />
      <Parallel trials={trials} axes={axes} brushes={brushes.value} sign={sign} onBrush={(next) => (brushes.value = next)} />
      <div class="split"><Curves kept={kept} /><div><Importance metric={metric} shares={data.importance} /><Scatter trials={kept} axes={axes} sign={sign} /></div></div>
      <TrialTable metric={metric} trials={kept} axes={axes} total={trials.length} isBrushed={brushes.value.size > 0} sign={sign} onClear={() => (brushes.value = new Map())} link={(trial) => <b>{safe(trial.label, 40)}</b>} />
    </>
  );
}

applyTheme();
render(<Page />, document.getElementById("report")!);
