// Sweeps: their list, and of one its trials as parallel coordinates, table and curves, linked.

import { signal, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { actOn, changeSweep } from "../actions";
import type { MetricsReply, SweepDetail, SweepList, SweepView, TrialView } from "../api";
import type { Curve } from "../chart";
import { axesOf, decimate, passes, scalesOf, type Axis, type Brushes } from "../core/axes";
import { count, duration, exact, figure, plural, safe, unix } from "../core/format";
import { groupOf } from "../core/states";
import { ApiError, get, withQuery } from "../net/api";
import { mayAct, sweeps, version } from "../net/live";
import { paint } from "../palette";
import { isDark } from "../prefs";
import { go, parameter, route, setParameters } from "../route";
import { At, Empty, JobLink, Name, Progress, StateChip } from "../widgets/bits";
import { Chart } from "./curves";

const MAX_LINES = 2000;
const MAX_ROWS = 200;
const MAX_CURVES = 5;
const HEIGHT = 300;
const TOP = 30;
const BOTTOM = 26;
const SIDE = 56;

/** The trial under the pointer, highlighted in all views. */
const hovered = signal<number | null>(null);

export function Sweeps() {
  const all = useSignal<SweepView[]>([]);
  const open = sweeps.value;
  useEffect(() => {
    get<SweepList>("sweeps?all=1").then((reply) => (all.value = reply.sweeps), () => {});
  }, [open]);
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
  }, [id, changes]);
  const trials = detail.value?.trials ?? [];
  const axes = useMemo(() => axesOf(trials, detail.value?.sweep.metric ?? null, scalesOf(detail.value?.definition ?? {})), [detail.value]);
  if (problem.value) return <Empty>{problem.value} <a href="#/s">Sweeps</a></Empty>;
  if (!detail.value) return <Empty>Loading sweep {safe(id, 40)} …</Empty>;
  const { sweep } = detail.value;
  const kept = trials.filter((trial) => passes(trial, axes, brushes.value));
  const sign = sweep.goal === "maximize" ? -1 : 1;
  const sorted = [...kept].sort((a, b) => (a.value === null ? 1 : b.value === null ? -1 : sign * (a.value - b.value)) || a.id - b.id);
  return (
    <>
      <Head sweep={sweep} />
      <Parallel trials={trials} axes={axes} brushes={brushes.value} sign={sign} onBrush={(next) => (brushes.value = next)} />
      <TrialCurves sweep={sweep} trials={sorted.filter((trial) => trial.value !== null || groupOf(trial.state) === "running").slice(0, MAX_CURVES)} />
      <Table sweep={sweep} trials={sorted} axes={axes} total={trials.length} isBrushed={brushes.value.size > 0} onClear={() => (brushes.value = new Map())} />
    </>
  );
}

function Head({ sweep }: { sweep: SweepView }) {
  const isOpen = sweep.state !== "DONE" && sweep.state !== "CANCELLED";
  const selector = String(sweep.id);
  const live = (sweep.counts.waiting ?? 0) + (sweep.counts.running ?? 0);
  return (
    <header class="jobhead">
      <h1><span class="muted">{sweep.label}</span> <Name text={sweep.name} /></h1>
      <p class="headline">
        <span class={`state ${isOpen ? "running" : "done"}`}>{sweep.state.toLowerCase()}</span>
        <span><Tally sweep={sweep} /></span>
        <span>{safe(sweep.method, 20)}{sweep.metric ? `, ${sweep.goal === "maximize" ? "highest" : "lowest"} ${safe(sweep.metric, 40)}` : ""}</span>
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
          {sweep.counts.failed ? <button type="button" onClick={() => go(`q?f=${encodeURIComponent(`sweep:${sweep.id} state:failed`)}`)}>{plural(sweep.counts.failed, "failure")} …</button> : null}
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

interface ParallelProps {
  trials: TrialView[];
  axes: Axis[];
  brushes: Brushes;
  sign: number;
  onBrush: (brushes: Brushes) => void;
}

/** Each line is a trial; drag along an axis to select, click it to clear. */
function Parallel({ trials, axes, brushes, sign, onBrush }: ParallelProps) {
  const ref = useRef<HTMLCanvasElement>(null);
  const width = useSignal(800);
  const drag = useRef<{ axis: Axis; from: number } | null>(null);
  /** The button was pressed on an axis: what follows is no click on a line. */
  const isBrushing = useRef(false);
  const shown = useMemo(() => decimate(trials, MAX_LINES), [trials]);
  const x = (at: number) => SIDE + (at * (width.value - 2 * SIDE)) / Math.max(1, axes.length - 1);
  const y = (at: number) => HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => (width.value = ref.current!.clientWidth));
    watch.observe(ref.current!);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    const canvas = ref.current!;
    const scale = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width.value * scale), Math.round(HEIGHT * scale)];
    const context = canvas.getContext("2d")!;
    context.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const ink = style.getPropertyValue("--ink");
    const muted = style.getPropertyValue("--muted");
    const values = shown.flatMap((trial) => (trial.value === null ? [] : [trial.value])).sort((a, b) => sign * (a - b));
    const ranks = new Map(values.map((value, i) => [value, i / Math.max(1, values.length - 1)]));
    const rank = (value: number | null) => (value === null ? 1 : ranks.get(value)!);
    const line = (trial: TrialView) => {
      context.beginPath();
      let isDown = false;
      axes.forEach((axis, at) => {
        const place = axis.at(trial);
        if (place === null) return void (isDown = false);
        isDown ? context.lineTo(x(at), y(place)) : context.moveTo(x(at), y(place));
        isDown = true;
      });
      context.stroke();
    };
    const isIn = new Map(shown.map((trial) => [trial.id, passes(trial, axes, brushes)]));
    for (const inside of [false, true])
      for (let i = shown.length - 1; i >= 0; i--) {
        const trial = shown[i]!;
        if (isIn.get(trial.id) !== inside) continue;
        const place = rank(trial.value);
        context.strokeStyle = inside ? `color-mix(in oklab, ${paint(1)} ${Math.round(100 - 100 * place)}%, ${paint(0)})` : muted;
        context.globalAlpha = inside ? (shown.length > 200 ? 0.45 : 0.8) : 0.08;
        context.lineWidth = inside && place === 0 ? 2.5 : 1.2;
        line(trial);
      }
    context.globalAlpha = 1;
    const over = trials.find((trial) => trial.id === hovered.value);
    if (over) {
      context.strokeStyle = ink;
      context.lineWidth = 3;
      line(over);
    }
    // On the colour of the panel, so that lines do not cross the letters.
    context.lineJoin = "round";
    const write = (text: string, px: number, py: number) => {
      context.strokeStyle = style.getPropertyValue("--panel");
      context.lineWidth = 4;
      context.strokeText(text, px, py);
      context.fillText(text, px, py);
    };
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    axes.forEach((axis, at) => {
      context.strokeStyle = muted;
      context.lineWidth = 1;
      context.strokeRect(x(at), TOP, 0, HEIGHT - TOP - BOTTOM);
      context.fillStyle = ink;
      write(safe(axis.name, 18), x(at), 14);
      context.fillStyle = muted;
      const few = axis.kind === "choice" && axis.labels.length <= 8;
      axis.labels.forEach((text, i) => {
        if (!few && i && i < axis.labels.length - 1) return;
        const short = safe(Number.isFinite(Number(text)) && text ? figure(Number(text)) : text, 9);
        if (few) {
          context.textAlign = at === axes.length - 1 ? "right" : "left";
          write(short, x(at) + (at === axes.length - 1 ? -5 : 5), y(axis.labels.length > 1 ? i / (axis.labels.length - 1) : 0.5) + 4);
          context.textAlign = "center";
        } else write(short, x(at), i ? TOP - 3 : HEIGHT - BOTTOM + 13);
      });
      const range = brushes.get(axis.name);
      if (range) {
        context.globalAlpha = 0.3;
        context.fillStyle = paint(0);
        context.fillRect(x(at) - 7, y(range[1]), 14, Math.max(3, y(range[0]) - y(range[1])));
        context.globalAlpha = 1;
      }
    });
  }, [shown, axes, brushes, width.value, hovered.value, isDark.value]);
  if (axes.length < 2) return null;
  const place = (event: PointerEvent) => {
    const box = ref.current!.getBoundingClientRect();
    return { px: event.clientX - box.left, at: Math.min(1, Math.max(0, (HEIGHT - BOTTOM - (event.clientY - box.top)) / (HEIGHT - TOP - BOTTOM))) };
  };
  const onMove = (event: PointerEvent) => {
    const { px, at } = place(event);
    if (drag.current) {
      const { axis, from } = drag.current;
      if (Math.abs(at - from) > 0.01) onBrush(new Map(brushes).set(axis.name, [Math.min(from, at) - 1e-9, Math.max(from, at) + 1e-9]));
      return;
    }
    // The nearest line, measured at the pointer between its two axes.
    const step = (width.value - 2 * SIDE) / (axes.length - 1);
    const left = Math.min(axes.length - 2, Math.max(0, Math.floor((px - SIDE) / step)));
    const part = (px - SIDE) / step - left;
    let best = 0.04;
    let found: number | null = null;
    for (const trial of shown) {
      const [a, b] = [axes[left]!.at(trial), axes[left + 1]!.at(trial)];
      if (a === null || b === null) continue;
      const distance = Math.abs(a + (b - a) * part - at);
      if (distance < best && passes(trial, axes, brushes)) [best, found] = [distance, trial.id];
    }
    hovered.value = found;
  };
  return (
    <section class="panel">
      <header><h2>Parameters</h2><span class="muted">a line is a trial; drag along an axis to select, click it to clear{shown.length < trials.length ? `; ${count(shown.length)} of ${count(trials.length)} drawn` : ""}</span></header>
      <canvas
        ref={ref} class="parallel" height={HEIGHT} role="img" aria-label={`Parallel coordinates of ${plural(trials.length, "trial")} over ${axes.map((axis) => axis.name).join(", ")}; the table below has the same values`}
        onPointerDown={(event) => {
          const { px, at } = place(event);
          const near = axes.findIndex((_, i) => Math.abs(x(i) - px) < 16);
          isBrushing.current = near >= 0;
          if (near < 0) return;
          const next = new Map(brushes);
          next.delete(axes[near]!.name);
          onBrush(next);
          drag.current = { axis: axes[near]!, from: at };
          ref.current!.setPointerCapture(event.pointerId);
        }}
        onPointerMove={onMove} onPointerUp={() => (drag.current = null)} onPointerLeave={() => (hovered.value = null)}
        onClick={() => !isBrushing.current && hovered.value !== null && go(`j/${hovered.value}`)}
      />
    </section>
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
  return <section class="panel"><header><h2>Curves of the best {series.length} selected</h2></header><Chart title={sweep.metric ?? ""} series={series} height={210} /></section>;
}

function Table({ sweep, trials, axes, total, isBrushed, onClear }: { sweep: SweepView; trials: TrialView[]; axes: Axis[]; total: number; isBrushed: boolean; onClear: () => void }) {
  const names = axes.map((axis) => axis.name).filter((name) => name !== sweep.metric);
  const all = parameter("all") === "1";
  const rows = all ? trials.slice(0, 5000) : trials.slice(0, MAX_ROWS);
  return (
    <section class="panel">
      <header>
        <h2>Trials</h2><span class="muted">{isBrushed ? `${count(trials.length)} of ${count(total)}` : count(total)}</span>
        <span class="more">{isBrushed ? <button type="button" onClick={onClear}>Select all</button> : null}</span>
      </header>
      <div class="scroll" tabIndex={0} role="region" aria-label="Trials">
        <table>
          <thead><tr><th>trial</th><th>state</th><th class="num">{safe(sweep.metric ?? "value", 30)}</th>{names.map((name) => <th key={name}>{safe(name, 30)}</th>)}<th class="num">ran</th><th>note</th></tr></thead>
          <tbody onMouseLeave={() => (hovered.value = null)}>
            {rows.map((trial) => (
              <tr key={trial.id} class={hovered.value === trial.id ? "over" : ""} onMouseEnter={() => (hovered.value = trial.id)}>
                <td><JobLink id={trial.id} label={trial.label} /></td>
                <td><StateChip state={trial.state} /></td>
                <td class="num">{trial.value === null ? "–" : figure(trial.value)}</td>
                {names.map((name) => <td key={name}>{typeof trial.params[name] === "number" ? figure(trial.params[name] as number) : safe(String(trial.params[name] ?? "–"), 40)}</td>)}
                <td class="num">{trial.elapsed == null ? "" : duration(trial.elapsed)}</td>
                <td class="muted">{trial.stopped ? "stopped early" : safe(trial.cause ?? "", 60)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {trials.length > rows.length ? <p><button type="button" onClick={() => setParameters({ all: "1" })}>{count(trials.length - rows.length)} more</button></p> : null}
    </section>
  );
}
