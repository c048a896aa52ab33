// The report of a simulation: one file without a daemon, drawn by the modules of the page.

import { render } from "preact";
import { count, plural, safe } from "../core/format";
import { digits, span } from "../core/spans";
import { applyTheme } from "../prefs";
import { ClusterChart } from "./simulation/cluster";
import { data, measured, runs } from "./simulation/data";
import { nameOf, TipBox } from "./simulation/parts";
import { ByGroup, Notes, Policies, SchedulingTime } from "./simulation/tables";
import { Distribution, hasPreemptions, InUse, Pending, Preemptions, WaitBySize } from "./simulation/times";
import "../style.css";
import "./simulation.css";

function Head() {
  const jobs = Math.max(0, ...runs.map((run) => run.jobs));
  const figures = [plural(jobs, "job"), plural(data.gpus, "GPU"), data.machines ? plural(data.machines, "node") : "", data.last > 0 ? `${span(data.last)} of submissions` : "", `${count(runs.length)} ${runs.length === 1 ? "policy" : "policies"}`];
  return (
    <header class="jobhead">
      <h1>{safe(data.title, 200)} <span class="muted">stoker simulate</span></h1>
      <p class="headline">{figures.filter(Boolean).map((text) => <span key={text}>{text}</span>)}</p>
      <Best />
      {data.warnings.map((text) => <p key={text} class="warn">{safe(text, 400)}</p>)}
    </header>
  );
}

function Best() {
  const { values, best } = measured("mean JCT");
  const base = values[data.base];
  if (runs.length < 2 || best === null || !base) return null;
  const first = values.indexOf(best);
  return (
    <p>
      <b>{nameOf(first)}</b> has the shortest mean completion time: {span(best)}
      {first === data.base ? "." : <>, <b>{digits(best / base)} ×</b> that of {nameOf(data.base)}.</>}
    </p>
  );
}

function Page() {
  return (
    <>
      <Head />
      <div class="sections">
        <Policies />
        <Distribution />
        <WaitBySize />
        <InUse />
        <Pending />
        <ClusterChart />
        <ByGroup groups={data.users} title="By user" word="user" />
        {data.queues.rows.length > 1 ? <ByGroup groups={data.queues} title="By queue" word="queue" /> : null}
        <Preemptions />
        <SchedulingTime isWide={!hasPreemptions} />
        <Notes />
      </div>
      <TipBox />
    </>
  );
}

applyTheme();
render(<Page />, document.getElementById("report")!);
