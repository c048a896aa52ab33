// Parts of the simulation's report: plots as wide as their place, what the pointer meets, choices.

import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { safe } from "../../core/format";
import { paint } from "../../palette";
import { Panel } from "../../widgets/plain";
import { runs } from "./data";

/** What is written beside the pointer. */
interface Tip {
  title: string;
  rows: { name: string; value: string; run?: number }[];
  x: number;
  y: number;
}

export const tip = signal<Tip | null>(null);
for (const kind of ["wheel", "touchmove"]) addEventListener(kind, () => (tip.value = null), { passive: true });

export function TipBox() {
  const ref = useRef<HTMLDivElement>(null);
  const shown = tip.value;
  useLayoutEffect(() => {
    if (!shown) return;
    const box = ref.current!;
    const { width, height } = box.getBoundingClientRect();
    const left = shown.x + 16 + width > innerWidth - 8 ? shown.x - width - 16 : shown.x + 16;
    box.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    box.style.top = `${Math.max(8, Math.min(shown.y + 14, innerHeight - height - 8))}px`;
  });
  return (
    <div ref={ref} class="tip" role="status" hidden={!shown}>
      {shown ? <b>{safe(shown.title, 80)}</b> : null}
      {shown?.rows.map((row) => <div key={row.name}><span>{row.run === undefined ? null : <Key run={row.run} />}{safe(row.name, 60)}</span><span>{safe(row.value, 80)}</span></div>)}
    </div>
  );
}

/** A finger leaves as soon as it has touched: its tip stays until the page moves. */
export const isGone = (event: PointerEvent) => event.pointerType !== "touch";

/** A plot as wide as its place. */
export function Plot({ draw }: { draw: (width: number) => ComponentChildren }) {
  const ref = useRef<HTMLDivElement>(null);
  const width = useSignal(0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => (width.value = Math.round(ref.current!.clientWidth)));
    watch.observe(ref.current!);
    return () => watch.disconnect();
  }, []);
  return <div ref={ref} class="plot">{width.value > 40 ? draw(width.value) : null}</div>;
}

/** Line patterns after the eighth run, when colours repeat. */
export const dashOf = (run: number): number[] | undefined => [undefined, [7, 3], [2, 3]][Math.floor(run / 8) % 3];

/** The colour and line pattern of a run. */
export function Key({ run }: { run: number }) {
  return <i class="linekey" aria-hidden="true" style={{ borderColor: paint(run), borderTopStyle: ["solid", "dashed", "dotted"][Math.floor(run / 8) % 3] }} />;
}

export function Choices<T extends string | number>({ title, all, value, onChoose }: { title: string; all: readonly (readonly [T, string])[]; value: T; onChoose: (value: T) => void }) {
  return (
    <span class="segments" role="group" aria-label={title}>
      {all.map(([each, text]) => <button type="button" key={each} aria-pressed={each === value} onClick={() => onChoose(each)}>{safe(text, 40)}</button>)}
    </span>
  );
}

/** A panel with a sentence that says what it shows. */
export function Section({ title, hint, more, isWide = false, children }: { title: string; hint?: string; more?: ComponentChildren; isWide?: boolean; children: ComponentChildren }) {
  return <Panel title={title} more={more} kind={isWide ? "whole" : ""}>{hint ? <p class="hint">{hint}</p> : null}{children}</Panel>;
}

export const nameOf = (run: number, limit = 60): string => safe(runs[run]!.label, limit);
