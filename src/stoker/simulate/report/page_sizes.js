// Waiting by the GPUs of a job: a dot for the median, a bar to where nine jobs in ten are.

const SIZES = [["none", "No GPU"], ["<1", "Part of a GPU"], ["1", "1 GPU"], ["2–4", "2–4 GPUs"], ["5–8", "5–8 GPUs"], [">8", "More than 8 GPUs"]];

const sizesThere = () => SIZES.filter(([name]) => runs.some((run) => run.sizes[name]));
const sizeRow = runs.length > 6 ? 15 : 17, sizeGap = 30;
const sizeHeight = () => sizesThere().length * (sizeGap + runs.length * sizeRow) + 26;

function sizes() {
  const there = sizesThere();
  if (!there.length) return null;
  return section("Wait by job size", "From the median (dot) to the 90th percentile (end of the bar).", chart((width) => sizeChart(width, there)).box);
}

function sizeChart(width, there) {
  const row = sizeRow, gap = sizeGap, top = 2, longest = Math.max(...runs.map((run) => run.label.length));
  const left = Math.min(Math.max(50, longest * 6.6 + 14), width * 0.32), right = width - 54, zero = left + 4, start = left + 26;
  const values = runs.flatMap((run) => Object.values(run.sizes).flatMap((each) => each.slice(1))).filter((value) => value > 0);
  const high = Math.max(60, ...values), low = Math.max(1, Math.min(high / 60, ...values.filter((value) => value >= 1)));
  // Many jobs do not wait at all: nothing has a place of its own on a line of powers.
  const x = (value) => value < low ? zero : start + Math.log(value / low) / Math.log(high / low) * (right - start);
  const height = sizeHeight(), bottom = height - 24;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Wait by number of GPUs, for each policy" });
  for (const [value, text] of [[0, "0"], ...roomy(spanTicks(low, high), x, 48)]) {
    svg.append(shape("line", { class: "axis", x1: x(value), x2: x(value), y1: top + 20, y2: bottom + 4 }),
      shape("text", { x: x(value), y: bottom + 18, "text-anchor": "middle" }, text));
  }
  there.forEach(([name, title], group) => {
    const above = top + group * (gap + runs.length * row), jobs = Math.max(...runs.map((run) => run.sizes[name]?.[0] || 0));
    svg.append(shape("text", { class: "strong halo", x: 0, y: above + 16 }, title,
      shape("tspan", { class: "soft", dx: 8 }, `${count(jobs)} ${jobs === 1 ? "job" : "jobs"}`)));
    runs.forEach((run, place) => {
      const [, median, p90] = run.sizes[name] || [], y = above + gap - 2 + place * row + row / 2 - 3;
      const label = run.label.length * 6.6 > left - 8 ? `${run.label.slice(0, Math.floor((left - 14) / 6.6))}…` : run.label;
      svg.append(shape("text", { x: left - 8, y: y + 4, "text-anchor": "end", style: `fill:${colour(place)}` }, label));
      if (median == null) return;
      const bar = shape("g", { style: `color:${colour(place)}` },
        shape("title", {}, `${run.label}, ${title}: median ${span(median)}, 90th percentile ${span(p90)}`),
        shape("rect", { x: x(median), y: y - 3.5, width: Math.max(0, x(p90) - x(median)), height: 7, rx: 3.5, fill: "currentColor", "fill-opacity": 0.38 }),
        shape("circle", { cx: x(median), cy: y, r: 4.5, fill: "currentColor" }),
        shape("text", { class: "halo", x: x(p90) + 8, y: y + 4 }, span(p90)));
      svg.append(bar);
    });
  });
  return svg;
}
