// What the cluster did over time: one panel for each policy.

// The whole time, or, where the end is long, the part of it in which jobs came.
let shownSpan = data.spans.length > 1 && data.last > 0.2 * data.end ? 1 : 0;
const spanEnd = () => data.spans[shownSpan] || 1;
const lastIn = () => data.last > 0 && data.last < spanEnd() * 0.98;
const drawnSpan = (run, what) => run[what][shownSpan] || [];
const peakOf = (run, what) => drawnSpan(run, what).reduce((most, value) => Math.max(most, value), 0);

function overTime() {
  const found = [["use", inUse], ["queue", waiting]].filter(([what]) => runs.some((run) => run[what][0]?.length)).map(([, paint]) => paint());
  if (found.length && data.spans.length > 1) {
    found[0].section.firstChild.append(choices("time", [[1, "until the last submission"], [0, "until all jobs ended"]], shownSpan,
      (value) => { shownSpan = value; for (const each of found) each.redraw(); }));
  }
  return found.map((each) => each.section);
}

function inUse() {
  const shares = measures.find((measure) => measure.title === "in use").values;
  const busy = (run) => { const share = shares[runs.indexOf(run)]; return share == null ? "" : `${(100 * share).toFixed(1)} %`; };
  const most = () => Math.max(data.gpus, ...runs.map((run) => peakOf(run, "use")));
  const said = shares.some((share) => share != null) ? " On the right: mean share in use until the last submission." : "";
  const { box, redraw } = chart((width) => panels(width, "use", most, (value) => `${digits(value)} GPUs`, busy));
  return { section: section("GPUs in use", `Of ${count(data.gpus)}.${said}`, box), redraw };
}

function waiting() {
  let own = false;
  const scale = (run) => Math.max(1, own ? peakOf(run, "queue") : Math.max(...runs.map((each) => peakOf(each, "queue"))));
  const { box, redraw } = chart((width) => panels(width, "queue", scale, (value) => `${count(value)} jobs`, (run) => `at most ${count(run.most)}`));
  const found = section("Pending jobs", "Jobs without GPUs.", box);
  if (runs.length > 1) {
    found.firstChild.append(choices("scale", [["same", "same scale"], ["own", "own scale"]], "same", (name) => { own = name === "own"; redraw(); }));
  }
  return { section: found, redraw };
}

function panels(width, what, mostOf, said, note) {
  const each = runs.length > 6 ? 44 : 58, gap = 26, left = 48, right = width - 8;
  const bottom = runs.length * (each + gap), height = bottom + 34, long = spanEnd();
  const x = (at) => left + at / long * (right - left), bins = Math.max(...runs.map((run) => drawnSpan(run, what).length));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": runs.map((run) => `${run.label}: ${note(run)}`).join("; ") });
  runs.forEach((run, place) => {
    const low = (place + 1) * (each + gap), most = mostOf(run), y = (value) => low - value / most * each;
    svg.append(shape("text", { class: "name", x: left, y: low - each - 7, style: `fill:${colour(place)}` }, run.label),
      shape("text", { x: right, y: low - each - 7, "text-anchor": "end" }, note(run)));
    for (const value of [0, most]) {
      svg.append(shape("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }),
        shape("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, count(value)));
    }
    const step = (right - left) / bins;
    const path = drawnSpan(run, what).map((value, i) => `H${(left + i * step).toFixed(1)}V${y(value).toFixed(1)}`).join("");
    if (path) svg.append(shape("path", { d: `M${left} ${low}${path}H${right}V${low}Z`, style: `fill:${colour(place)}`, "fill-opacity": 0.6 }));
    if (!lastIn()) return;
    svg.append(shape("line", { class: "mark", x1: x(data.last), x2: x(data.last), y1: low - each, y2: low }));
    const free = x(data.last) > left + run.label.length * 7 + 50 && x(data.last) < right - 120;
    if (!place && free) svg.append(shape("text", { class: "halo", x: x(data.last), y: low - each - 7, "text-anchor": "middle" }, "last submission"));
  });
  const { word, all } = timeTicks(0, long, width / 90);
  for (const [at, text] of all) svg.append(shape("text", { x: x(at), y: bottom + 16, "text-anchor": "middle" }, text));
  svg.append(shape("text", { x: (left + right) / 2, y: bottom + 31, "text-anchor": "middle" }, `${word} since the start`));
  crosshair(svg, { left, right, top: gap, bottom, told: (at) => {
    const part = Math.min(bins - 1, Math.floor((at - left) / (right - left) * bins));
    return [`at ${clock((at - left) / (right - left) * long)}`, runs.map((run, place) => [run.label, drawnSpan(run, what).length ? said(drawnSpan(run, what)[part]) : "–", place])];
  } });
  return svg;
}
