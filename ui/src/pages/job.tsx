// One job: its state and why, log, curves, use of GPUs, attempts, details.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { act, APPLIES, edit, notify, openMenu, titleOf, VERBS, type Verb } from "../actions";
import type { JobList, JobView, WhyView } from "../api";
import { submitCommand, submitPython } from "../core/copy";
import { count, duration, exact, figure, memory, plural, safe, unix } from "../core/format";
import { groupOf } from "../core/states";
import { editPriority, keysOf } from "../keys";
import { ApiError, get, withQuery } from "../net/api";
import { isStale, link, mayAct, now, table, version } from "../net/live";
import { go, jobPath, route } from "../route";
import { At, Estimate } from "../widgets/bits";
import { Empty, Name, Progress, StateChip } from "../widgets/plain";
import { Swatch } from "../widgets/strip";
import { Metrics, Use } from "./curves";
import { Log, logFocus } from "./log";

let shown: JobView | null = null;

keysOf("j", {
  l: () => logFocus.value++,
  c: () => shown && ["running", "pending"].includes(groupOf(shown.state)) && act("cancel", [shown.id]),
  r: () => shown && ["failed", "done"].includes(groupOf(shown.state)) && act("retry", [shown.id]),
  e: editPriority,
  ".": () => shown && openMenu(verbsOf(shown).map((verb) => [verb, [shown!.id]])),
  h: () => shown?.state === "PENDING" && act(isHeld(shown) ? "release" : "hold", [shown.id]),
});

const verbsOf = (job: JobView): Verb[] => VERBS.filter((verb) => APPLIES[verb](job.state, isHeld(job)) && !(verb === "dismiss" && job.dismissed));

const isHeld = (job: JobView) => table.byId(job.id)?.held ?? false;

export function Job() {
  const selector = route.value.argument;
  const job = useSignal<JobView | null>(null);
  const problem = useSignal("");
  const changes = `${link.value.state} ${job.value ? rowKey(job.value.id) : ""}`;
  useEffect(() => {
    job.value = null;
    problem.value = "";
  }, [selector]);
  useEffect(() => {
    let isGone = false;
    const load = async () => {
      try {
        const reply = await get<JobList>(withQuery("jobs", { select: exact(selector), limit: 1, estimate: "1", hook: "1", details: "1" }));
        if (isGone) return;
        job.value = reply.jobs[0] ?? null;
        problem.value = job.value ? "" : `There is no job ${selector}.`;
      } catch (error) {
        if (!isGone && error instanceof ApiError && error.status !== 0) problem.value = error.message;
      }
    };
    void load();
    // What a training reports is in no frame of the stream.
    const timer = window.setInterval(() => job.peek() && groupOf(job.peek()!.state) === "running" && !document.hidden && load(), 5000);
    return () => ((isGone = true), window.clearInterval(timer));
  }, [selector, changes]);
  shown = job.value;
  if (problem.value) return <Empty>{problem.value} <a href="#/q">Queue</a></Empty>;
  if (!job.value) return <Empty>{isStale.value ? "The daemon does not answer." : `Loading job ${safe(selector, 40)} …`}</Empty>;
  return <Loaded job={job.value} />;
}

/** Changes when the live stream changed the job. */
function rowKey(id: number): string {
  version.value;
  const row = table.byId(id);
  return row ? `${row.state} ${row.attempt} ${row.epochs} ${row.held} ${row.priority}` : "gone";
}

function Loaded({ job }: { job: JobView }) {
  return (
    <div class="job">
      <Head job={job} />
      <div class="split">
        <div>
          {groupOf(job.state) === "pending" ? <Why job={job} /> : null}
          {groupOf(job.state) === "pending" && job.attempts.length === 0 ? null : <Log job={job} />}
          <Metrics job={job} />
          <Use job={job} />
        </div>
        <div>
          <Training job={job} />
          <Attempts job={job} />
          <Details job={job} />
        </div>
      </div>
    </div>
  );
}

function Head({ job }: { job: JobView }) {
  const group = groupOf(job.state);
  const held = isHeld(job);
  const elapsed = job.started_at ? (job.ended_at ? unix(job.ended_at) : now.value) - unix(job.started_at) : null;
  const verbs = verbsOf(job);
  const reason = group === "failed" || group === "done" ? job.cause : job.reason_text;
  const { gpu = [] } = job.devices;
  return (
    <header class={`jobhead ${group}`}>
      <h1>{group === "running" ? <Swatch id={job.id} /> : null}<span class="muted">{job.label}</span> <Name text={job.name || job.command} /></h1>
      <p class="headline">
        <StateChip state={job.state} held={held} />
        {elapsed === null ? null : <span>{group === "running" ? "for " : "ran "}{duration(elapsed)}</span>}
        {job.nodes.length ? <span>on <a href={`#/m?n=${encodeURIComponent(job.nodes[0]!)}`}>{job.nodes.map((node) => safe(node, 40)).join(", ")}</a>{gpu.length ? `, GPU ${gpu.join(", ")}` : ""}</span> : null}
        {group === "running" && job.foreseen?.end ? <span>ends <Estimate view={job.foreseen} which="end" /></span> : null}
        {group === "running" && job.time_left != null ? <span class="muted">limit in {duration(job.time_left)}</span> : null}
        {group === "pending" ? <span>starts <Estimate view={job.foreseen} which="start" /></span> : null}
        {job.ended_at && group !== "running" ? <span class="muted"><At time={unix(job.ended_at)} /></span> : null}
        {job.unreachable ? <span class="warn">its machine does not answer</span> : null}
      </p>
      {reason ? <p class="reason">{safe(reason, 600)}{job.termination_note ? `; ${safe(job.termination_note, 300)}` : ""}</p> : null}
      {mayAct.value ? (
        <p class="actions">
          {verbs.map((verb) => <button type="button" key={verb} class={verb === "cancel" ? "danger" : ""} onClick={() => act(verb, [job.id])}>{titleOf(verb)}</button>)}
          {group === "pending" || group === "running" ? (
            <form onSubmit={(event) => {
              event.preventDefault();
              const value = String(new FormData(event.currentTarget).get("priority"));
              if (value !== String(job.priority)) void edit([job.id], { priority: value });
            }}>
              <label>Priority <input name="priority" type="number" step="1" defaultValue={String(job.priority)} key={job.priority} /></label>
              <button type="submit">Set</button>
            </form>
          ) : null}
        </p>
      ) : null}
    </header>
  );
}

function Why({ job }: { job: JobView }) {
  const why = useSignal<WhyView | null>(null);
  useEffect(() => {
    let isGone = false;
    const load = () => get<WhyView>(`jobs/${exact(job.id)}/why`).then((view) => !isGone && (why.value = view), () => {});
    void load();
    const timer = window.setInterval(() => !document.hidden && load(), 10_000);
    return () => ((isGone = true), window.clearInterval(timer));
  }, [job.id, job.reason]);
  const view = why.value;
  if (!view) return null;
  const list = (title: string, texts: string[]) => texts.length ? <><h3>{title}</h3><ul>{texts.slice(0, 8).map((text, at) => <li key={at}>{safe(text, 300)}</li>)}{texts.length > 8 ? <li class="muted">and {texts.length - 8} more</li> : null}</ul></> : null;
  return (
    <section class="panel why">
      <header><h2>Why it waits</h2></header>
      <p>{safe(view.text ?? "", 800)}</p>
      {view.foreseen?.start ? <p class="muted">Prediction from {safe(view.foreseen.start.basis, 200)}.</p> : view.foreseen?.never ? <p class="muted">{safe(view.foreseen.never, 300)}</p> : null}
      {list("What would let it start", view.unblocks)}
      {list("Coming", view.coming)}
      {view.standing ? <p class="muted">Position {view.standing.position} of {view.standing.of}, {safe(view.standing.policy, 40)}.</p> : null}
      {list("Ahead of it", view.before.map((ahead) => `${ahead.label}: ${ahead.why}`))}
      {view.nodes.slice(0, 20).map((node) => (
        <details key={node.node}>
          <summary><Name text={node.node} limit={40} /> <span class="muted">{node.fits_empty ? "" : "can never run it"}</span></summary>
          <ul>{node.constraints.map((constraint) => <li key={constraint.name}>{safe(constraint.text, 300)}{constraint.details.slice(0, 6).map((text, at) => <div class="muted" key={at}>{safe(text, 200)}</div>)}</li>)}</ul>
        </details>
      ))}
    </section>
  );
}

function Training({ job }: { job: JobView }) {
  const training = job.training;
  if (!training) return null;
  const facts: [string, preact.ComponentChildren][] = [
    ["Epochs", training.epochs ? <><Progress done={training.epochs_done} total={training.epochs} label="epochs" /> {training.epochs_done} of {training.epochs}</> : training.epochs_done],
    ["Per epoch", duration(training.epoch_seconds)],
    ["Left", duration(training.remaining_seconds)],
    ["GPU memory", training.memory_peak ? `${memory(training.memory_peak)} peak${training.memory_reserved ? `, ${memory(training.memory_reserved)} reserved` : ""}` : ""],
    ["GPUs wanted", training.elastic ? `${training.gpus_wanted ?? "–"} of ${training.elastic[0]}–${training.elastic[1] ?? "any"}` : ""],
    ["Preempted", training.preemptions ? plural(training.preemptions, "time") : ""],
    ["Out of memory", training.shortages ? plural(training.shortages, "time") : ""],
    ["Stopping", training.stopping ? `${safe(training.stopping.why, 100)}${training.stopping.by ? ` for job ${training.stopping.by}` : ""}` : ""],
    ...Object.entries(training.metrics).slice(0, 12).map(([name, value]): [string, preact.ComponentChildren] => [safe(name, 30), typeof value === "number" ? figure(value) : safe(String(value), 40)]),
  ];
  return <section class="panel"><header><h2>Training</h2></header><Facts facts={facts} /></section>;
}

function Facts({ facts }: { facts: [string, preact.ComponentChildren][] }) {
  return <dl class="facts">{facts.flatMap(([name, value]) => (value === "" || value == null || value === "–" ? [] : [<dt key={name}>{name}</dt>, <dd key={`${name}.`}>{value}</dd>]))}</dl>;
}

function Attempts({ job }: { job: JobView }) {
  if (job.attempts.length === 0) return null;
  return (
    <section class="panel">
      <header><h2>Attempts</h2></header>
      <table>
        <thead><tr><th>#</th><th>started</th><th>ran</th><th>ended because</th></tr></thead>
        <tbody>
          {job.attempts.slice(-20).map((attempt) => (
            <tr key={attempt.attempt}>
              <td>{attempt.attempt + 1}</td><td><At time={unix(attempt.started_at)} /></td>
              <td>{duration(unix(attempt.ended_at) - unix(attempt.started_at))}</td><td>{safe(attempt.cause ?? "completed", 160)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

/** A dependency such as `afterok:12:13_1`, with links to its jobs. */
function linked(text: string): preact.ComponentChildren {
  return text ? safe(text, 200).split(/(?<=:)(\d+(?:_\d+)?)/).map((part, at) => (at % 2 ? <a key={at} href={jobPath(part)}>{part}</a> : part)) : "";
}

async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    notify({ text: "copied", detail: safe(text, 160) });
  } catch {
    notify({ text: "The browser did not allow copying.", isError: true });
  }
}

function Details({ job }: { job: JobView }) {
  const { request } = job;
  const asked = [
    request.gpus ? plural(Number(request.gpus), "GPU") + (request.most_gpus ? ` to ${request.most_gpus === "64" ? "any number" : request.most_gpus}` : "") : "no GPU",
    request.model ?? "", request.gpu_memory ? `${memory(request.gpu_memory)} on each` : "", request.min_vram ? `at least ${memory(request.min_vram)}` : "",
    request.cpus ? `${request.cpus} cores` : "", request.memory ? memory(request.memory) : "", request.exclusive ? "a whole node" : "",
    request.machines ? plural(request.machines, "node") : "", ...Object.entries(request.resources).map(([name, amount]) => `${amount} ${name}`),
  ].filter(Boolean).join(", ");
  const facts: [string, preact.ComponentChildren][] = [
    ["Command", <code class="command">{safe(job.command, 4000)}</code>],
    ["Directory", <code>{safe(job.directory, 300)}</code>],
    ["Requested", asked],
    ["User", <a href={`#/q?f=${encodeURIComponent(`user:${job.user}`)}`}><Name text={job.user} limit={40} /></a>],
    ["Queue", job.queue === "default" ? "" : job.queue],
    ["Priority", job.priority ? String(job.priority) : ""],
    ["Labels", job.labels.map((label) => safe(label, 40)).join(", ")],
    ["Comment", safe(job.comment ?? "", 300)],
    ["Depends on", linked(job.depends ?? "")],
    ["Needed by", job.dependents?.length ? <>{job.dependents.slice(0, 20).flatMap((label) => [<a key={label} href={jobPath(label)}>{label}</a>, " "])}{job.dependents.length > 20 ? <span class="muted">and more</span> : null}</> : ""],
    ["Part of", job.sweep ? <a href={`#/s/${job.sweep}`}>sweep {job.sweep}</a> : job.array ? <a href={`#/q?f=sweep:${job.array.id}`}>array {job.array.id}</a> : ""],
    ["Parameters", job.params ? Object.entries(job.params).map(([name, value]) => `${safe(name, 40)}=${safe(String(value), 40)}`).join("  ") : ""],
    ["Time limit", job.time_limit ? duration(job.time_limit) : ""],
    ["Container", job.container ? safe(job.container.image, 100) : ""],
    ["Submitted", <At time={unix(job.submitted_at)} />],
    ["Begin", job.begin_at ? <At time={unix(job.begin_at)} /> : ""],
    ["Process", job.pid ? String(job.pid) : ""],
    ["Exit code", job.exit_code === null ? "" : `${job.exit_code}${job.signal ? `, signal ${job.signal}` : ""}`],
    ["Log file", job.log ? <code>{safe(job.log, 300)}</code> : ""],
    ["On end", job.hook ? `exit code ${job.hook.exit_code ?? "none yet"}` : ""],
  ];
  return (
    <section class="panel">
      <header>
        <h2>Details</h2>
        <span class="more">
          <span class="muted">Copy</span>
          <button type="button" onClick={() => copy(job.command)} aria-label="Copy the command">command</button>
          <button type="button" onClick={() => copy(submitCommand(job))} aria-label="Copy as stoker submit">stoker submit</button>
          <button type="button" onClick={() => copy(submitPython(job))} aria-label="Copy as Python">Python</button>
        </span>
      </header>
      <Facts facts={facts} />
      {job.variables?.length ? (
        <details class="variables">
          <summary>{plural(job.variables.length, "environment variable")} <span class="muted">(names only)</span></summary>
          <p>{job.variables.map((name) => safe(name, 80)).join("  ")}</p>
        </details>
      ) : null}
      {job.array || job.sweep ? <p><button type="button" onClick={() => go(`q?f=sweep:${job.sweep ?? job.array!.id}`)}>All members ({count(job.members?.count ?? 0) === "0" ? "list" : count(job.members.count)})</button></p> : null}
    </section>
  );
}
