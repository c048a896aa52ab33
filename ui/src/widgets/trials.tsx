// The trials of a sweep as parallel coordinates and as a table, linked: of the page and of reports.

import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { decimate, passes, rankOf, type Axis, type Brushes, type TrialLike } from "../core/axes";
import { count, duration, figure, plural, safe } from "../core/format";
import { paint } from "../palette";
import { isDark } from "../prefs";
import { Panel, StateChip } from "./plain";

const MAX_LINES = 2000;
const MAX_ROWS = 200;
const MAX_SHOWN = 5000;
const HEIGHT = 300;
const TOP = 30;
const BOTTOM = 26;
const SIDE = 56;
/** The height of the names of axes. */
const NAME = 18;

export interface Trial extends TrialLike {
  label: string;
  state: string;
  stopped: boolean;
  elapsed: number | null;
  cause: string | null;
}

/** The trial under the pointer, highlighted in all views. */
export const hovered = signal<number | null>(null);

/** A colour from that of the best (0) to that of the worst (1). */
export const shade = (place: number) => `color-mix(in oklab, ${paint(1)} ${Math.round(100 - 100 * place)}%, ${paint(0)})`;

interface ParallelProps {
  trials: readonly Trial[];
  axes: Axis[];
  brushes: Brushes;
  sign: number;
  onBrush: (brushes: Brushes) => void;
  onOpen?: (id: number) => void;
}

/** Each line is a trial; drag along an axis to select, click it to clear, drag its name to move it. */
export function Parallel(props: ParallelProps) {
  return props.axes.length < 2 ? null : <ParallelPlot {...props} />;
}

function ParallelPlot({ trials, axes: given, brushes, sign, onBrush, onOpen }: ParallelProps) {
  const ref = useRef<HTMLCanvasElement>(null);
  const width = useSignal(800);
  const order = useSignal<string[]>([]);
  /** The axis whose values give the colours; none: the values of the trials. */
  const colour = useSignal("");
  const axes = useMemo(() => {
    const place = (axis: Axis) => order.value.indexOf(axis.name);
    return order.value.length ? [...given].sort((a, b) => place(a) - place(b)) : given;
  }, [given, order.value]);
  /** `from` null: the axis itself is moved. */
  const drag = useRef<{ axis: Axis; from: number | null } | null>(null);
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
    const by = axes.find((axis) => axis.name === colour.value);
    const rank = by ? (trial: Trial) => by.at(trial) ?? 1 : rankOf(shown, sign);
    const line = (trial: Trial) => {
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
        const place = rank(trial);
        context.strokeStyle = inside ? shade(place) : muted;
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
  }, [shown, axes, brushes, width.value, hovered.value, isDark.value, colour.value]);
  const place = (event: PointerEvent) => {
    const box = ref.current!.getBoundingClientRect();
    return { px: event.clientX - box.left, at: Math.min(1, Math.max(0, (HEIGHT - BOTTOM - (event.clientY - box.top)) / (HEIGHT - TOP - BOTTOM))) };
  };
  const onMove = (event: PointerEvent) => {
    const { px, at } = place(event);
    if (drag.current) {
      const { axis, from } = drag.current;
      if (from === null) {
        const others = axes.filter((one) => one !== axis);
        const to = Math.min(others.length, Math.max(0, Math.round(((px - SIDE) / (width.value - 2 * SIDE)) * others.length)));
        order.value = [...others.slice(0, to), axis, ...others.slice(to)].map((one) => one.name);
        return;
      }
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
      <header>
        <h2>Parameters</h2><span class="muted">a line is a trial; drag along an axis to select, click it to clear, drag its name to move it{shown.length < trials.length ? `; ${count(shown.length)} of ${count(trials.length)} drawn` : ""}</span>
        <span class="more"><label>colour <select value={colour.value} onChange={(event) => (colour.value = event.currentTarget.value)}><option value="">best to worst</option>{given.map((axis) => <option key={axis.name} value={axis.name}>{safe(axis.name, 30)}</option>)}</select></label></span>
      </header>
      <canvas
        ref={ref} class="parallel" height={HEIGHT} role="img" aria-label={`Parallel coordinates of ${plural(trials.length, "trial")} over ${axes.map((axis) => axis.name).join(", ")}; the table below has the same values`}
        onPointerDown={(event) => {
          const { px, at } = place(event);
          const near = axes.findIndex((_, i) => Math.abs(x(i) - px) < 16);
          isBrushing.current = near >= 0;
          if (near < 0) return;
          ref.current!.setPointerCapture(event.pointerId);
          if (event.clientY - ref.current!.getBoundingClientRect().top < NAME) {
            drag.current = { axis: axes[near]!, from: null };
            return;
          }
          const next = new Map(brushes);
          next.delete(axes[near]!.name);
          onBrush(next);
          drag.current = { axis: axes[near]!, from: at };
        }}
        onPointerMove={onMove} onPointerUp={() => (drag.current = null)} onPointerLeave={() => (hovered.value = null)}
        onClick={() => !isBrushing.current && hovered.value !== null && onOpen?.(hovered.value)}
      />
    </section>
  );
}

/** How much of the metric's variance each parameter explains. */
export function Importance({ metric, shares }: { metric: string | null; shares: readonly (readonly [name: string, share: number])[] }) {
  if (!metric) return null;
  return (
    <Panel title="Parameter importance" more={<span class="muted">share of the variance explained</span>}>
      {shares.length ? (
        <table><tbody>{shares.map(([name, share]) => <tr key={name}><td>{safe(name, 40)}</td><td class="sharecell"><span class="share" style={{ width: `${Math.max(1, 100 * share)}%` }} aria-hidden="true" /></td><td class="num">{Math.round(100 * share)} %</td></tr>)}</tbody></table>
      ) : <p class="empty">Too few trials have finished.</p>}
    </Panel>
  );
}

type Order = { name: string; isDown: boolean };

/** What trials are sorted by: a parameter, or one of the other columns. */
function valueOf(trial: Trial, name: string): unknown {
  if (name === " trial") return trial.id;
  if (name === " state") return trial.stopped ? "stopped" : trial.state;
  if (name === " value") return trial.value;
  return name === " ran" ? trial.elapsed : trial.params[name];
}

/** Missing values are last in either direction. */
function sorted(trials: readonly Trial[], { name, isDown }: Order): Trial[] {
  const sign = isDown ? -1 : 1;
  return [...trials].sort((one, two) => {
    const [a, b] = [valueOf(one, name), valueOf(two, name)];
    if (a == null || b == null) return Number(a == null) - Number(b == null);
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true })) || one.id - two.id;
  });
}

interface TableProps {
  metric: string | null;
  trials: readonly Trial[];
  axes: readonly Axis[];
  total: number;
  isBrushed: boolean;
  sign: number;
  onClear: () => void;
  link: (trial: Trial) => ComponentChildren;
}

/** The trials inside all brushes; a click on a heading sorts them. */
export function TrialTable({ metric, trials, axes, total, isBrushed, sign, onClear, link }: TableProps) {
  const order = useSignal<Order>({ name: " value", isDown: sign < 0 });
  const shown = useSignal(MAX_ROWS);
  const names = axes.map((axis) => axis.name).filter((name) => name !== metric);
  const rows = sorted(trials, order.value).slice(0, shown.value);
  const heading = (name: string, title: string, isNumber = false) => (
    <th key={name} class={isNumber ? "num" : ""} aria-sort={order.value.name === name ? (order.value.isDown ? "descending" : "ascending") : undefined}>
      <button type="button" class="plain" onClick={() => (order.value = { name, isDown: order.value.name === name && !order.value.isDown })}>{safe(title, 30)}{order.value.name === name ? (order.value.isDown ? " ▾" : " ▴") : ""}</button>
    </th>
  );
  return (
    <section class="panel">
      <header>
        <h2>Trials</h2><span class="muted">{isBrushed ? `${count(trials.length)} of ${count(total)}` : count(total)}</span>
        <span class="more">{isBrushed ? <button type="button" onClick={onClear}>Select all</button> : null}</span>
      </header>
      <div class="scroll" tabIndex={0} role="region" aria-label="Trials">
        <table>
          <thead><tr>{heading(" trial", "trial")}{heading(" state", "state")}{metric ? heading(" value", metric, true) : null}{names.map((name) => heading(name, name))}{heading(" ran", "ran", true)}<th>note</th></tr></thead>
          <tbody onMouseLeave={() => (hovered.value = null)}>
            {rows.map((trial) => (
              <tr key={trial.id} class={hovered.value === trial.id ? "over" : ""} onMouseEnter={() => (hovered.value = trial.id)}>
                <td>{link(trial)}</td>
                <td><StateChip state={trial.state} /></td>
                {metric ? <td class="num">{trial.value === null ? "–" : figure(trial.value)}</td> : null}
                {names.map((name) => <td key={name}>{typeof trial.params[name] === "number" ? figure(trial.params[name] as number) : safe(textOf(trial.params[name]), 40)}</td>)}
                <td class="num">{trial.elapsed == null ? "" : duration(trial.elapsed)}</td>
                <td class="muted">{trial.stopped ? "stopped early" : safe(trial.cause ?? "", 60)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {trials.length > rows.length ? <p><button type="button" onClick={() => (shown.value = MAX_SHOWN)}>{count(trials.length - rows.length)} more</button></p> : null}
    </section>
  );
}

const textOf = (value: unknown): string => (value == null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
