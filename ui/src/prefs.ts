// What a user chose for this browser: theme, period of the strips, density, colours.

import { effect, signal, type Signal } from "@preact/signals";

function stored<T extends string>(key: string, initial: T, known: readonly T[]): Signal<T> {
  let value: string | null = null;
  try {
    value = localStorage.getItem(`stoker.${key}`);
  } catch {
    // Storage may be forbidden; then a choice lasts as long as the page.
  }
  const made = signal(known.includes(value as T) ? (value as T) : initial);
  made.subscribe((next) => {
    try {
      localStorage.setItem(`stoker.${key}`, next);
    } catch {
      // As above.
    }
  });
  return made;
}

export const theme = stored("theme", "system", ["system", "light", "dark"]);
export const density = stored("density", "auto", ["auto", "strips", "lines"]);
export const colourBy = stored("colours", "job", ["job", "user"]);
export const zone = stored("zone", "local", ["local", "utc"]);

/** Periods of the strips: about 120 to 340 bars each. */
export const RANGES = [
  { name: "10 min", minutes: 10, step: 4 },
  { name: "1 h", minutes: 60, step: 30 },
  { name: "6 h", minutes: 360, step: 120 },
  { name: "14 d", minutes: 20160, step: 7200 },
] as const;

const rangeName = stored("range", "1 h", RANGES.map((range) => range.name));
export const range = signal<(typeof RANGES)[number]>(RANGES.find((r) => r.name === rangeName.value)!);

/** Choose another period; `by` steps to a longer or shorter one. */
export function chooseRange(by: number): void {
  const at = RANGES.indexOf(range.value);
  range.value = RANGES[Math.min(RANGES.length - 1, Math.max(0, at + by))]!;
  rangeName.value = range.value.name;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
export const isDark = signal(false);

/** Follow the choice and the system. */
export function applyTheme(): void {
  const apply = () => {
    isDark.value = theme.value === "dark" || (theme.value === "system" && dark.matches);
    document.documentElement.dataset.theme = isDark.value ? "dark" : "light";
  };
  effect(apply);
  dark.addEventListener("change", apply);
}

export function nextTheme(): void {
  theme.value = isDark.value ? "light" : "dark";
}
