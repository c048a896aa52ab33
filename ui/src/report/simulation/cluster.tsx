// The cluster: machines with their GPUs from top to bottom, time from left to right.

import { useSignal, type Signal } from "@preact/signals";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { count, safe } from "../../core/format";
import { neighbour, placeOf, rowsOf, segmentAt, segmentsOf, type Rows, type Segment } from "../../core/segments";
import { elapsed, span, timeLabels } from "../../core/spans";
import { paint } from "../../palette";
import { isDark } from "../../prefs";
import { data, measured, runs, SIZES, type Cluster } from "./data";
import { Choices, isGone, nameOf, Plot, Section, tip } from "./parts";

type Colours = "user" | "job" | "size";

const RIGHT = 8;
const LARGEST_ZOOM = 5000;
/** The last size of each group but the last. */
const SIZE_LIMITS = [0, 0.999, 1, 4, 8];

export function ClusterChart() {
  const { cluster } = data;
  if (!cluster?.pieces.some((each) => each.job.length)) return null;
  return <Chart cluster={cluster} />;
}

interface View {
  from: number;
  until: number;
}

/** The number of each job, by its place in the chart. */
function numbersOf(cluster: Cluster): number[] {
  let sum = 0;
  return cluster.jobs.map((step) => (sum += step));
}

function Chart({ cluster }: { cluster: Cluster }) {
  const hasSegments = (run: number) => cluster.pieces[run]!.job.length > 0;
  const best = Math.max(0, measured("mean JCT").values.indexOf(measured("mean JCT").best));
  // Where many users are alike in size, few would have a colour.
  const isNamed = cluster.user.filter((user) => user >= 0 && user < cluster.coloured).length > cluster.user.length / 2;
  const run = useSignal(hasSegments(best) ? best : runs.findIndex((_, each) => hasSegments(each)));
  const by = useSignal<Colours>(cluster.users.length > 1 && isNamed ? "user" : "job");
  const view = useSignal<View>({ from: 0, until: cluster.end });
  const chosen = useSignal<Segment | null>(null);
  const segments = useMemo(() => segmentsOf(cluster.pieces[run.value]!), [run.value]);
  const numbers = useMemo(() => numbersOf(cluster), []);
  const rows = useMemo(() => rowsOf(cluster.sizes), []);

  const zoom = (from: number, until: number) => {
    const least = Math.max(cluster.end / LARGEST_ZOOM, 1);
    const middle = (from + until) / 2;
    const long = Math.min(Math.max(until - from, least), cluster.end);
    const first = Math.max(0, Math.min(until - from < least ? middle - least / 2 : from, cluster.end - long));
    chosen.value = tip.value = null;
    view.value = { from: first, until: first + long };
  };
  const scale = (factor: number) => {
    const { from, until } = view.value;
    const about = chosen.value ? (chosen.value.begin + chosen.value.end) / 2 : (from + until) / 2;
    zoom(about - (about - from) * factor, about + (until - about) * factor);
  };
  const slide = (share: number) => {
    const step = (view.value.until - view.value.from) * share;
    zoom(view.value.from + step, view.value.until + step);
  };

  const nodes = cluster.machines.length < cluster.all ? `${count(cluster.machines.length)} of ${count(cluster.all)} nodes, evenly sampled; ` : "All nodes; ";
  const part = cluster.end * cluster.tick < data.end * 0.98 ? `the first ${span(cluster.end * cluster.tick)} of ${span(data.end)}. ` : "the whole time. ";
  const colours = ([["user", "by user"], ["job", "by job"], ["size", "by size"]] as const).filter(([name]) => name !== "user" || cluster.users.length > 1);
  return (
    <Section title="Cluster" hint={`${nodes}${part}Each row is a GPU. Drag, or press + and −, to zoom; double-click to reset.`} isWide
      more={<Choices title="Policy" all={runs.map((_, each) => [each, nameOf(each, 40)] as const).filter(([each]) => hasSegments(each))} value={run.value} onChoose={(next) => { chosen.value = null; run.value = next; }} />}>
      <div class="toolbar">
        <Choices title="Colour" all={colours} value={by.value} onChoose={(next) => (by.value = next)} />
        <span role="group" aria-label="Zoom" class="tools">
          {([["−", "zoom out", () => scale(2)], ["+", "zoom in", () => scale(0.5)], ["◂", "earlier", () => slide(-0.5)], ["▸", "later", () => slide(0.5)]] as const).map(([text, title, act]) => <button type="button" key={title} aria-label={title} title={title} onClick={act}>{text}</button>)}
        </span>
      </div>
      <Plot draw={(width) => <Drawing {...{ cluster, segments, numbers, rows, run, by, view, chosen, width, zoom, scale }} />} />
      <Legend cluster={cluster} by={by.value} />
    </Section>
  );
}

function Legend({ cluster, by }: { cluster: Cluster; by: Colours }) {
  if (by === "job") return <p class="legend">Each job has its own colour; similar colours have no meaning.</p>;
  const others = cluster.users.length - cluster.coloured;
  const entries = by === "user"
    ? [...cluster.users.slice(0, cluster.coloured).map((user, i) => [paint(i), safe(user, 40) || "(no name)"]), ...(others > 0 ? [["var(--bar-past)", `${count(others)} others`]] : [])]
    : SIZES.map(([, text], size) => [sizeColour(size), text]).filter((_, size) => cluster.gpus.some((gpus) => sizeOf(gpus) === size));
  return <p class="legend">{entries.map(([colour, text]) => <span key={text}><span class="swatch" style={{ background: colour }} />{text}</span>)}</p>;
}

const sizeOf = (gpus: number): number => SIZE_LIMITS.filter((limit) => gpus > limit).length;
const sizeColour = (size: number): string => `color-mix(in oklab, ${paint(1)} ${20 * size}%, ${paint(0)})`;

interface DrawingProps {
  cluster: Cluster;
  segments: Segment[];
  numbers: number[];
  rows: Rows;
  run: Signal<number>;
  by: Signal<Colours>;
  view: Signal<View>;
  chosen: Signal<Segment | null>;
  width: number;
  zoom: (from: number, until: number) => void;
  scale: (factor: number) => void;
}

/** Segments on a canvas; names, times and the chosen job above it, which also print in ink. */
function Drawing({ cluster, segments, numbers, rows, run, by, view, chosen, width, zoom, scale }: DrawingProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const drag = useSignal<[number, number] | null>(null);
  const left = Math.min(width * 0.25, 20 + 6.6 * Math.max(...cluster.machines.map((name) => name.length)));
  const bottom = rows.tops.at(-1)!;
  const { from, until } = view.value;
  const inside = width - left - RIGHT;
  const x = (at: number) => left + ((at - from) / (until - from)) * inside;
  const back = (px: number) => from + ((Math.max(left, Math.min(width - RIGHT, px)) - left) / inside) * (until - from);
  const colours = by.value;
  const fillOf = (segment: Segment): string => {
    const user = cluster.user[segment.job]!;
    if (colours === "size") return sizeColour(sizeOf(cluster.gpus[segment.job]!));
    if (colours === "user") return user >= 0 && user < cluster.coloured ? paint(user) : isDark.value ? "#6b7580" : "#b9c3cd";
    return `hsl(${(numbers[segment.job]! * 137.508) % 360} 45% 56%)`;
  };

  useLayoutEffect(() => {
    const ratio = Math.max(2, devicePixelRatio || 1);
    const element = canvas.current!;
    [element.width, element.height] = [width * ratio, bottom * ratio];
    const context = element.getContext("2d")!;
    context.scale(ratio, ratio);
    const style = getComputedStyle(element);
    const [edge, panel] = [style.getPropertyValue("--soft"), style.getPropertyValue("--panel")];
    context.fillStyle = edge;
    rows.sizes.forEach((size, row) => context.fillRect(left, rows.tops[row]!, inside, size * rows.lane));
    context.beginPath();
    context.rect(left, 0, inside, bottom);
    context.clip();
    for (const segment of segments) {
      if (segment.end < from || segment.begin > until) continue;
      const [top, height] = placeOf(segment, rows);
      const long = Math.max(x(segment.end) - x(segment.begin), 0.6);
      context.fillStyle = fillOf(segment);
      context.fillRect(x(segment.begin), top, long, height - (height > 3 ? 0.5 : 0));
      if (long <= 3) continue;
      context.fillStyle = panel;
      context.fillRect(x(segment.end) - 0.7, top, 0.7, height);
    }
  }, [segments, colours, from, until, width, isDark.value]);

  const look = (segment: Segment | null, px?: number, py?: number) => {
    chosen.value = segment;
    if (!segment) return void (tip.value = null);
    const box = canvas.current!.getBoundingClientRect();
    const [top] = placeOf(segment, rows);
    tip.value = { title: `job ${numbers[segment.job]}`, rows: factsOf(segment, segments, cluster), x: px ?? box.left + Math.max(left, x(segment.begin)), y: py ?? box.top + top + rows.lane };
  };
  const under = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const slack = ((until - from) / width) * (event.pointerType === "touch" ? 8 : 2);
    const px = event.clientX - box.left;
    return px < left ? null : segmentAt(segments, rows, back(px), event.clientY - box.top, slack);
  };
  const onDown = (event: PointerEvent) => {
    if (event.pointerType !== "mouse") return look(under(event), event.clientX, event.clientY);
    drag.value = [event.offsetX, event.offsetX];
    canvas.current!.setPointerCapture(event.pointerId);
  };
  const onMove = (event: PointerEvent) => {
    if (!drag.value) return look(under(event), event.clientX, event.clientY);
    drag.value = [drag.value[0], event.offsetX];
    tip.value = null;
  };
  const onUp = () => {
    const [a, b] = drag.value ?? [0, 0];
    drag.value = null;
    if (Math.abs(a - b) > 6) zoom(back(Math.min(a, b)), back(Math.max(a, b)));
  };
  const walk = (along: number, down: number) => {
    const shown = segments.filter((segment) => segment.end >= from && segment.begin <= until);
    const here = chosen.value;
    const next = here ? neighbour(shown, rows, here, along, down) : shown[0];
    if (next) look(next);
  };
  const onKey = (event: KeyboardEvent) => {
    const acts: Record<string, () => void> = {
      "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), "0": () => zoom(0, cluster.end), Escape: () => look(null),
      ArrowRight: () => walk(1, 0), ArrowLeft: () => walk(-1, 0), ArrowDown: () => walk(0, 1), ArrowUp: () => walk(0, -1),
    };
    const act = acts[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  };

  const { word, labels } = timeLabels(from * cluster.tick, until * cluster.tick, width / 110);
  const parts = chosen.value ? segments.filter((each) => each.job === chosen.value!.job && each.end >= from && each.begin <= until) : [];
  // Machines whose rows are lower than a line of text: some names only.
  const every = Math.ceil(12 / (rows.lane * Math.max(...rows.sizes) + rows.gap));
  return (
    <div class={`gantt ${parts.length ? "chosen" : ""}`} style={{ height: `${bottom + 38}px` }}>
      <canvas ref={canvas} tabIndex={0} role="img" style={{ height: `${bottom}px` }} aria-label={`GPUs of ${cluster.machines.length} nodes over time under ${nameOf(run.value)}; arrow keys move between jobs`}
        onPointerDown={onDown} onPointerMove={onMove} onPointerUp={onUp} onPointerLeave={(event) => !drag.value && isGone(event) && look(null)} onBlur={() => look(null)} onDblClick={() => zoom(0, cluster.end)} onKeyDown={onKey} />
      <svg viewBox={`0 0 ${width} ${bottom + 38}`} height={bottom + 38} aria-hidden="true">
        {cluster.machines.map((name, row) => (row % every ? null : <text key={row} x={left - 8} y={rows.tops[row]! + (rows.sizes[row]! * rows.lane) / 2 + 4} text-anchor="end">{safe(name, Math.max(3, Math.floor((left - 14) / 6.6)))}</text>))}
        {labels.map(({ at, text }) => <text key={at} x={x(at / cluster.tick)} y={bottom + 15} text-anchor="middle">{text}</text>)}
        <text x={(left + width) / 2} y={bottom + 31} text-anchor="middle">{word} since the start</text>
        <svg x={left} width={inside} height={bottom} viewBox={`${left} 0 ${inside} ${bottom}`}>
          {parts.map((each) => {
            const [top, height] = placeOf(each, rows);
            return <rect key={`${each.row} ${each.gpu} ${each.begin}`} class={each === chosen.value ? "on" : ""} x={x(each.begin)} y={top} width={Math.max(0.6, x(each.end) - x(each.begin))} height={height} fill={fillOf(each)} />;
          })}
          {drag.value ? <rect class="drag" x={Math.min(...drag.value)} y={0} width={Math.abs(drag.value[1] - drag.value[0])} height={bottom} /> : null}
        </svg>
      </svg>
    </div>
  );
}

function factsOf(segment: Segment, segments: readonly Segment[], cluster: Cluster): { name: string; value: string }[] {
  const all = cluster.gpus[segment.job]!;
  const submitted = cluster.at[segment.job]!;
  const parts = segments.filter((each) => each.job === segment.job);
  const periods = new Set(parts.map((each) => each.begin)).size;
  const facts = [
    ["user", cluster.users[cluster.user[segment.job]!] || "–"],
    ["GPUs", `${segment.gpus}${all > segment.gpus ? ` of ${all}` : ""} on ${cluster.machines[segment.row]}`],
    ["from", elapsed(segment.begin * cluster.tick)],
    ["to", segment.isOpen ? "after the end of the chart" : elapsed(segment.end * cluster.tick)],
    ["held for", `${segment.isOpen ? "more than " : ""}${span((segment.end - segment.begin) * cluster.tick)}`],
  ];
  if (submitted >= 0) facts.push(["submitted", elapsed(submitted * cluster.tick)]);
  // Only where all machines are shown is its first segment sure to be here.
  if (submitted >= 0 && cluster.machines.length === cluster.all) facts.push(["first wait", span(Math.max(0, Math.min(...parts.map((each) => each.begin)) - submitted) * cluster.tick)]);
  if (parts.length > 1) facts.push(["shown", periods > 1 ? `${periods} run periods` : `${parts.length} nodes`]);
  return facts.map(([name, value]) => ({ name: name!, value: value! }));
}
