// Arithmetic of a list of which only the visible rows exist.

/** Browsers limit heights: Firefox to about 17.9 million pixels. Above this, scrolling is scaled. */
const MAX_HEIGHT = 10_000_000;

export interface Window {
  /** Height of the element that scrolls. */
  height: number;
  /** First row and the one after the last. */
  from: number;
  to: number;
  /** Position of the first row in the element. */
  top: number;
}

/** The rows to draw for a scroll position. */
export function visibleWindow(rows: number, rowHeight: number, scrollTop: number, viewport: number, spare = 6): Window {
  const full = rows * rowHeight;
  const height = Math.min(full, MAX_HEIGHT);
  const room = Math.max(1, height - viewport);
  const scroll = Math.min(Math.max(0, scrollTop), Math.max(0, height - viewport));
  const offset = full > height ? (scroll / room) * (full - viewport) : scroll;
  const from = Math.max(0, Math.floor(offset / rowHeight) - spare);
  const to = Math.min(rows, Math.ceil((offset + viewport) / rowHeight) + spare);
  return { height, from, to, top: Math.round(scroll - (offset - from * rowHeight)) };
}

/** The scroll position at which a row is visible; the present one if it is. */
export function scrollTo(row: number, rows: number, rowHeight: number, scrollTop: number, viewport: number): number {
  const full = rows * rowHeight;
  const height = Math.min(full, MAX_HEIGHT);
  const scale = full > height ? (full - viewport) / Math.max(1, height - viewport) : 1;
  const offset = scrollTop * scale;
  const top = row * rowHeight;
  if (top < offset) return top / scale;
  if (top + rowHeight > offset + viewport) return (top + rowHeight - viewport) / scale;
  return scrollTop;
}
