// Numbers, times and names as text.

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Text that cannot reorder or hide what stands beside it, and is at most `limit` characters. */
export function safe(text: string, limit = 200): string {
  const short = text.length > limit ? `${text.slice(0, limit)}…` : text;
  return short.replace(/[\t\n\r]+/g, " ").replace(CONTROL, "\ufffd");
}

/** Seconds as `45 s`, `12 min`, `3 h 05`, `2 d 4 h`. */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  const hours = Math.floor(s / 3600);
  if (s < 86400) return `${hours} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}`;
  const rest = Math.floor((s % 86400) / 3600);
  return `${Math.floor(s / 86400)} d${rest ? ` ${rest} h` : ""}`;
}

/** Unix time of an ISO text of the API; NaN for null. */
export function unix(iso: string | null | undefined): number {
  return iso ? Date.parse(iso) / 1000 : NaN;
}

/** Times of another day that are this near are understood without their day. */
const NEAR_SECONDS = 15 * 3600;

/** A Unix time as `14:05`, with the day if it is far from `now`. */
export function clock(at: number, now: number, utc = false): string {
  if (!Number.isFinite(at)) return "–";
  const zone = utc ? { timeZone: "UTC" } : {};
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...zone });
  const day = (d: Date) => d.toLocaleDateString("en-CA", zone);
  if (Math.abs(at - now) < NEAR_SECONDS || day(date) === day(new Date(now * 1000))) return time;
  const near = Math.abs(at - now) < 6 * 86400;
  const label = date.toLocaleDateString("en-GB", near ? { weekday: "short", ...zone } : { day: "numeric", month: "short", ...zone });
  return `${label} ${time}`;
}

/** MiB as `20.5 GB` or `512 MB`. */
export function memory(mib: number | null | undefined): string {
  if (mib == null || !Number.isFinite(mib)) return "–";
  if (mib < 1000) return `${Math.round(mib)} MB`;
  const gib = mib / 1024;
  return gib < 9.95 ? `${gib.toFixed(1)} GB` : gib < 10_000 ? `${Math.round(gib)} GB` : `${(gib / 1024).toFixed(1)} TB`;
}

/** Used of total memory, `20/80 GB`. */
export function memoryOf(used: number | null | undefined, total: number | null | undefined): string {
  const [value, unit] = memory(used).split(" ");
  const [all, allUnit] = memory(total).split(" ");
  if (total == null) return memory(used);
  return unit === allUnit ? `${value}/${all} ${unit}` : `${memory(used)} / ${memory(total)}`;
}

/** Bytes as text. */
export function bytes(count: number): string {
  return count < 1000 ? `${count} B` : count < 1_000_000 ? `${(count / 1024).toFixed(0)} kB` : memory(count / 1048576);
}

/** A count with thin spaces between groups of three digits. */
export function count(value: number): string {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** `1 job`, `2 jobs`. */
export function plural(value: number, word: string): string {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

/** A number with about four significant digits. */
export function figure(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** The selector of one job alone: `12` would mean all of array 12, `12-12` is its first member. */
export const exact = (id: number | string) => (/^\d+$/.test(String(id)) ? `${id}-${id}` : String(id));

/** Ids as a selector: consecutive ones as ranges, `3-7,9-9`; single ones as `single` writes them. */
export function ranges(ids: Iterable<number>, single: (id: number) => string = exact): string {
  const sorted = [...ids].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; ) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j]! + 1) j++;
    parts.push(i === j ? single(sorted[i]!) : `${sorted[i]}-${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(",");
}

/** A word quoted for a POSIX shell, if it has to be. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, `'\\''`)}'`;
}
