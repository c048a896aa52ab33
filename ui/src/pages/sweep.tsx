// Sweeps: their list, and of one its trials as parallel coordinates, table and curves, linked.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { act, actOn, changeSweep } from "../actions";
import type { MetricsReply, SweepDetail, SweepList, SweepView, TrialView } from "../api";
import type { Curve } from "../chart";
import { axesOf, passes, rungsOf, scalesOf, type Brushes } from "../core/axes";
import { importance } from "../core/importance";
import { count, duration, exact, figure, plural, safe, unix } from "../core/format";
import { groupOf } from "../core/states";
import { ApiError, get, withQuery } from "../net/api";
import { isLive, isStale, mayAct, sweeps, version } from "../net/live";
import { paint } from "../palette";
import { go, route } from "../route";
import { At, JobLink } from "../widgets/bits";
import { Chart } from "../widgets/chart";
import { Empty, Name, Panel, Progress } from "../widgets/plain";
import { Scatter } from "../widgets/scatter";
import { hovered, Importance, Parallel, TrialTable } from "../widgets/trials";

const MAX_CURVES = 5;
/** Trials whose metrics are asked for when another value is chosen, four at a time. */
const MAX_VALUES = 500;
const AT_ONCE = 4;
const SUMMARIES = ["last", "min", "max"] as const;

export function Sweeps() {
  const all = useSignal<SweepView[]>([]);
  const open = sweeps.value;
  useEffect(() => {
    get<SweepList>("sweeps?all=1").then((reply) => (all.value = reply.sweeps), () => {});
  }, [open, isLive.value]);
  // The open ones are current; the others do not change.
  const list = [...open, ...all.value.filter((sweep) => !open.some((one) => one.id === sweep.id))].sort((a, b) => b.id - a.id).slice(0, 500);
  return (
    <section class="panel">
      <header><h1 class="title">Sweeps</h1></header>
      {list.length === 0 ? <Empty>No sweep. <code>stoker sweep --gpus 1 python train.py lr=0.1,0.01</code> starts one.</Empty> : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Sweeps">
          <table>
            <thead><tr><th>sweep</th><th>state</th><th>trials</th><th>best</th><th>ends</th><th>user</th></tr></thead>
            <tbody>
              {list.map((sweep) => (
                <tr key={sweep.id}>
                  <td><a href={`#/s/${sweep.id}`} data-nav><b>{sweep.label}</b> <Name text={sweep.name} /></a></td>
                  <td>{sweep.state.toLowerCase()}</td>
                  <td><Tally sweep={sweep} /></td>
                  <td>{sweep.best?.value == null ? "–" : `${safe(sweep.metric ?? "value", 30)} ${figure(sweep.best.value)}`}</td>
                  <td><At time={sweep.eta ? unix(sweep.eta) : null} /></td>
                  <td><Name text={sweep.user} limit={24} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Tally({ sweep }: { sweep: SweepView }) {
  const ended = (sweep.counts.done ?? 0) + (sweep.counts.stopped ?? 0) + (sweep.counts.failed ?? 0) + (sweep.counts.cancelled ?? 0);
  const parts = Object.entries(sweep.counts).filter(([, n]) => n).map(([state, n]) => `${count(n)} ${state}`);
  return <><Progress done={ended} total={sweep.total ?? (sweep.issued || 1)} label="trials" /> {parts.join(", ") || "none yet"}</>;
}

export function Sweep() {
  const id = route.value.argument;
  const detail = useSignal<SweepDetail | null>(null);
  const problem = useSignal("");
  const brushes = useSignal<Brushes>(new Map());
  const changes = sweeps.value.find((sweep) => String(sweep.id) === id);
  version.value;
  useEffect(() => {
    let isGone = false;
    let timer = 0;
    const load = async () => {
      try {
        const reply = await get<SweepDetail>(`sweeps/${encodeURIComponent(id)}`);
        if (!isGone) detail.value = reply;
      } catch (error) {
        if (!isGone && error instanceof ApiError && error.status) problem.value = error.message;
      }
      // Values of trials change without a frame; a sweep that has ended does not.
      const isOpen = ["WAITING", "RUNNING"].includes(detail.peek()?.sweep.state ?? "");
      if (!isGone && isOpen) timer = window.setTimeout(load, 10_000);
    };
    void load();
    return () => ((isGone = true), window.clearTimeout(timer));
  }, [id, changes, isLive.value]);
  const choice = useSignal("");
  const values = useValues(detail.value, choice.value);
  const metric = choice.value || (detail.value?.sweep.metric ?? null);
  const trials = useMemo(() => (detail.value?.trials ?? []).map((trial) => (values ? { ...trial, value: values.get(trial.id) ?? null } : trial)), [detail.value, values]);
  const axes = useMemo(() => axesOf(trials, metric, scalesOf(detail.value?.definition ?? {})), [trials, metric]);
  if (problem.value) return <Empty>{problem.value} <a href="#/s">Sweeps</a></Empty>;
  if (!detail.value) return <Empty>{isStale.value ? "The daemon does not answer." : `Loading sweep ${safe(id, 40)} …`}</Empty>;
  const { sweep } = detail.value;
  const kept = trials.filter((trial) => passes(trial, axes, brushes.value));
  const sign = choice.value.startsWith("max ") || (!choice.value.startsWith("min ") && sweep.goal === "maximize") ? -1 : 1;
  const names = axes.map((axis) => axis.name).filter((name) => name !== metric);
  const shares = importance(kept.filter((trial) => groupOf(trial.state) !== "failed"), names);
  const sorted = [...kept].sort((a, b) => (a.value === null ? 1 : b.value === null ? -1 : sign * (a.value - b.value)) || a.id - b.id);
  return (
    <>
      <Head sweep={sweep} trials={trials} choice={sweep.metric ? <Choice sweep={sweep} choice={choice.value} onChoose={(next) => (choice.value = next)} /> : null} />
      <Parallel trials={trials} axes={axes} brushes={brushes.value} sign={sign} onBrush={(next) => (brushes.value = next)} onOpen={(trial) => go(`j/${trial}`)} />
      <div class="split">
        <div>
          <TrialCurves sweep={sweep} trials={sorted.filter((trial) => trial.value !== null || groupOf(trial.state) === "running").slice(0, MAX_CURVES)} />
          <Scatter trials={kept} axes={axes} sign={sign} onOpen={(trial) => go(`j/${trial}`)} />
        </div>
        <div>
          <Importance metric={metric} shares={shares} />
          <Rungs trials={kept} />
        </div>
      </div>
      <TrialTable metric={metric} trials={kept} sign={sign} link={(trial) => <JobLink id={trial.id} label={trial.label} />} axes={axes} total={trials.length} isBrushed={brushes.value.size > 0} onClear={() => (brushes.value = new Map())} />
    </>
  );
}

/** The value of each trial by another metric or summary, or null: that by which the sweep compares them. */
function useValues(detail: SweepDetail | null, choice: string): ReadonlyMap<number, number | null> | null {
  const values = useSignal<ReadonlyMap<number, number | null> | null>(null);
  useEffect(() => {
    values.value = null;
    if (!detail || !choice) return;
    const abort = new AbortController();
    const [how, ...words] = choice.split(" ");
    const name = words.join(" ");
    const found = new Map<number, number | null>();
    const waiting = detail.trials.filter((trial) => trial.started_at).slice(0, MAX_VALUES);
    const load = async () => {
      for (let trial = waiting.pop(); trial; trial = waiting.pop()) {
        const reply = await get<MetricsReply>(withQuery(`jobs/${exact(trial.id)}/metrics`, { names: name, points: 2 }), abort.signal);
        const value = reply.summary[name]?.[how as (typeof SUMMARIES)[number]] ?? null;
        found.set(trial.id, Array.isArray(value) ? (value[1] ?? null) : value);
      }
    };
    void Promise.allSettled(Array.from({ length: AT_ONCE }, load)).then(() => !abort.signal.aborted && (values.value = found));
    return () => abort.abort();
  }, [detail, choice]);
  return values.value;
}

/** By what trials are compared: chosen after the fact. */
function Choice({ sweep, choice, onChoose }: { sweep: SweepView; choice: string; onChoose: (choice: string) => void }) {
  const names = useSignal<string[]>([]);
  const best = sweep.best?.id;
  useEffect(() => {
    if (best !== undefined) get<MetricsReply>(withQuery(`jobs/${exact(best)}/metrics`, { points: 2 })).then((reply) => (names.value = reply.names), () => {});
  }, [best]);
  return (
    <label>compared by <select value={choice} onChange={(event) => onChoose(event.currentTarget.value)}>
      <option value="">{sweep.goal === "maximize" ? "highest" : "lowest"} {safe(sweep.metric ?? "", 40)}</option>
      {names.value.slice(0, 20).flatMap((name) => SUMMARIES.map((how) => <option key={`${how} ${name}`} value={`${how} ${name}`}>{how} {safe(name, 40)}</option>))}
    </select></label>
  );
}

/** Where early stopping ended trials. */
function Rungs({ trials }: { trials: readonly TrialView[] }) {
  const rungs = rungsOf(trials);
  if (!rungs.length) return null;
  return (
    <Panel title="Early stopping">
      <table>
        <thead><tr><th class="num">step</th><th class="num">reached</th><th class="num">stopped</th><th><span class="hidden">share</span></th></tr></thead>
        <tbody>
          {rungs.slice(0, 16).map(({ step, reached, stopped }) => (
            <tr key={step}>
              <td class="num">{count(step)}</td><td class="num">{count(reached)}</td><td class="num">{count(stopped)}</td>
              <td class="sharecell"><span class="share wide" style={{ width: `${(100 * reached) / trials.length}%` }} aria-hidden="true" /><span class="share lost" style={{ width: `${(100 * stopped) / trials.length}%` }} aria-hidden="true" /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Head({ sweep, trials, choice }: { sweep: SweepView; trials: readonly TrialView[]; choice: ComponentChildren }) {
  const isOpen = sweep.state !== "DONE" && sweep.state !== "CANCELLED";
  const selector = String(sweep.id);
  const live = (sweep.counts.waiting ?? 0) + (sweep.counts.running ?? 0);
  const failed = trials.filter((trial) => groupOf(trial.state) === "failed").map((trial) => trial.id);
  const spent = trials.reduce((sum, trial) => sum + (trial.elapsed ?? 0), 0);
  return (
    <header class="jobhead">
      <h1><span class="muted">{sweep.label}</span> <Name text={sweep.name} /></h1>
      <p class="headline">
        <span class={`state ${isOpen ? "running" : "done"}`}>{sweep.state.toLowerCase()}</span>
        <span><Tally sweep={sweep} /></span>
        <span>{safe(sweep.method, 20)} {choice}</span>
        {spent ? <span class="muted">{duration(spent)} in all trials</span> : null}
        {sweep.eta ? <span>ends ~<At time={unix(sweep.eta)} /></span> : null}
      </p>
      {sweep.best?.value != null ? (
        <p>Best: <b>{figure(sweep.best.value)}</b> by <a class="inline" href={`#/j/${sweep.best.id}`}>{sweep.best.label}</a>, {Object.entries(sweep.best.params).map(([name, value]) => `${safe(name, 30)}=${safe(String(value), 30)}`).join("  ")}</p>
      ) : null}
      {sweep.note ? <p class="reason">{safe(sweep.note, 400)}</p> : null}
      {mayAct.value ? (
        <p class="actions">
          {isOpen && live ? <button type="button" class="danger" onClick={() => actOn("cancel", selector, live)}>Cancel</button> : null}
          {isOpen ? <button type="button" onClick={() => actOn(sweep.held ? "release" : "hold", selector, live)}>{sweep.held ? "Release" : "Hold"}</button> : null}
          {failed.length ? <button type="button" onClick={() => act("retry", failed)}>Retry {plural(failed.length, "failure")}</button> : null}
          <button type="button" onClick={() => go(`q?f=sweep:${sweep.id}`)}>In the queue</button>
          {isOpen ? (
            <form onSubmit={(event) => {
              event.preventDefault();
              void changeSweep(sweep.id, { max_running: Number(new FormData(event.currentTarget).get("most")) || 0 });
            }}>
              <label>At most <input name="most" type="number" min="0" step="1" placeholder="any" defaultValue={sweep.max_running ? String(sweep.max_running) : ""} key={sweep.max_running} /> running</label>
              <button type="submit">Set</button>
            </form>
          ) : null}
        </p>
      ) : null}
    </header>
  );
}

function TrialCurves({ sweep, trials }: { sweep: SweepView; trials: TrialView[] }) {
  const replies = useSignal<ReadonlyMap<number, MetricsReply>>(new Map());
  const key = trials.map((trial) => `${trial.id} ${trial.value}`).join();
  useEffect(() => {
    let isGone = false;
    if (!sweep.metric) return;
    void Promise.allSettled(trials.map((trial) => get<MetricsReply>(withQuery(`jobs/${exact(trial.id)}/metrics`, { names: sweep.metric!, points: 300 })))).then((got) => {
      if (!isGone) replies.value = new Map(got.flatMap((one) => (one.status === "fulfilled" ? [[one.value.job, one.value]] : [])));
    });
    return () => void (isGone = true);
  }, [key]);
  const series = trials.flatMap((trial, at): Curve[] => {
    const points = replies.value.get(trial.id)?.series[sweep.metric ?? ""] ?? [];
    return points.length > 1 ? [{ label: trial.label, colour: paint(at), x: points.map((point) => point[0] ?? 0), y: points.map((point) => point[1] ?? null) }] : [];
  });
  if (!series.length) return null;
  const highlighted = trials.find((trial) => trial.id === hovered.value)?.label ?? null;
  const onHover = (label: string | null) => (hovered.value = trials.find((trial) => trial.label === label)?.id ?? null);
  return <Panel title={`Curves of the best ${series.length} selected`}><Chart title={sweep.metric ?? ""} series={series} height={210} highlighted={highlighted} onHover={onHover} /></Panel>;
}
