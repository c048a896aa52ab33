// What a short completion time costs: jobs that are stopped and begun again.

function price() {
  const [jct, stops] = ["mean JCT", "preempted"].map((title) => measures.find((measure) => measure.title === title).values);
  if (runs.length < 2 || !stops.some((value) => value > 0)) return null;
  return section("Completion time and preemptions", "Mean JCT against preemptions per job; nearer to the lower left corner is better.",
    chart((width) => priceChart(width, jct, stops)).box);
}

function priceChart(width, jct, stops) {
  const height = 300, left = 58, right = width - 16, top = 14, bottom = height - 38;
  const there = runs.map((run, place) => ({ run, place, a: stops[place], b: jct[place] })).filter((each) => each.a != null && each.b > 0);
  const low = Math.min(...there.map((each) => each.b)) / 1.25, high = Math.max(...there.map((each) => each.b)) * 1.15;
  const far = Math.max(...there.map((each) => each.a)) * 1.12;
  const x = (value) => left + 10 + value / far * (right - left - 10), y = (value) => bottom - Math.log(value / low) / Math.log(high / low) * (bottom - top);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": there.map(({ run, a, b }) => `${run.label}: ${digits(a)} preemptions per job, mean JCT ${span(b)}`).join("; ") });
  for (const value of roundSpans(low, high)) {
    svg.append(shape("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }), shape("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of ticks(0, far, width / 100)) svg.append(shape("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, String(value)));
  svg.append(shape("text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, "preemptions per job"));
  const taken = there.map(({ a, b }) => [x(a) - 6, y(b) - 6, x(a) + 6, y(b) + 6]);
  for (const { run, place, a, b } of there) {
    const text = run.label.length > 24 ? `${run.label.slice(0, 23)}…` : run.label, long = text.length * 6.7;
    const spots = [[10, 4], [-10 - long, 4], [-long / 2, -10], [-long / 2, 19], [10, 17], [10, -9], [-10 - long, -9], [-10 - long, 17], [10, 30], [10, -22]];
    const areas = spots.map(([dx, dy]) => [x(a) + dx, y(b) + dy - 11, x(a) + dx + long, y(b) + dy + 3]);
    const crossed = (area) => taken.filter((each) => each[0] < area[2] && each[2] > area[0] && each[1] < area[3] && each[3] > area[1]).length
      + 10 * (area[0] < left || area[2] > width || area[1] < 0 || area[3] > bottom);
    const area = areas.reduce((best, each) => crossed(each) < crossed(best) ? each : best);
    taken.push(area);
    svg.append(shape("circle", { cx: x(a), cy: y(b), r: 5.5, style: `fill:${colour(place)}` },
      shape("title", {}, `${run.label}: ${digits(a)} preemptions per job, mean JCT ${span(b)}`)),
    shape("text", { class: "name halo", x: area[0], y: area[3] - 3, style: `fill:${colour(place)}` }, text));
  }
  return svg;
}

// Round times within a range, some more than the powers alone.
const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 14400, 18000, 21600, 28800, 36000, 43200, 64800,
  86400, 129600, 172800, 259200, 432000, 604800, 864000, 1728000, 2592000, 8640000];
function roundSpans(low, high) {
  const found = STEPS.filter((value) => value >= low && value <= high), every = Math.ceil(found.length / 7);
  return found.length ? found.filter((_, i) => i % every === 0) : [low, high];
}
const short = (seconds) => span(seconds).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ");
