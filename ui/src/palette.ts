// Colours of jobs, users and curves: distinguishable without red and green, on light and on dark.

import { isDark } from "./prefs";

const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#B5579A", "#A67C00", "#3A97CF", "#5D4FB0", "#6B7580"];
const DARK = ["#56B4E9", "#E69F00", "#2BC497", "#E08ABF", "#F0E442", "#F4794A", "#A79BF0", "#A9B3BD"];

export const paint = (at: number): string => (isDark.value ? DARK : LIGHT)[at % LIGHT.length]!;
