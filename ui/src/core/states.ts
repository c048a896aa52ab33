// Job states: the groups in which lists show them, and their words and symbols.

export type Group = "running" | "pending" | "failed" | "done";

const RUNNING = new Set(["RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "QUEUED"]);
const DONE = new Set(["COMPLETED", "CANCELLED"]);

/** The group of a state; every state that is none of the others is a failure. */
export function groupOf(state: string): Group {
  if (state === "PENDING") return "pending";
  if (RUNNING.has(state)) return "running";
  return DONE.has(state) ? "done" : "failed";
}

const WORDS: Record<string, string> = {
  OUT_OF_MEMORY: "out of memory", NODE_FAIL: "node failed", TIMEOUT: "timed out",
  DEADLINE: "deadline missed", CONFIGURING: "starting", COMPLETING: "ending",
  SUSPENDED: "paused", QUEUED: "queued there", COMPLETED: "completed",
};

/** A state in words; a pending job that is held is `held`. */
export function stateWord(state: string, held = false): string {
  if (held && state === "PENDING") return "held";
  return WORDS[state] ?? state.toLowerCase().replaceAll("_", " ");
}

const SYMBOLS: Record<Group, string> = { running: "▶", pending: "○", failed: "✕", done: "✓" };

/** A symbol, so that no state is shown by colour alone. */
export function stateSymbol(state: string, held = false): string {
  if (state === "SUSPENDED") return "Ⅱ";
  if (state === "CANCELLED") return "–";
  return held && state === "PENDING" ? "◼" : SYMBOLS[groupOf(state)];
}
