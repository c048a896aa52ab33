import assert from "node:assert/strict";
import { test } from "node:test";
import { axisOf, barOf, ticks } from "../src/core/timeline";
import { csv, dayBefore, roundUp, stack } from "../src/core/usage";

test("each day of the period has a bar, and small keys are one part", () => {
  const days = { "2026-03-01": { ana: 4, ben: 1, eve: 2 }, "2026-02-28": { ben: 8 } };
  const made = stack(days, "2026-03-01", 3, 2);
  assert.deepEqual(made.keys, ["ben", "other"]);
  assert.deepEqual(made.days.map((day) => day.day), ["2026-02-27", "2026-02-28", "2026-03-01"]);
  assert.deepEqual(made.days.map((day) => day.parts), [[0, 0], [8, 0], [1, 6]]);
  assert.deepEqual(stack(days, "2026-03-01", 1, 3).keys, ["ben", "ana", "eve"]);
  assert.equal(dayBefore("2024-03-01", 1), "2024-02-29");
});

test("axes end at round values", () => {
  assert.deepEqual([0, 0.7, 1, 41, 50.2, 99].map(roundUp), [1, 0.8, 1, 50, 60, 100]);
});

test("names are quoted in CSV, and are no formulas", () => {
  assert.equal(csv([["a", null, 1.5], ['x,"y"', "=1+1", "@b"]]), 'a,,1.5\r\n"x,""y""",\'=1+1,\'@b\r\n');
});

const at = (seconds: number) => new Date(seconds * 1000).toISOString();
const span = (low: number, likely: number | null, high: number | null) => ({ low: at(low), likely: likely === null ? null : at(likely), high: high === null ? null : at(high) });

test("a bar is the likely time of a job, and its range", () => {
  const axis = { from: 1000, to: 2000 };
  const bar = barOf({ start: span(1100, 1200, 1300), end: span(1400, 1500, 1700) }, null, axis);
  assert.deepEqual(bar, { start: 20, end: 50, low: 10, high: 70, isOpen: false });
  assert.deepEqual(barOf({ start: null, end: span(1400, 1500, 2700) }, 1000, axis), { start: 0, end: 50, low: 0, high: 100, isOpen: false });
  assert.equal(barOf({ start: null, end: null }, 1000, axis)?.isOpen, true);
  assert.equal(barOf({ start: null, end: null }, null, axis), null);
  assert.equal(barOf({ start: span(2100, 2200, null), end: null }, null, axis), null);
});

test("the axis reaches the last end that is predicted, but not beyond the horizon", () => {
  const jobs = [{ start: null, end: span(1400, 5000, 9000) }];
  assert.deepEqual(axisOf(jobs, 1000, NaN), { from: 1000, to: 9000 });
  assert.deepEqual(axisOf(jobs, 1000, 6000), { from: 1000, to: 6000 });
  assert.deepEqual(axisOf([], 1000, NaN), { from: 1000, to: 1900 });
});

test("labels are on full hours of the local clock", () => {
  assert.deepEqual(ticks({ from: 1800, to: 9000 }, 3, 0), [3600, 7200]);
  assert.deepEqual(ticks({ from: 1800, to: 9000 }, 3, 1800), [1800, 5400]);
});
