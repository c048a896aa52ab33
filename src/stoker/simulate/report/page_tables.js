// Figures in rows: policy against policy, users, what deciding has cost, and what to know.
// The best are marked as they are written: a difference that is not seen is none.

const none = (value) => value == null;

function compared() {
  if (!runs.length) return section("Policies", "", make("p", { class: "none" }, "Nothing was simulated."));
  const whole = measures.find((measure) => measure.title === "in use, whole").values;
  // Deciding has a table of its own, and the share in use has both its figures in one place.
  const told = measures.filter((measure) => !measure.values.every(none) && measure.better && measure.values !== whole);
  const body = runs.map((run, place) => make("tr", {}, make("th", { scope: "row", title: run.label }, key(place), run.label),
    ...told.map((measure) => {
      const value = measure.values[place], base = measure.values[data.base];
      const unit = measure.kind === "time" ? unitOf(measure.values.filter((each) => !none(each))) : null;
      const ratio = runs.length < 2 || !measure.better || measure.kind === "share" || none(value) || !base ? null
        : place === data.base ? make("small", {}, "base") : make("small", {}, `${digits(value / base)} ×`);
      const both = measure.title === "in use" && !none(whole[place]) ? make("small", {}, `whole ${(100 * whole[place]).toFixed(1)} %`) : null;
      const text = written(value, measure.kind, unit), first = measure.best != null && text === written(measure.best, measure.kind, unit);
      return make("td", { class: first ? "best" : null }, text, ratio, both);
    })));
  const heads = told.map((measure) => make("th", { scope: "col", title: EXPLAINED[measure.title] }, measure.title));
  const said = runs.length > 1 ? `× is the ratio to ${runs[data.base].label}; ▸ marks the best value.` : "";
  return section("Policy comparison", `JCT is the time from submission to end. ${said}`,
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "policy"), heads)), make("tbody", {}, body))));
}

const EXPLAINED = {
  "mean slowdown": "completion time divided by run time (at least 10 s)", "in use": "share of all GPUs, until the last submission; whole: until the last job ended", preempted: "preemptions per job",
  "largest wait": "longest time that any job was without resources", makespan: "from the first submission until the last job ended",
};

const MET = [["mean completion", "time"], ["mean wait", "time"], ["largest wait", "time"], ["mean slowdown", "number"]];

function groups(which, title) {
  const { rows, left_out: more } = data[which];
  if (!rows.length || rows.length === 1 && !rows[0][0]) return null;
  const table = make("table"), word = which === "users" ? "user" : "queue";
  const fillTable = (what) => {
    const head = make("tr", {}, make("th", { scope: "col" }, word), make("th", { scope: "col" }, "jobs"), make("th", { scope: "col" }, "GPU hours"),
      ...runs.map((run, place) => make("th", { scope: "col" }, key(place), run.label)));
    const body = rows.map(([name, jobs, service, met]) => {
      const values = met.map((each) => each ? each[what] : null), there = values.filter((each) => !none(each));
      const unit = MET[what][1] === "time" ? unitOf(there) : null, texts = values.map((value) => written(value, MET[what][1], unit));
      const least = written(Math.min(...there), MET[what][1], unit), differ = texts.some((text) => text !== least && text !== "–");
      return make("tr", {}, make("th", { scope: "row", title: name }, name || "(no name)"), make("td", {}, count(jobs)), make("td", {}, digits(service / 3600)),
        ...texts.map((text) => make("td", { class: differ && text === least ? "best" : null }, text)));
    });
    table.replaceChildren(make("thead", {}, head), make("tbody", {}, body));
  };
  fillTable(0);
  const said = more ? `The ${rows.length} with the most GPU hours; ${count(more)} more are not shown.` : "Sorted by GPU hours.";
  const found = section(title, said, make("div", { class: "scroll" }, table));
  found.firstChild.append(choices("figure", MET.map(([text], i) => [i, text]), 0, fillTable));
  return found;
}

function deciding() {
  if (!runs.some((run) => run.cost.events)) return null;
  const body = runs.map((run, place) => make("tr", {}, make("th", { scope: "row" }, key(place), run.label), ...[
    count(run.cost.events), ...[run.cost.median, run.cost.p99, run.cost.seconds].map((each) => run.cost.events ? moment(each) : "–")].map((text) => make("td", {}, text))));
  const heads = ["policy", "events", "median", "p99", "total"].map((text) => make("th", { scope: "col" }, text));
  return section("Scheduling time", "Time per event, on the host that ran the simulation.",
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, heads)), make("tbody", {}, body))));
}

function remarks() {
  const rows = runs.map((run, place) => [run, place]).filter(([run]) => Object.keys(run.parameters).length || run.notes.length);
  if (!rows.length && !data.notes.length) return null;
  const parts = [];
  if (data.notes.length) parts.push(make("ul", {}, data.notes.map((text) => make("li", {}, text))));
  if (rows.length) {
    parts.push(make("table", {}, make("tbody", {}, rows.map(([run, place]) => make("tr", {}, make("th", { scope: "row" }, key(place), run.label),
      make("td", { class: "text" }, make("code", {}, Object.entries(run.parameters).map(([name, value]) => `${name}=${value}`).join("  ")),
        ...run.notes.map((text) => make("div", {}, text))))))));
  }
  return section("Notes", "Notes on the workload, and parameters of the policies.", ...parts);
}
