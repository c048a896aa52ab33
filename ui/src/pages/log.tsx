// The output of a job: live, by lines, with colours, search and a jump to errors.

import { signal, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { JobView } from "../api";
import { LogLines, firstError, search } from "../core/ansi";
import { bytes, count, exact, safe } from "../core/format";
import { groupOf } from "../core/states";
import { visibleWindow } from "../core/virtual";
import { ApiError, open, withQuery } from "../net/api";
import { isLive } from "../net/live";

const ROW = 18;
const FIRST_LINES = 3000;
/** A log that is larger is shown from its end only; the whole can be saved. */
const MAX_BYTES = 60_000_000;

export const logFocus = signal(0);

interface Source {
  stream: "out" | "err";
  attempt: number | null;
  part: number;
  isWhole: boolean;
}

function pathOf(job: JobView, source: Source, more: Record<string, string | number | undefined>): string {
  return withQuery(`jobs/${exact(job.id)}/log`, {
    stream: source.stream, ...(source.attempt === null ? {} : { attempt: source.attempt }), ...(source.part ? { part: source.part } : {}), ...more,
  });
}

export function Log({ job }: { job: JobView }) {
  const source = useSignal<Source>({ stream: "out", attempt: null, part: 0, isWhole: false });
  const log = useRef(new LogLines());
  const changes = useSignal(0);
  const note = useSignal("");
  const received = useSignal(0);
  const isFollowing = useSignal(true);
  const scroll = useSignal(0);
  const viewport = useSignal(400);
  const wanted = useSignal("");
  const hit = useSignal(-1);
  const box = useRef<HTMLDivElement>(null);
  const isPending = groupOf(job.state) === "pending" && job.attempts.length === 0;
  const isLinked = isLive.value;

  useEffect(() => {
    if (!isLinked) return;
    const abort = new AbortController();
    log.current = new LogLines();
    received.value = 0;
    note.value = "";
    changes.value++;
    void (async () => {
      try {
        const tail = source.value.isWhole ? {} : { tail: FIRST_LINES };
        const reader = (await open(`${pathOf(job, source.value, { follow: 1, ...tail })}`, abort.signal)).getReader();
        const decoder = new TextDecoder();
        let frame = 0;
        for (;;) {
          const { done, value } = await reader.read();
          if (done) break;
          received.value += value.byteLength;
          log.current.add(decoder.decode(value, { stream: true }));
          if (!frame) frame = requestAnimationFrame(() => ((frame = 0), changes.value++));
        }
        changes.value++;
      } catch (error) {
        if (!abort.signal.aborted) note.value = error instanceof ApiError ? error.message : "The log was interrupted.";
      }
    })();
    return () => abort.abort();
  }, [job.id, job.attempt, isPending, isLinked, source.value]);

  useLayoutEffect(() => {
    const element = box.current!;
    const watch = new ResizeObserver(() => (viewport.value = element.clientHeight));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (isFollowing.value) box.current!.scrollTop = box.current!.scrollHeight;
  }, [changes.value, isFollowing.value, viewport.value]);
  useSignalEffect(() => {
    if (logFocus.value) box.current?.focus();
  });

  const hits = useMemo(() => search(log.current, wanted.value), [wanted.value, wanted.value ? changes.value : 0]);
  const show = (line: number) => {
    isFollowing.value = false;
    hit.value = line;
    box.current!.scrollTop = Math.max(0, line * ROW - viewport.value / 3);
  };
  const nextHit = (by: number) => {
    if (!hits.length) return;
    const at = hits.findIndex((line) => line >= hit.value + (by > 0 ? 1 : 0));
    show(hits[(by > 0 ? (at < 0 ? 0 : at) : (at <= 0 ? hits.length : at) - 1 + hits.length) % hits.length]!);
  };
  const jump = () => {
    const line = firstError(log.current, hit.value + 1);
    const found = line >= 0 ? line : firstError(log.current);
    if (found >= 0) show(found);
    else note.value = "No line looks like an error.";
  };
  changes.value;
  const lines = log.current.count;
  const view = visibleWindow(lines, ROW, scroll.value, viewport.value);
  const drawn = [];
  for (let at = view.from; at < view.to; at++) {
    const line = log.current.line(at);
    drawn.push(
      <div key={at} class={`logline ${at === hit.value ? "hit" : ""} ${wanted.value && hits.includes(at) ? "found" : ""}`}>
        {line?.pieces.map((piece, i) => (piece.style ? <span key={i} class={piece.style}>{safeLine(piece.text)}</span> : safeLine(piece.text)))}
      </div>,
    );
  }
  const attempts = Array.from({ length: job.attempt + (groupOf(job.state) === "pending" ? 0 : 1) }, (_, at) => at);
  const isCut = !source.value.isWhole && lines >= FIRST_LINES - 1;
  const change = (next: Partial<Source>) => (source.value = { ...source.value, ...next });
  return (
    <section class="panel logpanel">
      <header>
        <h2>Log</h2>
        <span class="more">
          {job.error_log ? (
            <select aria-label="Stream" value={source.value.stream} onChange={(event) => change({ stream: event.currentTarget.value as "out" | "err" })}>
              <option value="out">stdout</option><option value="err">stderr</option>
            </select>
          ) : null}
          {attempts.length > 1 ? (
            <select aria-label="Attempt" value={source.value.attempt ?? ""} onChange={(event) => change({ attempt: event.currentTarget.value === "" ? null : Number(event.currentTarget.value) })}>
              <option value="">latest attempt</option>
              {attempts.map((n) => <option value={n} key={n}>attempt {n + 1}</option>)}
            </select>
          ) : null}
          {job.parts.length > 1 ? (
            <select aria-label="Part" value={source.value.part} onChange={(event) => change({ part: Number(event.currentTarget.value) })}>
              {job.parts.map((part, n) => <option value={n} key={n}>part {n} · {safe(part.node, 30)}</option>)}
            </select>
          ) : null}
          <input type="search" aria-label="Search the log" placeholder="search" onInput={(event) => ((wanted.value = event.currentTarget.value), (hit.value = -1))} onKeyDown={(event) => event.key === "Enter" && nextHit(event.shiftKey ? -1 : 1)} />
          {wanted.value ? <span class="muted">{count(hits.length)}</span> : null}
          <button type="button" onClick={jump}>Error</button>
          <button type="button" aria-pressed={isFollowing.value} onClick={() => (isFollowing.value = !isFollowing.value)}>Follow</button>
          <a class="button" href={`/v1/${pathOf(job, source.value, {})}`} download={`${job.label}.${source.value.stream}`}>Save</a>
        </span>
      </header>
      {isCut && job.log_bytes < MAX_BYTES ? <p class="logcut"><button type="button" onClick={() => change({ isWhole: true })}>Earlier lines ({bytes(job.log_bytes)} in all)</button></p> : null}
      <div class="log" ref={box} tabIndex={0} role="log" aria-label={`Log of job ${job.label}`} aria-live="off" data-nav
        onScroll={(event) => {
          const element = event.currentTarget;
          // Only a user scrolls up; that the end is elsewhere may be because of new lines.
          if (element.scrollTop < scroll.peek() - ROW && element.scrollTop < element.scrollHeight - element.clientHeight - ROW) isFollowing.value = false;
          scroll.value = element.scrollTop;
        }}>
        {lines === 0 ? <p class="empty">{note.value || (isPending ? "The job has not started yet." : "No output so far.")}</p> : null}
        <div class="logbody" style={{ height: `${view.height}px` }}>
          <div class="loglines" style={{ transform: `translateY(${view.top}px)` }}>{drawn}</div>
        </div>
      </div>
      <p class="lognote muted">{note.value && lines ? note.value : `${count(lines)} lines · ${bytes(received.value)}`}{groupOf(job.state) === "running" && isLinked ? " · live" : ""}</p>
    </section>
  );
}

/** Control characters and marks of direction are shown, spaces are kept. */
function safeLine(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}
