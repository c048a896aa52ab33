// What the cluster did over time: one panel for each policy, all to the same scale.

function overTime() {
  const use = runs.some((run) => run.use.length), queue = runs.some((run) => run.queue.length);
  const marked = data.last > 0 && data.last < data.end * 0.98 ? " The dashed line is the last submission." : "";
  const most = Math.max(1, ...runs.flatMap((run) => run.queue));
  const busy = (run) => {
    const share = measures.find((each) => each.title === "in use").values[runs.indexOf(run)];
    return share == null ? "" : `${(100 * share).toFixed(1)} % in use${marked ? " to the last submission" : ""}`;
  };
  return [
    use ? section("GPUs in use", `Of ${count(data.gpus)}.${marked}`,
      chart((width) => panels(width, "use", Math.max(data.gpus, ...runs.flatMap((run) => run.use)), (value) => `${digits(value)} GPUs`, busy)).box) : null,
    queue ? section("Jobs waiting", `All panels to the same scale.${marked}`,
      chart((width) => panels(width, "queue", most, (value) => `${count(value)} jobs`, (run) => `at most ${count(Math.max(0, ...run.queue))}`)).box) : null,
  ];
}

function panels(width, what, most, said, note) {
  const each = runs.length > 6 ? 44 : 58, gap = 24, left = 48, right = width - 8, top = 0;
  const bottom = top + runs.length * (each + gap), height = bottom + 34, long = data.end || 1;
  const x = (at) => left + at / long * (right - left), bins = Math.max(...runs.map((run) => run[what].length));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": runs.map((run) => `${run.label}: ${note(run)}`).join("; ") });
  runs.forEach((run, place) => {
    const low = top + place * (each + gap) + gap + each, y = (value) => low - value / most * each;
    svg.append(shape("text", { class: "name", x: left, y: low - each - 7, style: `fill:${colour(place)}` }, run.label),
      shape("text", { x: right, y: low - each - 7, "text-anchor": "end" }, note(run)));
    for (const value of [0, most]) {
      svg.append(shape("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }),
        shape("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, count(value)));
    }
    const points = run[what], step = (right - left) / bins;
    if (!points.length) return;
    const path = points.map((value, i) => `H${(left + i * step).toFixed(1)}V${y(value).toFixed(1)}`).join("");
    svg.append(shape("path", { d: `M${left} ${low}${path}H${right}V${low}Z`, style: `fill:${colour(place)}`, "fill-opacity": 0.55 }));
  });
  if (data.last > 0 && data.last < data.end * 0.98) {
    svg.append(shape("line", { class: "mark", x1: x(data.last), x2: x(data.last), y1: gap, y2: bottom }));
  }
  const { word, all } = timeTicks(0, long, width / 90);
  for (const [at, text] of all) svg.append(shape("text", { x: x(at), y: bottom + 16, "text-anchor": "middle" }, text));
  svg.append(shape("text", { x: (left + right) / 2, y: bottom + 31, "text-anchor": "middle" }, `${word} from the beginning`));
  crosshair(svg, { left, right, top: gap, bottom, told: (at) => {
    const part = Math.min(bins - 1, Math.floor((at - left) / (right - left) * bins));
    return [`at ${span((at - left) / (right - left) * long)}`, runs.map((run, place) => [run.label, run[what].length ? said(run[what][part]) : "–", place])];
  } });
  return svg;
}
