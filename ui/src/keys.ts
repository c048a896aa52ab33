// The keyboard: keys of all pages, and those that a page adds.

import { signal } from "@preact/signals";
import { menu, question } from "./actions";
import { chooseRange, nextTheme } from "./prefs";
import { go, route } from "./route";

type Keys = Record<string, () => unknown>;

const pages = new Map<string, Keys>();
export const isHelpOpen = signal(false);
let prefix = 0;

/** Add keys of a page. */
export function keysOf(page: string, keys: Keys): void {
  pages.set(page, keys);
}

/** Put the cursor into the field of the priority, if there is one. */
export function editPriority(): void {
  document.querySelector<HTMLInputElement>("main input[name=priority]")?.select();
}

const TARGETS: Record<string, string> = { o: "", q: "q", s: "s", m: "m", h: "h", p: "p" };

const GLOBAL: Keys = {
  "?": () => (isHelpOpen.value = !isHelpOpen.value),
  "/": () => {
    const box = document.getElementById("search") as HTMLInputElement | null;
    if (box) box.focus();
    else {
      go("q");
      setTimeout(() => document.getElementById("search")?.focus(), 50);
    }
  },
  t: nextTheme,
  "[": () => chooseRange(-1),
  "]": () => chooseRange(1),
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  Escape: () => (isHelpOpen.value = false),
};

/** On pages without a list: to the next link of the content. */
function moveFocus(by: number): void {
  const links = [...document.querySelectorAll<HTMLElement>("main [data-nav]")];
  const at = links.indexOf(document.activeElement as HTMLElement);
  links[Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
}

export function listenToKeys(): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || question.value || menu.value) return;
    if (target.closest("input:not([type=checkbox]), textarea, select")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    // Buttons and links keep their own keys.
    if (event.key === "Enter" && target.closest("a, button, summary")) return;
    const isSecond = Date.now() - prefix < 1500;
    prefix = 0;
    if (isSecond && event.key in TARGETS) {
      event.preventDefault();
      go(TARGETS[event.key]!);
      return;
    }
    if (event.key === "g") {
      prefix = Date.now();
      return;
    }
    const run = pages.get(route.value.page)?.[event.key] ?? GLOBAL[event.key];
    if (!run) return;
    event.preventDefault();
    run();
  });
}

export const HELP: [keys: string, meaning: string][] = [
  ["?", "this help"], ["/", "search"], ["g o   g q   g s   g m", "overview, queue, sweeps, machines"], ["g h   g p", "history, plan"], ["j   k", "next, previous"], ["Enter", "open, unfold"],
  ["x   X   *", "select, select a range, select all"], ["l", "log"], ["c", "cancel (asks first)"], ["r", "retry"], ["h", "hold or release"], ["e", "edit the priority"], ["J   K", "move in the queue"], [".", "menu of actions"],
  ["[   ]", "shorter, longer period"], ["t", "light or dark"], ["Esc", "close, deselect"],
];
