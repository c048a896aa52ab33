// GPU-hours by day as stacked bars, and tables as CSV.

export interface Stack {
  /** What the parts of the bars stand for, the largest first; the last may be `other`. */
  keys: string[];
  days: { day: string; parts: number[]; total: number }[];
}

export const OTHER = "other";

/** One bar for each day of a period, oldest first, also for days without any; at most `most` keys. */
export function stack(days: Record<string, Record<string, number>>, last: string, length: number, most: number): Stack {
  const totals = new Map<string, number>();
  for (const parts of Object.values(days)) for (const [key, hours] of Object.entries(parts)) totals.set(key, (totals.get(key) ?? 0) + hours);
  const sorted = [...totals.keys()].sort((a, b) => totals.get(b)! - totals.get(a)! || (a < b ? -1 : 1));
  const hasOther = sorted.length > most;
  const named = hasOther ? sorted.slice(0, most - 1) : sorted;
  const keys = hasOther ? [...named, OTHER] : named;
  const bars = [];
  for (let i = length - 1; i >= 0; i--) {
    const day = dayBefore(last, i);
    const hours = days[day] ?? {};
    const parts = named.map((key) => hours[key] ?? 0);
    const total = Object.values(hours).reduce((sum, value) => sum + value, 0);
    if (hasOther) parts.push(Math.max(0, total - parts.reduce((sum, value) => sum + value, 0)));
    bars.push({ day, parts, total });
  }
  return { keys, days: bars };
}

/** The date some days before another, both as `2026-11-19`. */
export function dayBefore(day: string, count: number): string {
  const [year = 0, month = 1, date = 1] = day.split("-").map(Number);
  return new Date(Date.UTC(year, month - 1, date - count)).toISOString().slice(0, 10);
}

/** A round value at or above another. */
export function roundUp(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999999)!;
}

/** Rows as CSV; spreadsheets do not take a name for a formula. */
export function csv(rows: readonly (readonly (string | number | null)[])[]): string {
  const cell = (value: string | number | null): string => {
    if (value === null) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
