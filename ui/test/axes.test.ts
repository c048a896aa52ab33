import assert from "node:assert/strict";
import { test } from "node:test";
import { importance } from "../src/core/importance";
import { axesOf, decimate, passes, rankOf, rungsOf, scalesOf, type TrialLike } from "../src/core/axes";

const trial = (id: number, params: Record<string, unknown>, value: number | null = null): TrialLike => ({ id, params, value });
const close = (a: number | null, b: number) => assert.ok(a !== null && Math.abs(a - b) < 1e-9, `${a} is not ${b}`);

test("an axis is logarithmic if the space is, or its values differ by far", () => {
  const trials = [1e-4, 1e-3, 1e-2].map((lr, i) => trial(i, { lr, wd: 1 + i, opt: i ? "sgd" : "adam", seed: 0 }, 5 - i));
  const axes = axesOf(trials, "loss", new Map([["wd", true], ["opt", false]]));
  assert.deepEqual(axes.map((axis) => [axis.name, axis.kind]), [["lr", "log"], ["wd", "log"], ["opt", "choice"], ["loss", "linear"]]);
  close(axes[0]!.at(trials[1]!), 0.5);
  assert.deepEqual(axes[2]!.labels, ["adam", "sgd"]);
  close(axes[3]!.at(trials[0]!), 1);
  assert.equal(axes[3]!.at(trial(9, {})), null);
});

test("trials pass if they are inside all brushes", () => {
  const trials = [0, 1, 2, 3].map((x) => trial(x, { x, y: 3 - x }));
  const axes = axesOf(trials, null, new Map());
  const left = (brushes: [string, [number, number]][]) => trials.filter((one) => passes(one, axes, new Map(brushes))).map((one) => one.id);
  assert.deepEqual(left([]), [0, 1, 2, 3]);
  assert.deepEqual(left([["x", [0.3, 1]]]), [1, 2, 3]);
  assert.deepEqual(left([["x", [0.3, 1]], ["y", [0.3, 1]]]), [1, 2]);
});

test("trials are ranked from the best to the worst, and those without a value with the worst", () => {
  const trials = [trial(1, {}, 0.5), trial(2, {}, 0.1), trial(3, {}, 0.9), trial(4, {})];
  assert.deepEqual(trials.map(rankOf(trials, 1)), [0.5, 0, 1, 1]);
  assert.deepEqual(trials.map(rankOf(trials, -1)), [0.5, 1, 0, 1]);
});

test("rungs are the steps at which trials were stopped", () => {
  const at = (step: number | null, stopped: boolean) => ({ step, stopped });
  assert.deepEqual(rungsOf([at(9, false), at(3, true), at(3, true), at(1, true), at(null, true), at(2, false)]), [{ step: 1, reached: 5, stopped: 1 }, { step: 3, reached: 3, stopped: 2 }]);
  assert.deepEqual(rungsOf([at(9, false)]), []);
});

test("of very many trials the extremes are drawn, and some of the others", () => {
  const trials = Array.from({ length: 10_000 }, (_, i) => trial(i, {}, (i * 7919) % 10_000));
  const some = decimate(trials, 2000);
  assert.equal(some.length, 2000);
  assert.equal(new Set(some).size, 2000);
  assert.ok(some.some((one) => one.value === 0) && some.some((one) => one.value === 9999));
});

test("the definition says which parameters are sampled on a logarithmic scale", () => {
  const parameters = { lr: { distribution: "log_uniform" }, wd: { distribution: "uniform" }, bs: { values: [1] } };
  assert.deepEqual([...scalesOf({ parameters })], [["lr", true], ["wd", false]]);
  const trials = [0.001, 0.1, 0.3].map((wd, i) => trial(i, { wd }));
  assert.equal(axesOf(trials, null, scalesOf({ parameters }))[0]!.kind, "linear");
});

test("importance is the share of the variance that a parameter explains alone", () => {
  const decided = Array.from({ length: 30 }, (_, i) => trial(i, { a: i % 3, b: i }, i % 3));
  const shares = new Map(importance(decided, ["b", "a"]));
  assert.deepEqual([...shares.keys()], ["a", "b"]);
  assert.equal(shares.get("a"), 1);
  assert.ok(shares.get("b")! < 0.2);
  const tied = Array.from({ length: 40 }, (_, i) => trial(i, { a: i % 2 ? 0 : 1 + i }, i % 2));
  assert.ok(importance(tied, ["a"])[0]![1] > 0.8);
  const mixed = [0, 1, 2, 3].flatMap((value) => [1, true, [1], null].map((a, i) => trial(4 * value + i, { a }, value)));
  assert.deepEqual(importance(mixed, ["a"]), [["a", 0]]);
  assert.deepEqual(importance([...decided.slice(0, 3), trial(9, { a: 1 })], ["a"]), []);
});
