// Learning curves: every trial a line, the best on top, those that were stopped early dashed.

function curves() {
  const drawn = trials.map((trial) => ({ trial, points: (series[trial.label] || []).filter((p) => isNumber(p[0]) && isNumber(p[1])) }))
    .filter((each) => each.points.length);
  if (!metric || !drawn.length) return null;
  const compared = drawn.filter((each) => each.trial.counts);
  const every = (compared.length ? compared : drawn).flatMap((each) => each.points);
  const positive = every.every((point) => point[1] > 0);
  const box = make("div");
  const choice = make("input", { type: "checkbox" });
  choice.checked = positive && wantsLog(every.map((point) => point[1]));
  const redraw = () => box.replaceChildren(curveChart(drawn, every, choice.checked));
  choice.addEventListener("change", redraw);
  redraw();
  const found = section("Learning curves", `${metric} over steps`, box);
  if (positive) found.firstChild.append(make("label", { class: "choice" }, choice, " logarithmic"));
  return found;
}

// Where the poorest figure is a hundred times the usual one, a straight line shows nothing.
function wantsLog(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share) => sorted[Math.floor(share * (sorted.length - 1))];
  return at(0.98) > 30 * at(0.25);
}

function range(values, log) {
  const sorted = [...values].sort((a, b) => a - b);
  let low = sorted[0], high = sorted[sorted.length - 1];
  // A single trial that went astray must not flatten all the others.
  const usual = sorted[Math.floor(0.97 * (sorted.length - 1))];
  const usualLow = sorted[Math.ceil(0.03 * (sorted.length - 1))];
  if (!log && !larger && high - low > 6 * (usual - low)) high = usual;
  if (!log && larger && high - low > 6 * (high - usualLow)) low = usualLow;
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
  return [low, high];
}

function curveChart(drawn, every, log) {
  const width = 860, height = 330, left = 56, right = 12, top = 8, bottom = 34;
  const steps = drawn.flatMap((each) => each.points.map((point) => point[0]));
  let [first, last] = [Math.min(...steps), Math.max(...steps)];
  if (first === last) [first, last] = [first - 1, last + 1];
  const [low, high] = range(every.map((point) => point[1]), log);
  const f = log ? Math.log10 : (value) => value;
  const x = (step) => left + (step - first) / (last - first) * (width - left - right);
  const y = (value) => top + (f(high) - f(Math.min(Math.max(value, low), high))) / (f(high) - f(low)) * (height - top - bottom);
  const chart = shape("svg", { viewBox: `0 0 ${width} ${height}`, class: `chart${drawn.length > 80 ? " many" : ""}`, role: "img" });
  for (const value of log ? logTicks(low, high) : ticks(low, high, 6)) {
    chart.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      shape("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, shown(value)));
  }
  for (const step of ticks(first, last, 8)) {
    chart.append(shape("text", { x: x(step), y: height - 14, "text-anchor": "middle" }, shown(step)));
  }
  chart.append(shape("text", { x: (left + width - right) / 2, y: height, "text-anchor": "middle" }, "step"));
  // The best is drawn last, on top of all others.
  const order = [...drawn].sort((a, b) => (ranks.get(b.trial.label) ?? 1e9) - (ranks.get(a.trial.label) ?? 1e9));
  order.sort((a, b) => (a.trial.label === best) - (b.trial.label === best));
  for (const { trial, points } of order) {
    const kind = `trial${trial.stopped ? " stopped" : ""}${trial.label === best ? " best" : ""}`;
    const path = points.map((point, i) => `${i ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("");
    chart.append(shape("path", { class: kind, d: path, style: `stroke:${colour(trial)}`, "data-trial": trial.label }));
    const end = points[points.length - 1];
    if (points.length === 1 || trial.stopped || trial.label === best) {
      const fill = trial.label === best ? "var(--best)" : colour(trial);
      chart.append(shape("circle", { cx: x(end[0]), cy: y(end[1]), r: trial.label === best ? 4 : 2.4, style: `fill:${fill}` }));
    }
    chart.append(follows(shape("path", { class: "touch", d: path, "data-trial": trial.label }), trial));
  }
  return chart;
}
