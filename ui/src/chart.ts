// Curves by uPlot; nothing else imports it. Loaded by the pages that show curves.

import uPlot from "uplot";

export interface Curve {
  label: string;
  colour: string;
  x: number[];
  y: (number | null)[];
  dash?: number[] | undefined;
}

export interface CurveOptions {
  height: number;
  isTime: boolean;
  isLog: boolean;
  /** Fixed range of y. */
  range?: [number, number];
  /** A logarithmic x. */
  logX?: { title: string; range: [number, number]; splits: number[]; format: (value: number) => string };
  format: (value: number) => string;
  clock: (at: number) => string;
  hasLegend: boolean;
  /** Called with the label of the curve under the pointer, or null. */
  onHover?: (label: string | null) => void;
  ink: string;
  lines: string;
}

function xAxis({ isTime, logX, clock }: CurveOptions, axis: uPlot.Axis): uPlot.Axis {
  if (isTime) return { ...axis, size: 32, space: 70, values: (_plot, values) => values.map(clock) };
  if (logX) return { ...axis, size: 32, splits: () => logX.splits, filter: (_plot, splits) => splits, values: (_plot, values) => values.map(logX.format) };
  return { ...axis, size: 32 };
}

function xSeries({ isTime, logX, clock }: CurveOptions): uPlot.Series {
  const format = logX?.format ?? clock;
  if (!isTime && !logX) return { label: "step" };
  return { label: logX?.title ?? "time", value: (_plot: uPlot, at: number | null) => (at == null ? "–" : format(at)) };
}

export interface Drawn {
  /** Draw all curves but one faintly; all alike without a label. */
  highlight: (label: string | null) => void;
  remove: () => void;
}

/** Draw curves into an element. */
export function curves(element: HTMLElement, series: readonly Curve[], options: CurveOptions): Drawn {
  const axis = { stroke: options.ink, grid: { stroke: options.lines, width: 1 }, ticks: { stroke: options.lines, width: 1 }, font: "11px system-ui, sans-serif" };
  let isHighlighting = false;
  const onHover = options.onHover && ((at: number | null) => isHighlighting || options.onHover!(at ? (series[at - 1]?.label ?? null) : null));
  const data = uPlot.join(series.map((one) => [one.x, one.y] as uPlot.AlignedData));
  const plot = new uPlot(
    {
      width: Math.max(200, element.clientWidth),
      height: options.height,
      cursor: { y: false, ...(onHover ? { focus: { prox: 24 } } : {}) },
      focus: { alpha: 0.25 },
      hooks: onHover ? { setSeries: [(_plot, at) => void onHover(at)] } : {},
      legend: { show: options.hasLegend && (series.length > 1 || !options.isTime), live: true },
      scales: {
        x: options.logX ? { time: false, distr: 3, range: options.logX.range } : { time: options.isTime },
        y: options.range ? { range: options.range } : options.isLog ? { distr: 3 } : {},
      },
      axes: [xAxis(options, axis), { ...axis, size: 58, values: (_plot, values) => values.map((value) => (value == null ? "" : options.format(value))) }],
      series: [
        xSeries(options),
        ...series.map((one) => ({
          label: one.label, stroke: one.colour, width: 1.5, points: { show: one.x.length < 40, size: 4 }, spanGaps: true, dash: one.dash ?? [],
          value: (_plot: uPlot, value: number | null) => (value == null ? "–" : options.format(value)),
        })),
      ],
    },
    data,
    element,
  );
  const watch = new ResizeObserver(() => plot.setSize({ width: Math.max(200, element.clientWidth), height: options.height }));
  watch.observe(element);
  return {
    highlight: (label) => {
      const at = series.findIndex((one) => one.label === label);
      isHighlighting = true;
      plot.setSeries(at < 0 ? null : at + 1, { focus: true }, false);
      isHighlighting = false;
    },
    remove: () => {
      watch.disconnect();
      plot.destroy();
    },
  };
}
