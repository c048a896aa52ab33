// What is predicted: jobs on a time axis, the policy of each queue, and "what if".

import { useComputed, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { EstimateList, JobEstimate, PolicyList } from "../api";
import { clock, count, duration, figure, plural, quoted, safe, unix } from "../core/format";
import { groupOf } from "../core/states";
import { axisOf, barOf, ticks, type Timeline } from "../core/timeline";
import { ApiError, get, withQuery } from "../net/api";
import { isLive, loaded, minute, version } from "../net/live";
import { zone } from "../prefs";
import { At, JobLink } from "../widgets/bits";
import { Empty, Name, Panel } from "../widgets/plain";
import { Swatch } from "../widgets/strip";

const LIMIT = 200;
const SHOWN = 24;
const REFRESH_SECONDS = 60;

export function Plan() {
  const eta = useSignal<EstimateList | null>(null);
  const policies = useSignal<PolicyList | null>(null);
  const problem = useSignal("");
  useEffect(() => {
    const abort = new AbortController();
    const load = async () => {
      try {
        eta.value = await get<EstimateList>(`eta?limit=${LIMIT}`, abort.signal);
        problem.value = "";
      } catch (error) {
        if (error instanceof ApiError) problem.value = error.message;
      }
    };
    void load();
    get<PolicyList>("policies", abort.signal).then((reply) => (policies.value = reply), () => {});
    const timer = window.setInterval(load, REFRESH_SECONDS * 1000);
    return () => (abort.abort(), window.clearInterval(timer));
  }, [isLive.value]);
  return (
    <>
      <h1 class="hidden">Plan</h1>
      {problem.value ? <Empty>{problem.value}</Empty> : null}
      {eta.value ? <Outlook eta={eta.value} /> : problem.value ? null : <section class="panel"><Empty>Predicting …</Empty></section>}
      <div class="columns pair">
        <WhatIf policies={policies.value} />
        {policies.value ? <Policies queues={policies.value.queues} /> : null}
      </div>
    </>
  );
}

function Outlook({ eta }: { eta: EstimateList }) {
  version.value;
  const isAll = useSignal(false);
  const at = unix(eta.at) || minute.value;
  const horizon = unix(eta.horizon);
  const axis = axisOf(eta.jobs, at, horizon);
  const started = (job: JobEstimate) => (groupOf(job.state) === "running" ? axis.from : null);
  const rows = eta.jobs.map((job) => ({ job, bar: barOf(job, started(job), axis) }));
  const order = rows.filter((row) => row.bar).sort((a, b) => a.bar!.start - b.bar!.start || a.bar!.end - b.bar!.end);
  const shown = isAll.value ? order : order.slice(0, SHOWN);
  const unknown = rows.length - order.length + eta.more;
  return (
    <Panel title="Outlook" more={<span class="muted">{eta.trouble ? safe(eta.trouble, 120) : `as of ${clock(at, minute.value, zone.value === "utc")}, from ${plural(eta.futures, "simulated future")}`}</span>}>
      {order.length === 0 ? <Empty>{rows.length ? "Nothing can be predicted of the jobs in the queue." : loaded.value ? "No job runs or waits." : "Loading …"}</Empty> : (
        <>
          <p class="hint">A bar is the likely time of a job; the thin line is the range of its start and end that is right four times out of five.</p>
          <div class="gantt">
            <Axis axis={axis} />
            <ol>
              {shown.map(({ job, bar }) => {
                const isRunning = groupOf(job.state) === "running";
                const text = `${isRunning ? "runs" : `starts ${when(job.start, minute.value)}`}${job.end ? `, ends ${when(job.end, minute.value)}` : ", end not known"}`;
                return (
                  <li key={job.id}>
                    <span class="ganttname"><Swatch id={job.id} /><JobLink {...job} /></span>
                    <span class="gantttrack" title={`${text}\nbasis: ${safe((isRunning ? job.end : job.start)?.basis ?? "", 160)}`}>
                      <span class="range" style={{ left: `${bar!.low}%`, width: `${bar!.high - bar!.low}%` }} />
                      <span class={`ganttbar ${isRunning ? "running" : ""} ${bar!.isOpen ? "open" : ""}`} style={{ left: `${bar!.start}%`, width: `max(3px, ${bar!.end - bar!.start}%)` }} />
                      <span class="hidden">{text}</span>
                    </span>
                    <span class="gantttime muted">{isRunning ? "" : <At time={unix(job.start?.likely)} />}</span>
                  </li>
                );
              })}
            </ol>
          </div>
          {order.length > shown.length ? <p><button type="button" onClick={() => (isAll.value = true)}>{count(order.length - shown.length)} more</button></p> : null}
        </>
      )}
      {unknown ? <p class="hint">{plural(unknown, "job")} without a prediction, or later{Number.isFinite(horizon) ? <> than <At time={horizon} /></> : null}; <code>stoker why JOB</code> explains one.</p> : null}
    </Panel>
  );
}

function when(span: { low: string | null; likely: string | null; high: string | null } | null, now: number): string {
  const time = (iso: string | null) => clock(unix(iso), now, zone.value === "utc");
  if (!span) return "at an unknown time";
  return span.likely ? `~${time(span.likely)} (${time(span.low)}–${time(span.high)})` : `after ${time(span.low)}`;
}

function Axis({ axis }: { axis: Timeline }) {
  const offset = zone.value === "utc" ? 0 : -new Date(axis.from * 1000).getTimezoneOffset() * 60;
  return (
    <div class="ganttaxis" aria-hidden="true">
      <span>now</span>
      <span class="ganttstart">starts</span>
      {ticks(axis, 7, offset).map((at) => {
        const left = (100 * (at - axis.from)) / (axis.to - axis.from);
        return left < 6 || left > 97 ? null : <span key={at} style={{ left: `${left}%` }}>{clock(at, axis.from, zone.value === "utc")}</span>;
      })}
    </div>
  );
}

function Policies({ queues }: { queues: PolicyList["queues"] }) {
  return (
    <Panel title="Policies">
      <table>
        <thead><tr><th>queue</th><th>policy</th><th class="num">waiting</th><th class="num">running</th></tr></thead>
        <tbody>
          {queues.map((queue) => (
            <tr key={queue.queue}>
              <td>{queue.queue === "*" ? "all others" : <Name text={queue.queue} limit={30} />}</td>
              <td>
                <b>{safe(queue.policy, 30)}</b>{Object.entries(queue.changed).map(([name, value]) => ` ${safe(name, 20)}=${figure(value)}`)}
                <span class="muted block">{safe(queue.why ?? queue.about, 200)}</span>
              </td>
              <td class="num">{queue.queue === "*" ? "" : count(queue.waiting)}</td>
              <td class="num">{queue.queue === "*" ? "" : count(queue.running)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="hint"><code>stoker policy NAME</code> chooses another.</p>
    </Panel>
  );
}

interface Forecast {
  starts_at: string | null;
  ends_at: string | null;
}

interface WhatIfReply {
  change: string;
  days: number;
  gpus: { before: number; after: number };
  past: { runs: { policy: string; waiting: { mean: number | null }; jct: { mean: number | null; p90: number | null }; busy: number | null; makespan: number | null }[] } | null;
  today: { id: number; label: string; name: string; state: string; before: Forecast; after: Forecast }[];
  lost: string[];
  notes: string[];
  assumed: string;
}

/** The same question as on the command line. */
function WhatIf({ policies }: { policies: PolicyList | null }) {
  const reply = useSignal<WhatIfReply | null>(null);
  const state = useSignal<{ isRunning: boolean; problem: string; command: string }>({ isRunning: false, problem: "", command: "" });
  const ask = async (form: FormData) => {
    const text = (name: string) => String(form.get(name) ?? "").trim();
    const query = {
      policy: text("policy"), add: Number(text("gpus")) > 0 ? [`gpus=${text("gpus")}`] : [],
      priority: text("job") ? [`${text("job")}=high`] : [], days: text("days"),
    };
    const options = [query.policy && `--policy ${query.policy}`, ...query.add.map((one) => `--add ${one}`), ...query.priority.map((one) => `--priority ${quoted(one)}`), query.days && `--days ${query.days}`];
    const command = `stoker what-if ${options.filter(Boolean).join(" ")}`;
    if (!query.policy && !query.add.length && !query.priority.length) {
      state.value = { isRunning: false, problem: "Choose a change first.", command: "" };
      return;
    }
    state.value = { isRunning: true, problem: "", command };
    try {
      reply.value = await get<WhatIfReply>(withQuery("what-if", query));
      state.value = { isRunning: false, problem: "", command };
    } catch (error) {
      state.value = { isRunning: false, problem: (error as Error).message, command };
      reply.value = null;
    }
  };
  return (
    <Panel title="What if">
      <form class="whatif" onSubmit={(event) => (event.preventDefault(), void ask(new FormData(event.currentTarget)))}>
        <label>policy <select name="policy"><option value="">as now</option>{policies?.policies.map((one) => <option key={one.name} title={one.about}>{one.name}</option>)}</select></label>
        <label>more GPUs <input class="short" name="gpus" type="number" min="0" max="10000" step="1" placeholder="0" /></label>
        <label>first: job <input class="short" name="job" type="text" placeholder="none" pattern="[\w\-]*" maxLength={40} /></label>
        <label>of the last <input class="short" name="days" type="number" min="1" max="365" step="1" defaultValue="7" /> days</label>
        <button type="submit" disabled={state.value.isRunning}>{state.value.isRunning ? "Simulating …" : "Compare"}</button>
      </form>
      <p class="hint" role="status">{state.value.problem || (state.value.command ? <code>{safe(state.value.command, 200)}</code> : "Simulates the jobs of the last days and the queue, without and with the change. The real queue is not changed.")}</p>
      {reply.value ? <Comparison reply={reply.value} /> : null}
    </Panel>
  );
}

const MOST_CHANGES = 12;

function Comparison({ reply }: { reply: WhatIfReply }) {
  const [before, after] = reply.past?.runs ?? [];
  const rows: [title: string, before: number | null, after: number | null, isTime: boolean][] = before && after ? [
    ["mean wait", before.waiting.mean, after.waiting.mean, true],
    ["mean time to completion", before.jct.mean, after.jct.mean, true],
    ["90 % completed within", before.jct.p90, after.jct.p90, true],
    ["GPUs in use", before.busy, after.busy, false],
  ] : [];
  const moved = useComputed(() => reply.today.map((job) => ({ ...job, by: unix(job.after.ends_at) - unix(job.before.ends_at) })).sort((a, b) => Math.abs(b.by || 0) - Math.abs(a.by || 0))).value;
  const text = (value: number | null, isTime: boolean) => (value == null ? "–" : isTime ? duration(value) : `${Math.round(100 * value)} %`);
  return (
    <>
      <h3>{safe(reply.change, 120)}{reply.gpus.before === reply.gpus.after ? "" : `: ${reply.gpus.before} → ${reply.gpus.after} GPUs`}</h3>
      {rows.length ? (
        <table>
          <thead><tr><th>jobs of the last {plural(reply.days, "day")}</th><th class="num">today</th><th class="num">then</th><th class="num">change</th></tr></thead>
          <tbody>
            {rows.map(([title, old, next, isTime]) => (
              <tr key={title}><td>{title}</td><td class="num">{text(old, isTime)}</td><td class="num">{text(next, isTime)}</td><td class={`num ${old && next && isTime && next > 1.01 * old ? "warn" : ""}`}>{old && next != null ? `${next >= old ? "+" : "−"}${Math.round(Math.abs(100 * (next / old - 1)))} %` : ""}</td></tr>
            ))}
          </tbody>
        </table>
      ) : <p class="hint">No job has ended in this time.</p>}
      {moved.length ? (
        <table>
          <thead><tr><th>in the queue</th><th class="num">ends</th><th class="num">then</th><th class="num">change</th></tr></thead>
          <tbody>
            {moved.slice(0, MOST_CHANGES).map((job) => (
              <tr key={job.id}><td class="joblinkcell"><JobLink {...job} /></td><td class="num"><At time={unix(job.before.ends_at)} /></td><td class="num"><At time={unix(job.after.ends_at)} /></td><td class={`num ${job.by > 1 ? "warn" : ""}`}>{!Number.isFinite(job.by) || Math.abs(job.by) < 1 ? "same" : `${duration(Math.abs(job.by))} ${job.by < 0 ? "earlier" : "later"}`}</td></tr>
            ))}
          </tbody>
        </table>
      ) : null}
      {moved.length > MOST_CHANGES ? <p class="hint">and {plural(moved.length - MOST_CHANGES, "job")} with smaller changes</p> : null}
      {reply.lost.length ? <p class="warn">Could no longer run: {safe(reply.lost.join(", "), 200)}</p> : null}
      <p class="hint">{[...reply.notes, reply.assumed].map((note) => safe(note, 400)).join(" ")}</p>
    </>
  );
}
