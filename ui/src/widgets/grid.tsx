// A list of equal rows of which only the visible ones are in the document.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { scrollTo, visibleWindow } from "../core/virtual";

/** Rows above and below the visible ones. */
const SPARE = 6;

interface GridProps {
  label: string;
  rows: number;
  rowHeight: number;
  head: ComponentChildren;
  /** A row; rows of equal slots use the same elements. */
  row: (at: number, slot: number) => ComponentChildren;
  /** Index of the row that the keyboard is at, or -1. */
  cursor: number;
  activeId: string | undefined;
  onVisible: (from: number, to: number) => void;
}

export function Grid({ label, rows, rowHeight, head, row, cursor, activeId, onVisible }: GridProps) {
  const box = useRef<HTMLDivElement>(null);
  const scroll = useSignal(0);
  const viewport = useSignal(600);
  const view = visibleWindow(rows, rowHeight, scroll.value, viewport.value, SPARE);
  useLayoutEffect(() => {
    const element = box.current!;
    const measure = () => (viewport.value = element.clientHeight - rowHeight);
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    measure();
    return () => watch.disconnect();
  }, [rowHeight]);
  useEffect(() => onVisible(view.from, view.to), [view.from, view.to, rows]);
  useLayoutEffect(() => {
    if (cursor >= 0) box.current!.scrollTop = scrollTo(cursor, rows, rowHeight, box.current!.scrollTop, viewport.value);
  }, [cursor]);
  const visible = [];
  // As many slots as rows: those that scroll in use the elements of those that scroll out.
  const slots = Math.ceil(viewport.value / rowHeight) + 2 * SPARE + 1;
  for (let at = view.from; at < view.to; at++) visible.push(row(at, at % slots));
  return (
    <div class="grid" role="grid" aria-label={label} aria-rowcount={rows + 1} aria-multiselectable={true} aria-activedescendant={activeId} tabIndex={0} ref={box} onScroll={(event) => (scroll.value = event.currentTarget.scrollTop)}>
      <div class="head" role="rowgroup">{head}</div>
      <div class="body" role="rowgroup" style={{ height: `${view.height}px` }}>
        <div role="presentation" style={{ transform: `translateY(${view.top}px)` }}>{visible}</div>
      </div>
    </div>
  );
}
