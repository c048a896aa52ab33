// Small parts that need no daemon: of pages and of reports.

import type { ComponentChildren } from "preact";
import { safe } from "../core/format";
import { groupOf, stateSymbol, stateWord } from "../core/states";

export function StateChip({ state, held = false }: { state: string; held?: boolean }) {
  return (
    <span class={`state ${held && state === "PENDING" ? "held" : groupOf(state)}`}>
      <span aria-hidden="true">{stateSymbol(state, held)}</span> {stateWord(state, held)}
    </span>
  );
}

/** A name that cannot affect the text beside it. */
export function Name({ text, limit = 120 }: { text: string | null; limit?: number }) {
  const shown = safe(text ?? "", limit);
  return <bdi class="name" title={shown.length > 24 ? safe(text ?? "", 1000) : undefined}>{shown}</bdi>;
}

export function Progress({ done, total, label }: { done: number | null; total: number | null; label?: string }) {
  if (!total || done == null) return null;
  const part = Math.min(1, done / total);
  return (
    <span class="progress" role="progressbar" aria-label={label ?? "progress"} aria-valuenow={done} aria-valuemin={0} aria-valuemax={total}>
      <span style={{ transform: `scaleX(${part})` }} />
    </span>
  );
}

export function Panel({ title, more, children, kind = "" }: { title: ComponentChildren; more?: ComponentChildren; children: ComponentChildren; kind?: string }) {
  return (
    <section class={`panel ${kind}`}>
      <header>
        <h2>{title}</h2>
        <span class="more">{more}</span>
      </header>
      {children}
    </section>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}
