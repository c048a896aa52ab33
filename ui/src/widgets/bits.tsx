// Small parts that many pages use, and that are kept current.

import { useComputed } from "@preact/signals";
import { clock, duration, unix } from "../core/format";
import type { EstimateView } from "../api";
import { minute, now } from "../net/live";
import { zone } from "../prefs";
import { jobPath } from "../route";
import { Name } from "./plain";

export function JobLink({ id, label, name }: { id: number; label: string; name?: string | null }) {
  return (
    <a class="joblink" href={jobPath(id)} data-nav>
      <b>{label}</b>
      {name ? <> <Name text={name} /></> : null}
    </a>
  );
}

/** A moment as a time of day; the full date on hover. */
export function At({ time }: { time: number | null | undefined }) {
  if (time == null || !Number.isFinite(time)) return <>–</>;
  return <time title={new Date(time * 1000).toISOString()}>{clock(time, minute.value, zone.value === "utc")}</time>;
}

/** A text that depends on the clock: only the text is replaced, and only when it changes. */
export function Ticking({ text }: { text: () => string }) {
  return <>{useComputed(text)}</>;
}

/** The time since a moment, kept current. */
export function Since({ time }: { time: number | null | undefined }) {
  return <Ticking key={time} text={() => (time == null || !Number.isFinite(time) ? "–" : duration(now.value - time))} />;
}

/** A predicted moment with its range: `~14:05 (13:50–14:40)`. */
export function Estimate({ view, which }: { view: EstimateView | null | undefined; which: "start" | "end" }) {
  const span = view?.[which];
  if (view?.never) return <span title={view.never}>no prediction</span>;
  if (!span) return <span class="muted">–</span>;
  const low = unix(span.low);
  const high = unix(span.high);
  if (!span.likely) return <span title={span.basis}>after {clock(low, minute.value)}</span>;
  const isWide = Number.isFinite(high) && high - low > 120;
  const time = (at: number) => clock(at, minute.value, zone.value === "utc");
  return (
    <span title={`80 % range; basis: ${span.basis}`}>
      ~{time(unix(span.likely))}
      {isWide ? <span class="muted"> ({time(low)}–{time(high)})</span> : null}
    </span>
  );
}

