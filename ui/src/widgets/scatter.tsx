// Any two parameters or metrics of the trials of a sweep against each other.

import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { rankOf, type Axis } from "../core/axes";
import { figure, plural, safe } from "../core/format";
import { isDark } from "../prefs";
import { Panel } from "./plain";
import { hovered, shade, type Trial } from "./trials";

const HEIGHT = 230;
const LEFT = 62;
const EDGE = 14;
const BOTTOM = 24;
const NEAR = 12;

interface ScatterProps {
  /** Those inside all brushes. */
  trials: readonly Trial[];
  axes: readonly Axis[];
  sign: number;
  onOpen?: (id: number) => void;
}

export function Scatter(props: ScatterProps) {
  return props.axes.length < 2 ? null : <ScatterPlot {...props} />;
}

function ScatterPlot({ trials, axes, sign, onOpen }: ScatterProps) {
  const ref = useRef<HTMLCanvasElement>(null);
  const width = useSignal(400);
  const chosen = useSignal<[x: string, y: string]>(["", ""]);
  const find = (name: string, other: Axis) => axes.find((axis) => axis.name === name) ?? other;
  const [across, up] = [find(chosen.value[0], axes[0]!), find(chosen.value[1], axes.at(-1)!)];
  const points = trials.flatMap((trial) => {
    const [x, y] = [across.at(trial), up.at(trial)];
    return x === null || y === null ? [] : [{ trial, x: LEFT + x * (width.value - LEFT - EDGE), y: HEIGHT - BOTTOM - y * (HEIGHT - BOTTOM - EDGE) }];
  });
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
    const [ink, muted, edge] = ["--ink", "--muted", "--edge"].map((name) => style.getPropertyValue(name));
    context.strokeStyle = edge!;
    context.strokeRect(LEFT, EDGE, width.value - LEFT - EDGE, HEIGHT - BOTTOM - EDGE);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = muted!;
    const ends = (axis: Axis) => [axis.labels[0]!, axis.labels.at(-1)!].map((text) => safe(Number.isFinite(Number(text)) && text ? figure(Number(text)) : text, 9));
    [ends(across), ends(up)].forEach(([low, high], isUp) => {
      context.textAlign = isUp ? "right" : "left";
      isUp ? context.fillText(low!, LEFT - 6, HEIGHT - BOTTOM) : context.fillText(low!, LEFT, HEIGHT - 8);
      context.textAlign = "right";
      isUp ? context.fillText(high!, LEFT - 6, EDGE + 8) : context.fillText(high!, width.value - EDGE, HEIGHT - 8);
    });
    const rank = rankOf(trials, sign);
    const dot = (x: number, y: number, size: number) => {
      context.beginPath();
      context.arc(x, y, size, 0, 7);
      context.fill();
    };
    context.globalAlpha = points.length > 500 ? 0.5 : 0.85;
    for (const { trial, x, y } of points) {
      context.fillStyle = shade(rank(trial));
      dot(x, y, 3.5);
    }
    context.globalAlpha = 1;
    context.fillStyle = ink!;
    for (const { trial, x, y } of points) if (trial.id === hovered.value) dot(x, y, 6);
  }, [trials, across, up, width.value, hovered.value, isDark.value]);
  const onMove = (event: PointerEvent) => {
    const box = ref.current!.getBoundingClientRect();
    let best = NEAR;
    hovered.value = null;
    for (const { trial, x, y } of points) {
      const distance = Math.hypot(event.clientX - box.left - x, event.clientY - box.top - y);
      if (distance < best) [best, hovered.value] = [distance, trial.id];
    }
  };
  const select = (label: string, value: Axis, choose: (name: string) => void) => (
    <select aria-label={label} value={value.name} onChange={(event) => choose(event.currentTarget.value)}>{axes.map((axis) => <option key={axis.name} value={axis.name}>{safe(axis.name, 30)}</option>)}</select>
  );
  return (
    <Panel title="Scatter" more={<>{select("Upward", up, (name) => (chosen.value = [across.name, name]))} over {select("Across", across, (name) => (chosen.value = [name, up.name]))}</>}>
      <canvas
        ref={ref} class="scatter" height={HEIGHT} role="img" aria-label={`${up.name} over ${across.name} of ${plural(points.length, "trial")}; the table below has the same values`}
        onPointerMove={onMove} onPointerLeave={() => (hovered.value = null)} onClick={() => hovered.value !== null && onOpen?.(hovered.value)}
      />
    </Panel>
  );
}
