const data = JSON.parse(document.getElementById("data").textContent);
const { runs, measures } = data;

// Every text goes in as text: names are other people's.
function fill(node, attributes, inside) {
  for (const [key, value] of Object.entries(attributes)) if (value != null) node.setAttribute(key, value);
  node.append(...inside.flat().filter((each) => each != null));
  return node;
}
const make = (kind, attributes = {}, ...inside) => fill(document.createElement(kind), attributes, inside);
const shape = (kind, attributes = {}, ...inside) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", kind), attributes, inside);

// ------------------------------------------------------- how things are written

const count = (value) => Math.round(value).toLocaleString("en-US");
const digits = (value) => value >= 99.95 ? count(value) : value >= 9.995 ? value.toFixed(1)
  : value >= 0.0995 || value === 0 ? value.toFixed(2) : String(Number(value.toPrecision(2)));
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function span(seconds, unit) {
  if (seconds == null) return "–";
  if (seconds === 0) return "0";
  const [name, size] = unit || UNITS.find((each) => seconds >= each[1]) || UNITS[3];
  return `${digits(seconds / size)} ${name}`;
}

// A column has one unit, so that its figures compare at a glance: that of its smallest.
function unitOf(values) {
  const least = Math.min(...values.filter((value) => value > 0));
  return UNITS.find((each) => least >= 0.5 * each[1]) || UNITS[3];
}

// A moment from the beginning: days, and the hour.
function clock(seconds) {
  const whole = Math.round(seconds), two = (value) => String(Math.floor(value)).padStart(2, "0"), rest = whole % 86400;
  return `${whole >= 86400 ? `${Math.floor(whole / 86400)} d ` : ""}${two(rest / 3600)}:${two(rest / 60 % 60)}:${two(rest % 60)}`;
}

function moment(seconds) {
  return seconds < 1e-3 ? `${digits(seconds * 1e6)} µs` : seconds < 1 ? `${digits(seconds * 1e3)} ms` : `${digits(seconds)} s`;
}

function written(value, kind, unit) {
  if (value == null) return "–";
  if (kind === "time") return span(value, unit);
  if (kind === "share") return `${(100 * value).toFixed(1)} %`;
  return kind === "instant" ? moment(value) : digits(value);
}

// After the eighth, colours come again, with another kind of line.
const colour = (place) => `var(--p${place % 8})`;
const dashes = (place) => ["", "7 3", "2 3"][Math.floor(place / 8) % 3] || null;
const key = (place) => make("i", { class: "dash", style: `border-color:${colour(place)};border-top-style:${["solid", "dashed", "dotted"][Math.floor(place / 8) % 3]}` });

// ------------------------------------------------------- numbers along a line

function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const rough = (high - low) / about, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= rough * (1 - 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

const ROUND = [[1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"], [36000, "10 h"],
  [86400, "1 d"], [864000, "10 d"], [8640000, "100 d"], [86400000, "1000 d"]];
const spanTicks = (low, high) => ROUND.filter(([value]) => value >= low * 0.999 && value <= high * 1.001);

function timeTicks(from, until, about) {
  const long = until - from, [name, size] = UNITS.find((each) => long >= 2 * each[1]) || UNITS[3];
  const word = { d: "days", h: "hours", min: "minutes", s: "seconds" }[name];
  const found = ticks(from / size, until / size, about).filter((at) => name !== "d" || long < 2 * size || Number.isInteger(at));
  return { word, all: found.map((at) => [at * size, String(at)]) };
}

// Labels that do not run into each other: of two that would, the later goes.
function roomy(all, x, gap) {
  let last = -Infinity;
  return all.filter(([value]) => x(value) - last >= gap && (last = x(value), true));
}

// ------------------------------------------------------- charts as wide as their place

const redraws = [];

function chart(paint) {
  const box = make("div");
  let wide = 0;
  const redraw = () => { if (wide > 40) box.replaceChildren(paint(wide)); };
  new ResizeObserver(() => {
    const now = Math.round(box.clientWidth);
    if (now !== wide) { wide = now; redraw(); }
  }).observe(box);
  redraws.push(redraw);
  return { box, redraw };
}

const tip = document.getElementById("tip");

function say(title, rows, x, y) {
  tip.replaceChildren(make("b", {}, title), ...rows.map(([name, value, place]) =>
    make("div", {}, make("span", {}, place == null ? null : key(place), name), make("span", {}, value))));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth - 8 ? x - width - 16 : x + 16;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - height - 8))}px`;
}
const hush = () => { tip.hidden = true; };
// A finger leaves as soon as it has touched: what it asked for stays until the page moves.
const gone = (event) => event.pointerType !== "touch";
addEventListener("scroll", hush, { passive: true });

// A line that follows the pointer, a finger or the arrow keys, and says what it meets.
function crosshair(svg, { left, right, top, bottom, told }) {
  const line = shape("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
  svg.append(line);
  svg.setAttribute("tabindex", "0");
  let at = (left + right) / 2;
  const show = (x, clientY) => {
    const box = svg.getBoundingClientRect();
    at = Math.max(left, Math.min(right, x));
    for (const end of ["x1", "x2"]) line.setAttribute(end, at);
    line.setAttribute("visibility", "visible");
    const [title, rows] = told(at);
    say(title, rows, box.left + at, clientY ?? box.top + top);
  };
  const end = () => { line.setAttribute("visibility", "hidden"); hush(); };
  for (const kind of ["pointerdown", "pointermove"]) {
    svg.addEventListener(kind, (event) => show(event.clientX - svg.getBoundingClientRect().left, event.clientY));
  }
  svg.addEventListener("pointerleave", (event) => { if (gone(event)) end(); });
  svg.addEventListener("blur", end);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") end();
    if (!step) return;
    event.preventDefault();
    show(at + step * (event.shiftKey ? 40 : 8));
  });
}

// ------------------------------------------------------- parts of the page

function section(title, said, ...inside) {
  return make("section", {}, make("div", { class: "top" }, make("h2", {}, title)),
    said ? make("p", { class: "said" }, said) : null, ...inside);
}
const wide = (node) => { if (node) node.classList.add("wide"); return node; };

// Buttons of which one is pressed.
function choices(name, all, chosen, pick) {
  const box = make("div", { class: "choices", role: "group", "aria-label": name });
  const press = (value) => { for (const each of box.children) each.setAttribute("aria-pressed", String(each.dataset.value === String(value))); };
  for (const [value, text] of all) {
    const button = make("button", { type: "button", "data-value": value }, text);
    button.addEventListener("click", () => { press(value); pick(value); });
    box.append(button);
  }
  press(chosen);
  return box;
}

function head() {
  const figures = make("div", { class: "figures" });
  const figure = (big, small) => figures.append(make("div", {}, make("b", {}, big), make("span", {}, small)));
  const jobs = Math.max(0, ...runs.map((run) => run.jobs));
  figure(count(jobs), "jobs");
  figure(count(data.gpus), "GPUs");
  if (data.machines) figure(count(data.machines), "nodes");
  if (data.last > 0) figure(span(data.last), "of submissions");
  figure(String(runs.length), runs.length === 1 ? "policy" : "policies");
  document.getElementById("head").append(
    make("h1", {}, data.title, make("small", {}, "stoker simulate")), figures, headline() || "",
    ...data.warnings.map((text) => make("p", { class: "warning" }, text)));
}

function headline() {
  const mean = measures[0], base = mean.values[data.base];
  if (runs.length < 2 || mean.best == null || !base) return null;
  const first = mean.values.indexOf(mean.best);
  if (first === data.base) return make("p", { class: "headline" }, make("b", {}, runs[first].label), ` has the shortest mean completion time: ${span(mean.best)}.`);
  return make("p", { class: "headline" }, make("b", {}, runs[first].label), ` has the shortest mean completion time: ${span(mean.best)}, `,
    make("b", {}, `${digits(mean.best / base)} ×`), ` that of ${runs[data.base].label}.`);
}

function draw() {
  head();
  // Where many policies make the sizes tall, two plots stand beside them.
  const spent = price(), tall = spent && sizeHeight() > 640, first = curves();
  const beside = tall && first ? make("div", { class: "column" }, first, spent) : first;
  document.getElementById("main").append(...[wide(compared()), beside, sizes(), ...overTime(), wide(gantt()), wide(groups("users", "By user")),
    data.queues.rows.length > 1 ? wide(groups("queues", "By queue")) : null, tall ? null : spent, deciding(), tall ? remarks() : wide(remarks())].filter(Boolean));
}
