// How long jobs took: for each time, the share of jobs that took no longer.

const CURVES = { jct: ["completion time", "from submission to end"], waiting: ["wait", "time without GPUs"],
  slowdown: ["slowdown", "completion time divided by run time"] };

function curves() {
  if (!runs.some((run) => run.curves.jct.length)) return null;
  let chosen = "jct";
  const drawn = chart((width) => curveChart(width, chosen));
  const found = section("Distribution of job times", "Share of jobs that took at most this long; further left is better.", drawn.box);
  found.firstChild.append(choices("quantity", Object.entries(CURVES).map(([name, [text]]) => [name, text]), chosen,
    (name) => { chosen = name; drawn.redraw(); }));
  return found;
}

function shareAt(points, value) {
  if (value < points[0]) return 0;
  let low = 0, high = points.length - 1;
  if (value >= points[high]) return 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (points[mid] <= value) low = mid; else high = mid; }
  const part = points[high] > points[low] ? (value - points[low]) / (points[high] - points[low]) : 1;
  return data.shares[low] + part * (data.shares[high] - data.shares[low]);
}

function curveChart(width, chosen) {
  const height = innerWidth > 820 ? Math.max(340, Math.min(sizeHeight(), 560)) : 340, left = 44, right = width - 10, top = 12, bottom = height - 36, slow = chosen === "slowdown";
  const lines = runs.map((run, place) => ({ place, run, points: run.curves[chosen] })).filter((line) => line.points.length);
  // One job in two thousand may be far out; with it in sight all others would be close together.
  const some = lines.flatMap((line) => [line.points[Math.floor(line.points.length * 0.02)], line.points.at(-4)]);
  const high = Math.max(slow ? 10 : 60, ...some), low = slow ? 1 : Math.max(1, Math.min(high / 100, ...some));
  const least = Math.min(...lines.map((line) => line.points[0]));
  const x = (value) => left + Math.log(Math.min(Math.max(value, low), high) / low) / Math.log(high / low) * (right - left);
  const y = (share) => bottom - share * (bottom - top);
  const back = (at) => low * (high / low) ** ((at - left) / (right - left));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": `${CURVES[chosen][0]}: ${lines.map(({ run, points }) => `${run.label}, median ${slow ? digits(points[151]) : span(points[151])}`).join("; ")}` });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(shape("line", { class: "axis", x1: left, x2: right, y1: y(share), y2: y(share) }),
      shape("text", { x: left - 7, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`));
  }
  const powers = [1, 2, 5, 10, 20, 50, 100, 1e3, 1e4, 1e5, 1e6, 1e7].filter((each) => each >= low && each <= high).map((each) => [each, `${count(each)} ×`]);
  for (const [value, text] of roomy(slow ? powers : spanTicks(low, high), x, 46)) {
    svg.append(shape("line", { class: "axis", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4 }),
      shape("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, value === low && least < low ? `≤ ${text}` : text));
  }
  svg.append(shape("text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, CURVES[chosen][1]));
  const paths = lines.map(({ place, points }) => {
    const path = points.map((value, i) => [x(value), y(data.shares[i])]);
    svg.append(shape("path", { class: "line", style: `stroke:${colour(place)}`, "stroke-dasharray": dashes(place),
      d: path.map(([a, b], i) => `${i ? "L" : `M${a.toFixed(1)} ${y(0)}L`}${a.toFixed(1)} ${b.toFixed(1)}`).join("") }));
    return path;
  });
  for (const { place, label } of labelled(lines, paths, { left, right, top, bottom })) {
    svg.append(shape("text", { class: "name halo", x: label.x, y: label.y, style: `fill:${colour(place)}` }, label.text));
  }
  crosshair(svg, { left, right, top, bottom, told: (at) => {
    const value = back(at), rows = lines.map(({ place, run, points }) => [run.label, shareAt(points, value), place]).sort((a, b) => b[1] - a[1]);
    return [`≤ ${slow ? `${digits(value)} ×` : span(value)}`, rows.map(([name, share, place]) => [name, `${(100 * share).toFixed(1)} %`, place])];
  } });
  return svg;
}

// A name beside its line, where it covers no other line and no other name, as far as that goes.
function labelled(lines, paths, box) {
  const taken = [];
  return lines.map(({ place, run }, own) => {
    const text = run.label.length > 24 ? `${run.label.slice(0, 23)}…` : run.label, long = text.length * 6.7;
    let best = null;
    for (let step = 3; step <= 36; step++) {
      for (const side of [1, -1]) {
        const level = box.bottom - step / 38 * (box.bottom - box.top);
        const on = paths[own].find((point) => point[1] <= level);
        if (!on || on[0] < box.left + 3) continue;
        const at = { x: side > 0 ? on[0] + 7 : on[0] - 7 - long, y: level + (side > 0 ? 8 : 0), text };
        const area = [at.x - 3, at.y - 11, at.x + long + 3, at.y + 3];
        if (area[0] < box.left || area[2] > box.right || area[3] > box.bottom) continue;
        const within = ([a, b]) => a > area[0] && a < area[2] && b > area[1] && b < area[3];
        const crossed = paths.reduce((sum, path, other) => sum + path.filter(within).length * (other === own ? 0.5 : 1), 0);
        const covered = taken.filter((each) => each[0] < area[2] && each[2] > area[0] && each[1] < area[3] && each[3] > area[1]).length;
        // How far off the nearest other line is says whose name it is.
        const near = Math.min(60, ...paths.filter((_, other) => other !== own).map((path) => Math.abs((path.find((point) => point[1] <= level) || on)[0] - on[0])));
        const worth = 1000 * covered + 20 * crossed - near + Math.abs(step - 20) / 4;
        if (!best || worth < best.worth) best = { worth, label: at, area };
      }
    }
    if (!best) return null;
    taken.push(best.area);
    return { place, label: best.label };
  }).filter(Boolean);
}
