// Parallel coordinates: one axis per parameter, the metric on the last; drag along an axis to
// keep only the trials that pass there, click it to keep all again.

const brushes = new Map();

function parallel() {
  const width = 1180, height = 330, top = 42, bottom = 20;
  const all = axes.map((axis) => ({ ...axis, of: (trial) => trial.params[axis.name] }));
  if (metric && measured.length) all.push(metricAxis());
  const side = 60, gap = all.length > 1 ? (width - 2 * side) / (all.length - 1) : 0;
  const chart = shape("svg", { viewBox: `0 0 ${width} ${height}`, class: `chart${trials.length > 80 ? " many" : ""}`, role: "img" });
  all.forEach((axis, place) => {
    axis.x = all.length > 1 ? side + place * gap : width / 2;
    axis.y = scale(axis, top, height - bottom);
  });
  const order = [...trials].sort((a, b) => (ranks.get(b.label) ?? 1e9) - (ranks.get(a.label) ?? 1e9));
  for (const trial of order) line(chart, all, trial);
  for (const axis of all) axisLine(chart, axis, top, height - bottom, Math.max(gap, 90));
  return section("Parameters", "each line is a trial; drag along an axis to select, click it to clear", chart);
}

function metricAxis() {
  const values = measured.map((trial) => trial.value);
  const log = values.every((value) => value > 0) && wantsLog(values);
  const ends = { min: Math.min(...values), max: Math.max(...values) };
  return { name: metric, kind: log ? "log" : "line", ...ends, metric: true, of: worth };
}

// The place of a value on its axis; null where it has none.
function scale(axis, top, bottom) {
  if (axis.kind === "text" || axis.kind === "few") {
    const step = axis.values.length > 1 ? (bottom - top) / (axis.values.length - 1) : 0;
    const places = new Map(axis.values.map((value, i) => [JSON.stringify(value), step ? bottom - i * step : (top + bottom) / 2]));
    return (value) => places.get(JSON.stringify(value ?? null)) ?? null;
  }
  const f = axis.kind === "log" ? Math.log10 : (value) => value;
  const size = f(axis.max) - f(axis.min);
  return (value) => !isNumber(value) ? null
    : size > 0 ? bottom - (f(value) - f(axis.min)) / size * (bottom - top) : (top + bottom) / 2;
}

function line(chart, all, trial) {
  const points = all.map((axis) => [axis.x, axis.y(axis.of(trial))]).filter((point) => point[1] != null);
  if (!points.length) return;
  if (points.length === 1) points.push([points[0][0] + 8, points[0][1]]);
  const bend = (a, b) => `C${(a[0] + b[0]) / 2} ${a[1].toFixed(1)} ${(a[0] + b[0]) / 2} ${b[1].toFixed(1)} ${b[0]} ${b[1].toFixed(1)}`;
  const path = `M${points[0][0]} ${points[0][1].toFixed(1)}` + points.slice(1).map((point, i) => bend(points[i], point)).join("");
  const kind = `trial${trial.label === best ? " best" : ""}`;
  chart.append(shape("path", { class: kind, d: path, style: `stroke:${colour(trial)}`, "data-trial": trial.label }),
    follows(shape("path", { class: "touch", d: path, "data-trial": trial.label }), trial));
}

function axisLine(chart, axis, top, bottom, room) {
  const longest = Math.max(6, Math.floor(room / 7));
  const cut = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
  const title = shape("text", { class: "title", x: axis.x, y: 14, "text-anchor": "middle" }, cut(axis.name, longest));
  title.append(shape("title", {}, axis.name));
  chart.append(shape("line", { class: "axis", x1: axis.x, x2: axis.x, y1: top, y2: bottom, "stroke-width": 2 }), title);
  const marks = axis.values || (axis.kind === "log" ? logTicks(axis.min, axis.max) : ticks(axis.min, axis.max, 6));
  const every = Math.ceil(marks.length / 16);
  marks.filter((_, i) => i % every === 0).forEach((value) => {
    const y = axis.y(value);
    if (y == null) return;
    const text = shape("text", { x: axis.x + 7, y: y + 4, "paint-order": "stroke",
      style: "stroke:var(--card);stroke-width:3px" }, cut(shown(value), Math.max(5, longest - 3)));
    text.append(shape("title", {}, shown(value)));
    chart.append(shape("circle", { cx: axis.x, cy: y, r: 2, style: "fill:var(--dim)" }), text);
  });
  const brush = shape("rect", { class: "brush", x: axis.x - 7, width: 14, y: top, height: 0 });
  const grip = shape("rect", { class: "grip", x: axis.x - 12, y: top - 8, width: 24, height: bottom - top + 16 });
  chart.append(brush, grip);
  brushable(chart, axis, brush, grip);
}

function brushable(chart, axis, brush, grip) {
  const at = (event) => {
    const frame = chart.getBoundingClientRect();
    return (event.clientY - frame.top) * chart.viewBox.baseVal.height / frame.height;
  };
  let start = null;
  const choose = (low, high) => {
    const wide = high - low > 4;
    brush.setAttribute("y", low);
    brush.setAttribute("height", wide ? high - low : 0);
    if (wide) brushes.set(axis, [low, high]); else brushes.delete(axis);
    select();
  };
  grip.addEventListener("pointerdown", (event) => {
    start = at(event);
    grip.setPointerCapture(event.pointerId);
    choose(start, start);
  });
  grip.addEventListener("pointermove", (event) => {
    if (start != null) choose(Math.min(start, at(event)), Math.max(start, at(event)));
  });
  grip.addEventListener("pointerup", () => { start = null; });
}

// Everywhere on the page only those trials stay that pass through all brushes.
function select() {
  const passes = (trial) => [...brushes].every(([axis, [from, to]]) => {
    const y = axis.y(axis.of(trial));
    return y != null && y >= from && y <= to;
  });
  const kept = new Set(trials.filter(passes).map((trial) => trial.label));
  for (const node of document.querySelectorAll("[data-trial]")) {
    node.classList.toggle("hidden", !kept.has(node.dataset.trial));
  }
}
