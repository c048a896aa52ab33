// The cluster: machines with their GPUs from top to bottom, time from left to right.

// Told apart on white and on black; those without a place of their own are grey.
const PAINT = ["#4c8fd0", "#e08a3c", "#3fae82", "#b07ad0", "#c9a42a", "#d9659a", "#3fb2c4", "#8c9a3a", "#d0645a", "#6f7fd6", "#a0785a", "#5fa84f"];
const GREY = "#8d969f";
const SIZE_PAINT = ["#8d969f", "#9fc7b0", "#6fb1c9", "#4c8fd0", "#7a64c8", "#c2549a"];
const sizeOf = (gpus) => gpus <= 0 ? 0 : gpus < 1 ? 1 : gpus <= 1 ? 2 : gpus <= 4 ? 3 : gpus <= 8 ? 4 : 5;

function unpacked(columns) {
  let at = 0;
  const on = new Set(columns.on), pieces = columns.job.map((job, i) => ({ job, row: columns.row[i], gpu: columns.gpu[i], gpus: columns.gpus[i],
    begin: at += columns.begin[i], end: at + columns.long[i], goesOn: on.has(i), from: 0, to: 1 }));
  const lanes = new Map();
  for (const piece of pieces) {
    const lane = `${piece.row}/${piece.gpu}`, beside = (lanes.get(lane) || []).filter((each) => each.end > piece.begin);
    lanes.set(lane, beside);
    if (piece.gpus < 1) {                       // parts of a GPU are stacked where there is room
      piece.from = 0;
      for (const each of beside.sort((a, b) => a.from - b.from)) if (each.from < piece.from + piece.gpus - 1e-6) piece.from = Math.max(piece.from, each.to);
      piece.from = Math.min(piece.from, 1 - piece.gpus);
      piece.to = piece.from + piece.gpus;
    } else if (beside.length) {                 // two jobs share whole GPUs: half the height each
      const other = beside[beside.length - 1];
      if (other.gpus >= 1) { [other.from, other.to] = other.from ? [0.5, 1] : [0, 0.5]; [piece.from, piece.to] = other.from ? [0, 0.5] : [0.5, 1]; }
    }
    beside.push(piece);
  }
  return pieces;
}

function gantt() {
  const c = data.cluster;
  if (!c || !c.pieces.some((each) => each.job.length)) return null;
  let sum = 0, lanes = 0;
  const numbers = c.jobs.map((step) => sum += step), firsts = c.sizes.map((size) => (lanes += size) - size);
  const all = c.pieces.map(() => null), pieces = () => all[view.run] || (all[view.run] = unpacked(c.pieces[view.run]));
  const start = Math.max(0, measures[0].values.indexOf(measures[0].best));
  // Where many users are alike in size, few would have a colour.
  const named = c.user.filter((user) => user >= 0 && user < c.coloured).length > c.user.length / 2;
  const view = { run: c.pieces[start].job.length ? start : c.pieces.findIndex((each) => each.job.length), by: c.users.length > 1 && named ? "user" : "job", from: 0, until: c.end, piece: null, drag: null };
  const lane = Math.max(4, Math.min(16, Math.floor(560 / lanes))), gap = lane > 7 ? 4 : 2;
  const top = 4, bottom = top + lanes * lane + c.sizes.length * gap, height = bottom + 38;
  const rowTop = (row) => top + firsts[row] * lane + row * gap;
  const canvas = make("canvas", { tabindex: "0", role: "img" }), box = make("div", {}, canvas), keys = make("div", { class: "keys" });
  let width = 0, left = 60, printing = false;

  const fillOf = (piece) => {
    if (view.by === "size") return SIZE_PAINT[sizeOf(c.gpus[piece.job])];
    const user = c.user[piece.job];
    if (view.by === "user") return user >= 0 && user < c.coloured ? PAINT[user] : GREY;
    return `hsl(${numbers[piece.job] * 137.508 % 360} 45% 56%)`;
  };
  const x = (at) => left + (at - view.from) / (view.until - view.from) * (width - left - 8);
  const back = (px) => view.from + (px - left) / (width - left - 8) * (view.until - view.from);
  const place = (piece) => {
    const y = rowTop(piece.row) + piece.gpu * lane;
    const high = piece.gpus < 1 ? lane : Math.min(piece.gpus, c.sizes[piece.row] - piece.gpu) * lane;
    return [y + piece.from * high, (piece.to - piece.from) * high];
  };

  function paint() {
    if (width < 40) return;
    const ratio = Math.max(devicePixelRatio || 1, printing ? 3 : 1), pen = canvas.getContext("2d");
    canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
    const style = getComputedStyle(document.documentElement), ink = (name, paper) => printing ? paper : style.getPropertyValue(name);
    pen.scale(ratio, ratio);
    pen.font = "11.5px system-ui, sans-serif";
    const dim = ink("--dim", "#5f6871"), line = ink("--line", "#e1e4e8"), text = ink("--text", "#1f2328"), card = ink("--card", "#fff");
    c.sizes.forEach((size, row) => {
      pen.fillStyle = line; pen.globalAlpha = 0.45;
      pen.fillRect(left, rowTop(row), width - left - 8, size * lane);
      pen.globalAlpha = 1;
      if (size * lane + gap < 11 && row % Math.ceil(12 / (size * lane + gap))) return;
      pen.fillStyle = dim; pen.textAlign = "right"; pen.textBaseline = "middle";
      pen.fillText(cut(pen, c.machines[row], left - 12), left - 8, rowTop(row) + size * lane / 2);
    });
    pen.save();
    pen.beginPath(); pen.rect(left, 0, width - left - 8, bottom); pen.clip();
    for (const piece of pieces()) {
      if (piece.end < view.from || piece.begin > view.until) continue;
      const [y, high] = place(piece), a = x(piece.begin), b = x(piece.end), wide = Math.max(b - a, 0.6);
      pen.globalAlpha = view.piece && view.piece.job !== piece.job ? 0.3 : 1;
      pen.fillStyle = fillOf(piece);
      pen.fillRect(a, y, wide, high - (high > 3 ? 0.5 : 0));
      if (wide > 3) { pen.fillStyle = card; pen.fillRect(b - 0.7, y, 0.7, high); }
      if (view.piece && view.piece.job === piece.job) { pen.strokeStyle = text; pen.lineWidth = wide < 5 ? 0.5 : view.piece === piece ? 2 : 1; pen.strokeRect(a, y, wide, high); }
    }
    pen.globalAlpha = 1;
    if (view.drag) { pen.fillStyle = text; pen.globalAlpha = 0.15; pen.fillRect(Math.min(...view.drag), top, Math.abs(view.drag[1] - view.drag[0]), bottom); }
    pen.restore();
    const { word, all: marks } = timeTicks(view.from * c.tick, view.until * c.tick, width / 110);
    pen.fillStyle = dim; pen.textAlign = "center"; pen.textBaseline = "alphabetic";
    for (const [at, said] of marks) pen.fillText(said, x(at / c.tick), bottom + 15);
    pen.fillText(`${word} since the start`, (left + width) / 2, bottom + 31);
    canvas.setAttribute("aria-label", `GPUs of ${c.machines.length} nodes over time under ${runs[view.run].label}; arrow keys move between jobs`);
  }

  function legend() {
    const entry = (paint, text) => make("span", {}, make("i", { class: "key", style: `background:${paint}` }), text);
    const more = c.users.length - c.coloured;
    keys.replaceChildren(...view.by === "user" ? [...c.users.slice(0, c.coloured).map((user, i) => entry(PAINT[i], user || "(no name)")),
      ...more > 0 ? [entry(GREY, `${count(more)} others`)] : []]
      : view.by === "size" ? SIZES.map(([, text], i) => entry(SIZE_PAINT[i], text)).filter((_, i) => c.gpus.some((gpus) => sizeOf(gpus) === i))
      : ["Each job has its own colour; similar colours have no meaning."]);
  }

  function look(piece, px, py) {
    const changed = view.piece !== piece;
    view.piece = piece;
    if (changed) paint();
    if (!piece) return hush();
    const frame = canvas.getBoundingClientRect(), at = c.at[piece.job], user = c.users[c.user[piece.job]];
    const parts = pieces().filter((each) => each.job === piece.job);
    const stretches = new Set(parts.map((each) => each.begin)).size, first = Math.min(...parts.map((each) => each.begin));
    const last = parts.length > 1 ? `${stretches > 1 ? `${stretches} run periods` : `${parts.length} nodes`}` : "";
    const rows = [["user", user || "–"], ["GPUs", `${piece.gpus}${c.gpus[piece.job] > piece.gpus ? ` of ${c.gpus[piece.job]}` : ""} on ${c.machines[piece.row]}`],
      ["from", clock(piece.begin * c.tick)], ["to", piece.goesOn ? "after the end of the chart" : clock(piece.end * c.tick)], ["held for", `${piece.goesOn ? "more than " : ""}${span((piece.end - piece.begin) * c.tick)}`]];
    if (at >= 0) rows.push(["submitted", clock(at * c.tick)]);
    // Only where all machines are shown is its first stretch sure to be here.
    if (at >= 0 && c.machines.length === c.all) rows.push(["initial wait", span(Math.max(0, first - at) * c.tick)]);
    if (last) rows.push(["shown", last]);
    const [y] = place(piece);
    say(`job ${numbers[piece.job]}`, rows, px ?? frame.left + Math.max(left, x(piece.begin)), py ?? frame.top + y + lane);
  }

  function under(event) {
    const frame = canvas.getBoundingClientRect(), at = back(event.clientX - frame.left), y = event.clientY - frame.top;
    const slack = (view.until - view.from) / width * (event.pointerType === "touch" ? 8 : 2);
    let best = null, nearest = slack;
    for (const piece of pieces()) {
      const off = Math.max(piece.begin - at, at - piece.end, 0);
      if (off > nearest || best && off === nearest) continue;
      const [above, high] = place(piece);
      if (y >= above && y < above + high) [best, nearest] = [piece, off];
    }
    return best;
  }

  function zoom(from, until) {
    const least = Math.max(c.end / 5000, 1), middle = (from + until) / 2;
    if (until - from < least) [from, until] = [middle - least / 2, middle + least / 2];
    const long = Math.min(until - from, c.end);
    view.from = Math.max(0, Math.min(from, c.end - long));
    view.until = view.from + long;
    look(null);
    paint();
  }
  const by = (factor, about = view.piece ? (view.piece.begin + view.piece.end) / 2 : (view.from + view.until) / 2) =>
    zoom(about - (about - view.from) * factor, about + (view.until - about) * factor);
  const slide = (share) => { const step = (view.until - view.from) * share; zoom(view.from + step, view.until + step); };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") { const px = event.offsetX; view.drag = [px, px]; canvas.setPointerCapture(event.pointerId); }
    else look(under(event), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (view.drag) { view.drag[1] = event.offsetX; hush(); return paint(); }
    look(under(event), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerup", () => {
    if (!view.drag) return;
    const [a, b] = view.drag.map((px) => back(Math.max(left, Math.min(width - 8, px))));
    const far = Math.abs(view.drag[1] - view.drag[0]) > 6;
    view.drag = null;
    if (far) zoom(Math.min(a, b), Math.max(a, b)); else paint();
  });
  canvas.addEventListener("pointerleave", (event) => { if (!view.drag && gone(event)) look(null); });
  canvas.addEventListener("blur", () => look(null));
  canvas.addEventListener("dblclick", () => zoom(0, c.end));
  canvas.addEventListener("keydown", (event) => {
    const moves = { "+": () => by(0.5), "=": () => by(0.5), "-": () => by(2), "0": () => zoom(0, c.end), Escape: () => look(null),
      ArrowRight: () => walk(1, 0), ArrowLeft: () => walk(-1, 0), ArrowDown: () => walk(0, 1), ArrowUp: () => walk(0, -1) };
    if (!moves[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    moves[event.key]();
  });

  // To the next job of the same GPU, or to the GPU above or below at the same time.
  function walk(along, down) {
    const laneOf = (piece) => firsts[piece.row] + piece.gpu, here = view.piece, seen = pieces().filter((piece) => piece.end >= view.from && piece.begin <= view.until);
    if (!here || !seen.length) return look(seen[0] || null);
    const there = seen.filter((piece) => along ? laneOf(piece) === laneOf(here) && (piece.begin - here.begin) * along > 0 : (laneOf(piece) - laneOf(here)) * down > 0);
    const far = (piece) => along ? Math.abs(piece.begin - here.begin) : Math.abs(laneOf(piece) - laneOf(here)) * 1e9 + Math.abs(piece.begin - here.begin);
    if (there.length) look(there.reduce((a, b) => far(b) < far(a) ? b : a));
  }

  new ResizeObserver(() => {
    width = box.clientWidth;
    const pen = canvas.getContext("2d");
    pen.font = "11.5px system-ui, sans-serif";
    left = Math.min(width * 0.25, 20 + Math.max(...c.machines.map((name) => pen.measureText(name).width)));
    paint();
  }).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  addEventListener("beforeprint", () => { printing = true; paint(); });
  addEventListener("afterprint", () => { printing = false; paint(); });

  const some = c.machines.length < c.all ? `${count(c.machines.length)} of ${count(c.all)} nodes, evenly sampled; ` : "";
  const part = c.end * c.tick < data.end * 0.98 ? `the first ${span(c.end * c.tick)} of ${span(data.end)}. ` : "the whole time. ";
  const found = section("Cluster", `${some || "All nodes; "}${part}Each row is a GPU. Drag, or press + and −, to zoom; double-click to reset.`, box, keys);
  const tools = make("div", { class: "choices" },
    choices("policy", runs.map((run, i) => [i, run.label]).filter(([i]) => c.pieces[i].job.length), view.run, (i) => { view.run = i; look(null); paint(); }));
  const tones = choices("colour", [["user", "by user"], ["job", "by job"], ["size", "by size"]].filter(([name]) => name !== "user" || c.users.length > 1), view.by,
    (name) => { view.by = name; legend(); paint(); });
  const glass = make("div", { class: "choices", role: "group", "aria-label": "zoom" });
  for (const [text, name, act] of [["−", "zoom out", () => by(2)], ["+", "zoom in", () => by(0.5)], ["◂", "earlier", () => slide(-0.5)], ["▸", "later", () => slide(0.5)]]) {
    const button = make("button", { type: "button", "aria-label": name }, text);
    button.addEventListener("click", act);
    glass.append(button);
  }
  found.firstChild.append(tools);
  box.before(make("div", { class: "top", style: "margin-bottom:10px" }, tones, glass));
  legend();
  return found;
}

function cut(pen, text, most) {
  while (text.length > 2 && pen.measureText(text).width > most) text = `${text.slice(0, -2)}…`;
  return text;
}
