// The trials as a table that is sorted by a click on a heading.

function tableOfTrials() {
  const columns = [
    { title: "trial", of: (trial) => trial.number, text: (trial) => trial.label },
    { title: "state", of: (trial) => trial.stopped ? "STOPPED" : trial.state, state: true },
    ...metric ? [{ title: metric, of: worth, text: (trial) => shown(trial.value), right: true, metric: true },
      { title: "step", of: (trial) => trial.step, right: true }] : [],
    { title: "time", of: (trial) => trial.elapsed, text: (trial) => lasted(trial.elapsed), right: true },
    ...axes.map((axis) => ({ title: axis.name, of: (trial) => trial.params[axis.name], right: axis.kind !== "text" })),
  ];
  const body = make("tbody"), headings = make("tr");
  const rows = trials.map((trial) => row(trial, columns));
  columns.forEach((column) => {
    const heading = make("th", { class: column.right ? "right" : "" }, column.title);
    let up = column.metric ? !larger : true;
    heading.addEventListener("click", () => { sort(column, up, heading); up = !up; });
    column.heading = heading;
    headings.append(heading);
  });
  const sort = (column, up, heading) => {
    for (const each of columns) each.heading.classList.remove("up", "down");
    heading.classList.add(up ? "up" : "down");
    body.replaceChildren(...[...rows].sort((a, b) => compared(column.of(a.trial), column.of(b.trial), up)).map((each) => each.node));
  };
  const first = columns.find((column) => column.metric) || columns[0];
  sort(first, first.metric ? !larger : true, first.heading);
  return section("Trials", `${trials.length}; click a heading to sort`, make("table", {}, make("thead", {}, headings), body));
}

function row(trial, columns) {
  const node = make("tr", { "data-trial": trial.label, class: trial.label === best ? "best" : "" });
  for (const column of columns) {
    const text = column.text ? column.text(trial) : shown(column.of(trial));
    const cell = make("td", { class: column.right ? "right" : "", title: text });
    cell.append(column.state ? make("span", { class: `state ${trial.stopped ? "early" : trial.state}` }, text) : text);
    if (column.state && trial.cause) cell.title = trial.cause;
    node.append(cell);
  }
  node.addEventListener("pointerenter", () => look(trial, null));
  node.addEventListener("pointerleave", () => look(null));
  return { trial, node };
}

// What is not there comes last, whichever way one sorts.
function compared(a, b, up) {
  if (a == null || b == null) return (a == null) - (b == null);
  const order = isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  return up ? order : -order;
}
