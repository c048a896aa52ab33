const data = JSON.parse(document.getElementById("data").textContent);
const { sweep, trials, axes, series } = data;
const metric = sweep.metric, larger = sweep.goal === "maximize";
const isNumber = (value) => typeof value === "number" && isFinite(value);

// Every text goes in as text: names and values are other people's.
function make(kind, attributes = {}, ...inside) {
  const node = document.createElement(kind);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...inside.filter((each) => each != null));
  return node;
}

function shape(kind, attributes = {}, ...inside) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...inside);
  return node;
}

function shown(value) {
  if (value == null) return "–";
  if (!isNumber(value)) return typeof value === "object" ? JSON.stringify(value) : String(value);
  if (value === 0 || Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  const text = size < 1e-3 || size >= 1e7 ? value.toExponential(3) : value.toPrecision(5);
  return text.replace(/\.?0+($|e)/, "$1");
}

function lasted(seconds) {
  if (seconds == null) return "–";
  const whole = Math.max(0, Math.round(seconds));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (!parts[0]) parts.shift();
  return parts.map((part, place) => place ? String(part).padStart(2, "0") : part).join(":");
}

// ------------------------------------------------------- which trial is how good

// A trial that failed or was cancelled has a figure of how far it came: it is not compared.
const measured = trials.filter((trial) => isNumber(trial.value) && trial.counts)
  .sort((a, b) => larger ? b.value - a.value : a.value - b.value);
const ranks = new Map(measured.map((trial, place) => [trial.label, place]));
const worth = (trial) => ranks.has(trial.label) ? trial.value : null;
const best = sweep.best ? sweep.best.label : measured.length ? measured[0].label : null;
// From good to poor; told apart on white and on black, and by those who see few colours.
const SCALE = [[33, 94, 140], [38, 140, 140], [92, 172, 98], [196, 182, 62], [222, 143, 92]];

function mixed(share) {
  const place = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1);
  const at = Math.min(Math.floor(place), SCALE.length - 2), part = place - at;
  return `rgb(${SCALE[at].map((low, i) => Math.round(low + (SCALE[at + 1][i] - low) * part))})`;
}

function colour(trial) {
  if (!ranks.has(trial.label)) return "var(--dim)";
  return mixed(measured.length > 1 ? ranks.get(trial.label) / (measured.length - 1) : 0);
}

// ------------------------------------------------------- looking at one of them

const tip = document.getElementById("tip");

function look(trial, event) {
  for (const node of document.querySelectorAll(".looked")) node.classList.remove("looked");
  for (const chart of document.querySelectorAll("svg.chart")) {
    chart.classList.toggle("looking", trial != null);
  }
  tip.hidden = trial == null || event == null;
  if (trial == null) return;
  for (const node of document.querySelectorAll("[data-trial]")) {
    if (node.dataset.trial === trial.label) node.classList.add("looked");
  }
  if (tip.hidden) return;
  const said = metric ? `${metric} ${shown(trial.value)}${trial.counts ? "" : `, ${trial.state}`}` : trial.state;
  const lines = axes.map((axis) => make("div", {}, `${axis.name} = ${shown(trial.params[axis.name])}`));
  tip.replaceChildren(make("b", {}, `${trial.label}: ${said}`), ...lines);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - height - 8)}px`;
}

function follows(node, trial) {
  node.addEventListener("pointermove", (event) => look(trial, event));
  node.addEventListener("pointerleave", () => look(null));
  return node;
}

// ------------------------------------------------------- numbers along a line

function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const rough = (high - low) / about, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) {
    found.push(Math.abs(at) < step / 1e6 ? 0 : Number(at.toPrecision(12)));
  }
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power++) {
    found.push(Number(`1e${power}`));
  }
  return found.length > 1 ? found : [low, high];
}

// ------------------------------------------------------- the page

function head() {
  const counts = sweep.counts, order = ["done", "stopped", "running", "waiting", "failed", "cancelled"];
  const known = order.reduce((sum, word) => sum + (counts[word] || 0), 0);
  const all = Math.max(sweep.total || 0, known, 1);
  const meter = make("div", { class: "meter" }), keys = make("div");
  for (const word of order.filter((each) => counts[each])) {
    meter.append(make("i", { class: word, style: `width:${100 * counts[word] / all}%` }));
    const said = word === "stopped" ? "stopped early" : word;
    keys.append(make("i", { class: `key ${word}` }), `${counts[word]} ${said}`);
  }
  const figures = make("div", { class: "figures" });
  const figure = (big, small) => figures.append(make("div", {}, make("b", {}, big), make("span", {}, small)));
  const found = trials.find((trial) => trial.label === best);
  if (metric && found) figure(shown(found.value), `best ${metric} (${larger ? "larger" : "smaller"} is better), trial ${best}`);
  const over = (counts.done || 0) + (counts.stopped || 0);
  figure(sweep.total ? `${over} of ${sweep.total}` : `${over}`, "trials done");
  figure(lasted(trials.reduce((sum, trial) => sum + (trial.elapsed || 0), 0)), "time of all trials");
  const chosen = found ? axes.map((axis) => `${axis.name}=${shown(found.params[axis.name])}`).join("  ") : "";
  const fixed = Object.entries(data.fixed).map(([name, value]) => `${name}=${shown(value)}`).join(" ");
  document.getElementById("head").append(
    make("h1", {}, sweep.name, make("small", {}, `sweep ${sweep.label} · ${sweep.state.toLowerCase()} · ${sweep.method}`)),
    meter, keys, figures, make("dl", {},
      ...metric && chosen ? term("best", chosen) : [], ...fixed ? term("all", fixed) : [], ...term("command", data.command)),
    sweep.note ? make("p", {}, sweep.note) : "");
}

const term = (name, text) => [make("dt", {}, name), make("dd", {}, make("code", {}, text))];

function section(title, small, ...inside) {
  return make("section", {}, make("h2", {}, title, make("small", {}, small)), ...inside);
}

function importance() {
  if (!data.importance.length) {
    return section("Parameter importance", "", make("p", { class: "none" }, "Too few trials have finished."));
  }
  const grid = make("div", { class: "importance" });
  for (const [name, share] of data.importance) {
    grid.append(make("span", { title: name }, name),
      make("div", { style: `width:${Math.max(100 * share, 0.5)}%` }),
      make("span", { class: "right" }, `${Math.round(100 * share)} %`));
  }
  const legend = make("div", { class: "legend", style: `background:linear-gradient(90deg,${SCALE.map((each) => `rgb(${each})`)})` });
  const ends = make("div", { class: "ends" }, make("span", {}, shown(measured[0].value)),
    make("span", {}, shown(measured[measured.length >> 1].value)), make("span", {}, shown(measured[measured.length - 1].value)));
  return section("Parameter importance", "share of the variance explained", grid, legend, ends,
    make("div", { class: "ends" }, make("span", {}, "best"), make("span", {}, "median"), make("span", {}, "worst")));
}

function draw() {
  head();
  const main = document.getElementById("main"), drawn = curves();
  const wide = (node) => { node.classList.add("wide"); return node; };
  if (drawn) main.append(drawn, importance());
  else if (metric) main.append(wide(importance()));
  if (trials.length && axes.length) main.append(wide(parallel()));
  main.append(wide(tableOfTrials()));
}
