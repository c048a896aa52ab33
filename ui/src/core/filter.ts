// The filter language: `state:running user:ana,ben -queue:night gpus:>1 "two words" resnet`.

import { groupOf } from "./states";
import type { JobTable } from "./table";

export interface Term {
  key: string;
  values: string[];
  not: boolean;
}

export const KEYS = ["state", "user", "queue", "node", "sweep", "name", "label", "gpus", "priority", "cause", "elapsed"];

/** Terms of a filter; words without a known key are terms with the key `text`. */
export function parse(text: string): Term[] {
  const terms: Term[] = [];
  for (const match of text.matchAll(/(-?)(?:(\w+):)?("[^"]*"?|[^\s"]+)/g)) {
    const [whole, minus, key = "", value = ""] = match;
    const bare = value.replaceAll('"', "");
    if (KEYS.includes(key)) terms.push({ key, values: value[0] === '"' ? [bare] : bare.split(",").filter(Boolean), not: minus === "-" });
    else if (value[0] === '"') terms.push({ key: "text", values: [bare], not: minus === "-" });
    // `--lr` is a part of a command, not a negation.
    else if (whole.startsWith("--")) terms.push({ key: "text", values: [whole], not: false });
    else terms.push({ key: "text", values: [whole.replace(/^-/, "")], not: minus === "-" && whole.length > 1 });
  }
  return terms.filter((term) => term.values.some(Boolean));
}

/** The text of terms; `parse(format(terms))` equals `terms`. */
export function format(terms: Term[]): string {
  const quote = (value: string) => (/[\s",:]|^-/.test(value) ? `"${value.replaceAll('"', "")}"` : value);
  return terms
    .map(({ key, values, not }) => `${not ? "-" : ""}${key === "text" ? "" : `${key}:`}${values.map(quote).join(",")}`)
    .join(" ");
}

/** The filter with a value of a key added, or removed if it is there. */
export function toggle(text: string, key: string, value: string): string {
  const terms = parse(text);
  const term = terms.find((t) => t.key === key && !t.not && t.values.every((v) => !/[\s",:]/.test(v)));
  if (parse(text).some((t) => t.key === key && !t.not && t.values.includes(value)))
    return format(terms.map((t) => (t.key === key && !t.not ? { ...t, values: t.values.filter((v) => v !== value) } : t)).filter((t) => t.values.length));
  if (term && !/[\s",:]/.test(value)) return format(terms.map((t) => (t === term ? { ...t, values: [...t.values, value] } : t)));
  return format([...terms, { key, values: [value], not: false }]);
}

/** Whether a filter selects this value of a key. */
export function selects(text: string, key: string, value: string): boolean {
  return parse(text).some((term) => term.key === key && !term.not && term.values.includes(value));
}

/** The words that only the server can match, since columns have no commands. */
export function serverText(terms: Term[]): string {
  return terms.filter((term) => term.key === "text" && !term.not).map((term) => term.values[0]).join(" ");
}

type Test = (at: number) => boolean;

/** A test of rows. `matched`: ids for which the server found the words of `serverText`. */
export function compile(terms: Term[], table: JobTable, now: number, matched: ReadonlySet<number> | null): Test {
  const tests = terms.map((term) => {
    const test = testOf(term, table, now, matched);
    return term.not ? (at: number) => !test(at) : test;
  });
  return (at) => tests.every((test) => test(at));
}

function testOf({ key, values, not }: Term, table: JobTable, now: number, matched: ReadonlySet<number> | null): Test {
  const { integers, numbers } = table;
  const wanted = values.map((value) => value.toLowerCase());
  const coded = (name: "user" | "queue" | "labels" | "node" | "name" | "cause", hit: (word: string) => boolean): Test => {
    const hits = table.words[name].map((word) => hit(word.toLowerCase()));
    return (at) => hits[table.codes[name][at]!] ?? false;
  };
  switch (key) {
    case "state": {
      const hits = table.words.state.map((state) => wanted.includes(state.toLowerCase()) || wanted.includes(groupOf(state)) || (state === "PENDING" && wanted.includes("waiting")));
      const held = wanted.includes("held");
      return (at) => (held && table.held[at] === 1) || (hits[table.codes.state[at]!] ?? false);
    }
    case "user":
    case "queue":
    case "node":
      return coded(key, (word) => wanted.includes(word));
    case "cause":
    case "name":
      return coded(key, (word) => wanted.some((value) => word.includes(value)));
    case "sweep": {
      const ids = new Set(values.map(Number));
      return (at) => ids.has(integers.array[at]!);
    }
    case "gpus":
      return compared(values, (at) => numbers.gpus[at]! || 0);
    case "priority":
      return compared(values, (at) => integers.priority[at]!);
    case "elapsed":
      return compared(values, (at) => (numbers.ended[at] || now) - numbers.started[at]!);
    case "label":
      return coded("labels", (word) => word.split(",").some((label) => wanted.includes(label)));
    default: {
      const word = wanted[0]!;
      const name = coded("name", (text) => text.includes(word));
      const user = coded("user", (text) => text.includes(word));
      return (at) => (!not && (matched?.has(integers.id[at]!) ?? false)) || name(at) || user(at) || table.label(at).includes(word);
    }
  }
}

const UNITS: Record<string, number> = { s: 1, m: 60, min: 60, h: 3600, d: 86400, "": 1 };

function compared(values: string[], value: (at: number) => number): Test {
  const tests = values.map((text) => {
    const match = /^(<=|>=|<|>|=)?\s*(-?[\d.]+)([a-z]*)$/.exec(text.toLowerCase());
    if (!match) return () => false;
    const limit = Number(match[2]) * (UNITS[match[3] ?? ""] ?? 1);
    switch (match[1]) {
      case "<": return (n: number) => n < limit;
      case "<=": return (n: number) => n <= limit;
      case ">": return (n: number) => n > limit;
      case ">=": return (n: number) => n >= limit;
      default: return (n: number) => n === limit;
    }
  });
  return (at) => tests.some((test) => test(value(at)));
}
