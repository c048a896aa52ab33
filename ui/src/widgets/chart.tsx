// Curves; the library that draws them is loaded when the first one is shown.

import { useEffect, useRef } from "preact/hooks";
import type { Curve, CurveOptions, Drawn } from "../chart";
import { clock, figure, safe } from "../core/format";
import { isDark, zone } from "../prefs";

/** A chart; uPlot is loaded when the first one is shown. `highlighted` is the label of a curve. */
export function Chart({ series, title, height = 150, highlighted = null, ...options }: { series: Curve[]; title: string; height?: number; highlighted?: string | null } & Partial<CurveOptions>) {
  const ref = useRef<HTMLDivElement>(null);
  const drawn = useRef<Drawn | null>(null);
  const shape = series.map((one) => `${one.label}${one.colour}${one.x.length}${one.y.at(-1)}`).join("|");
  const dark = isDark.value;
  useEffect(() => {
    let isGone = false;
    void import("../chart").then(({ curves }) => {
      if (isGone || !ref.current) return;
      const ink = dark ? "#9aa7b4" : "#55606c";
      drawn.current = curves(ref.current, series, { height, isTime: false, isLog: false, hasLegend: true, format: figure, clock: (at) => clock(at, Date.now() / 1000, zone.peek() === "utc"), ink, lines: dark ? "#28303a" : "#e4e8ec", ...options });
    });
    return () => {
      isGone = true;
      drawn.current?.remove();
      drawn.current = null;
    };
  }, [shape, dark, options.isLog, options.isTime, height, zone.value]);
  useEffect(() => drawn.current?.highlight(highlighted), [highlighted]);
  return (
    <figure class="chart">
      <figcaption>{safe(title, 80)}</figcaption>
      <div ref={ref} role="img" aria-label={`${safe(title, 80)}: ${series.map((one) => `${one.label} ${one.y.at(-1) == null ? "" : figure(one.y.at(-1)!)}`).join(", ")}`} />
    </figure>
  );
}
