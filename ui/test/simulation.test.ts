import assert from "node:assert/strict";
import { test } from "node:test";
import { neighbour, placeOf, rowsOf, segmentAt, segmentsOf, type SegmentColumns } from "../src/core/segments";
import { elapsed, instant, roomy, roundSpans, shareAt, span, timeLabels, unitOf } from "../src/core/spans";

const columns = (rows: [job: number, row: number, gpu: number, gpus: number, begin: number, long: number][]): SegmentColumns => ({
  job: rows.map((row) => row[0]), row: rows.map((row) => row[1]), gpu: rows.map((row) => row[2]), gpus: rows.map((row) => row[3]),
  begin: rows.map((row, i) => row[4] - (rows[i - 1]?.[4] ?? 0)), long: rows.map((row) => row[5]), on: [],
});

test("times have three digits, and a column one unit", () => {
  assert.deepEqual([0, 0.5, 59, 60, 5400, 86400 * 3].map((value) => span(value)), ["0", "0.50 s", "59.0 s", "1.00 min", "1.50 h", "3.00 d"]);
  assert.deepEqual([span(null), span(90, ["h", 3600])], ["–", "0.025 h"]);
  assert.deepEqual(unitOf([null, 0, 5400, 90000]), ["h", 3600]);
  assert.deepEqual([elapsed(59.6), elapsed(90061)], ["00:01:00", "1 d 01:01:01"]);
  assert.deepEqual([instant(3e-4), instant(0.02), instant(2)], ["300 µs", "20.0 ms", "2.00 s"]);
});

test("axes are labelled with round times that do not overlap", () => {
  assert.deepEqual(roundSpans(30, 8000, 9).map((label) => label.text), ["1 min", "2 min", "5 min", "10 min", "20 min", "1 h", "2 h"]);
  assert.deepEqual(roundSpans(30, 8000, 4).map((label) => label.text), ["1 min", "5 min", "20 min", "2 h"]);
  assert.deepEqual(roundSpans(1700, 4000, 7).map((label) => label.text), ["30 min", "1 h"]);
  assert.deepEqual(roundSpans(61, 62, 7).map((label) => label.at), [61, 62]);
  assert.deepEqual(roomy(roundSpans(30, 8000, 9), (at) => at / 10, 60).map((label) => label.text), ["1 min", "20 min", "1 h", "2 h"]);
  assert.deepEqual(timeLabels(0, 86400 * 4, 4), { word: "days", labels: [0, 1, 2, 3, 4].map((day) => ({ at: 86400 * day, text: String(day) })) });
  assert.deepEqual(timeLabels(0, 0, 4).labels, [{ at: 0, text: "0" }]);
});

test("shares are read from quantiles", () => {
  const [values, shares] = [[1, 2, 2, 10], [0, 0.5, 0.75, 1]];
  assert.deepEqual([0, 1, 1.5, 2, 6, 10, 99].map((value) => shareAt(values, shares, value)), [0, 0, 0.25, 0.75, 0.875, 1, 1]);
});

test("jobs that share a GPU are stacked, and whole ones halved", () => {
  const parts = segmentsOf(columns([[0, 0, 0, 0.5, 0, 10], [1, 0, 0, 0.25, 1, 2], [2, 0, 0, 0.25, 2, 9], [3, 0, 0, 0.25, 4, 1]]));
  assert.deepEqual(parts.map(({ from, to }) => [from, to]), [[0, 0.5], [0.5, 0.75], [0.75, 1], [0.5, 0.75]]);
  const whole = segmentsOf(columns([[0, 0, 0, 2, 0, 10], [1, 0, 0, 2, 5, 10], [2, 1, 0, 2, 6, 1]]));
  assert.deepEqual(whole.map(({ from, to }) => [from, to]), [[0, 0.5], [0.5, 1], [0, 1]]);
});

test("a segment is found by its place, and its neighbours by direction", () => {
  const segments = segmentsOf(columns([[0, 0, 0, 1, 0, 10], [1, 1, 1, 2, 5, 5], [0, 0, 0, 1, 20, 10]]));
  const rows = rowsOf([1, 4]);
  assert.deepEqual(rows.tops, [4, 24, 92]);
  assert.deepEqual(segments.map((segment) => placeOf(segment, rows)), [[4, 16], [40, 32], [4, 16]]);
  assert.equal(segmentAt(segments, rows, 7, 41, 0), segments[1]);
  assert.equal(segmentAt(segments, rows, 7, 30, 0), null);
  assert.equal(segmentAt(segments, rows, 12, 5, 3), segments[0]);
  assert.equal(neighbour(segments, rows, segments[0]!, 1, 0), segments[2]);
  assert.equal(neighbour(segments, rows, segments[2]!, -1, 0), segments[0]);
  assert.equal(neighbour(segments, rows, segments[0]!, 0, 1), segments[1]);
  assert.equal(neighbour(segments, rows, segments[0]!, -1, 0), null);
});
