// What was used: GPU-hours by day and key, waiting times, causes, and the jobs that have ended.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { History as HistoryReply, JobView, UsageGroup, UsageSummary } from "../api";
import { count, duration, figure, memory, safe, unix } from "../core/format";
import { csv, roundUp, stack, type Stack } from "../core/usage";
import { get, withQuery } from "../net/api";
import { isLive, minute } from "../net/live";
import { paint } from "../palette";
import { parameter, setParameters } from "../route";
import { At, JobLink } from "../widgets/bits";
import { Empty, Name, Panel, StateChip } from "../widgets/plain";

const PERIODS: [name: string, days: number][] = [["today", 1], ["7 d", 7], ["30 d", 30], ["90 d", 90]];
const KEYS = ["user", "queue", "label", "sweep", "model", "group"];
const STATES = ["COMPLETED", "FAILED", "OUT_OF_MEMORY", "TIMEOUT", "CANCELLED", "NODE_FAIL", "DEADLINE"];
const MOST_KEYS = 8;
const MOST_ROWS = 50;
const LISTED_JOBS = 100;

const hours = (value: number): string => (value && value < 0.005 ? "<0.01" : value.toFixed(value < 100 ? 2 : 0));
const percent = (part: number, whole: number): string => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const shownKey = (key: string): string => (key === "-" ? "none" : key);

interface Loaded {
  main: UsageSummary;
  gpus: UsageGroup[];
  causes: UsageGroup[];
  length: number;
}

export function History() {
  const by = KEYS.includes(parameter("by")) ? parameter("by") : "user";
  const length = Number(parameter("d")) || 7;
  const user = parameter("user");
  const queue = parameter("queue");
  const loaded = useSignal<Loaded | null>(null);
  const problem = useSignal("");
  useEffect(() => {
    const abort = new AbortController();
    const since = new Date(new Date().setHours(0, 0, 0, 0));
    since.setDate(since.getDate() - length + 1);
    // One after the other: each reads all jobs of the period.
    const load = async () => {
      const query = { since: since.toISOString(), user, queue };
      const ask = (more: Record<string, string>) => get<UsageSummary>(withQuery("usage", { ...query, ...more }), abort.signal);
      const main = await ask({ by, days: "1" });
      const gpus = (await ask({ by: "gpus" })).groups;
      const causes = (await ask({ by: "cause" })).groups;
      loaded.value = { main, gpus, causes, length };
      problem.value = "";
    };
    load().catch((error: Error) => error.name !== "AbortError" && (problem.value = error.message));
    return () => abort.abort();
  }, [by, length, user, queue, isLive.value]);
  const found = loaded.value;
  return (
    <>
      <h1 class="hidden">History and accounting</h1>
      <div class="toolbar">
        <label>by <select aria-label="Group by" value={by} onChange={(event) => setParameters({ by: event.currentTarget.value })}>{KEYS.map((key) => <option key={key}>{key}</option>)}</select></label>
        {user || queue ? <button type="button" onClick={() => setParameters({ user: "", queue: "" })}>{safe([user && `user ${user}`, queue && `queue ${queue}`].filter(Boolean).join(", "), 60)} ×</button> : null}
        {found ? <button type="button" onClick={() => download(found.main)}>CSV</button> : null}
        <span class="segments" role="group" aria-label="Period">
          {PERIODS.map(([name, days]) => <button type="button" key={name} aria-pressed={length === days} onClick={() => setParameters({ d: String(days) })}>{name}</button>)}
        </span>
      </div>
      {problem.value ? <Empty>{problem.value}</Empty> : null}
      {found ? <Summary {...found} /> : problem.value ? null : <div class="figures-row ghost" />}
      {found && found.length > 1 ? <Days main={found.main} length={found.length} /> : null}
      {found ? <Groups main={found.main} /> : null}
      {found ? <div class="columns pair"><Waits groups={found.gpus} /><Causes groups={found.causes} /></div> : null}
      <Jobs length={length} user={user} queue={queue} />
    </>
  );
}

/** Save the table; the browser asks where. */
function download({ groups, by }: UsageSummary): void {
  const names = Object.keys(groups[0] ?? {}) as (keyof UsageGroup)[];
  const text = csv([names, ...groups.map((group) => names.map((name) => group[name] ?? null))]);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `stoker-usage-by-${by}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function Summary({ main: { total, currency } }: Loaded) {
  const figures: [value: string, label: string, note: string, kind?: string][] = [
    [hours(total.gpu_hours), "GPU-hours", `${count(total.jobs)} jobs`],
    [total.utilization == null ? "–" : `${Math.round(total.utilization)} %`, "busy", total.measured_gpu_hours ? `of ${hours(total.measured_gpu_hours)} measured` : "not measured"],
    [hours(total.wasted_gpu_hours), "wasted", total.gpu_hours ? `${percent(total.wasted_gpu_hours, total.gpu_hours)} of GPU-hours` : "", total.wasted_gpu_hours > 0.1 * total.gpu_hours ? "warn" : ""],
    [count(total.failed), "failed jobs", percent(total.failed, total.jobs), total.failed ? "failed" : ""],
    [total.wait_p50 == null ? "–" : duration(total.wait_p50), "median wait", total.wait_p90 == null ? "" : `90 %: ${duration(total.wait_p90)}`],
    [total.kwh == null ? "–" : figure(total.kwh), "kWh", total.cost == null ? "power × time" : `${total.cost.toFixed(2)} ${safe(currency, 12)}`],
  ];
  return (
    <div class="figures-row six" aria-label="Summary">
      {figures.map(([value, label, note, kind]) => <div class={`figure ${kind ?? ""}`} key={label}><span class="value">{value}</span><span class="label">{label}</span><span class="note">{note}</span></div>)}
    </div>
  );
}

/** Stacked bars, one for each day. */
function Days({ main, length }: { main: UsageSummary; length: number }) {
  const today = new Date(minute.value * 1000).toLocaleDateString("en-CA");
  const made: Stack = useMemo(() => stack(main.days ?? {}, today, length, MOST_KEYS), [main, today, length]);
  const top = roundUp(Math.max(...made.days.map((day) => day.total)));
  const label = (day: string) => new Date(`${day}T12:00:00`).toLocaleDateString("en-GB", length <= 7 ? { weekday: "short", day: "numeric" } : { day: "numeric", month: "short" });
  const every = Math.ceil(length / 8);
  if (!made.keys.length) return null;
  return (
    <Panel title={`GPU-hours a day by ${main.by}`} more={<span class="legend">{made.keys.map((key, at) => <span key={key}><span class="swatch" style={{ background: paint(at) }} aria-hidden="true" /><Name text={shownKey(key)} limit={24} /></span>)}</span>}>
      <div class="daychart" role="img" aria-label={`GPU-hours a day: ${made.days.filter((day) => day.total).map((day) => `${day.day} ${hours(day.total)}`).join(", ")}`}>
        <span class="top" aria-hidden="true">{figure(top)}</span>
        <div class={length > 14 ? "days narrow" : "days"}>
          {made.days.map((day, at) => (
            <div class="day" key={day.day} title={`${day.day}: ${hours(day.total)} GPU-hours\n${made.keys.map((key, i) => (day.parts[i] ? `${safe(shownKey(key), 40)} ${hours(day.parts[i]!)}` : "")).filter(Boolean).join("\n")}`}>
              <div class="stackbar">{day.parts.map((part, i) => (part ? <span key={i} style={{ height: `${(100 * part) / top}%`, background: paint(i) }} /> : null))}</div>
              <span class="daylabel">{(made.days.length - 1 - at) % every ? "" : label(day.day)}</span>
            </div>
          ))}
        </div>
      </div>
    </Panel>
  );
}

function Groups({ main }: { main: UsageSummary }) {
  const groups = main.groups.slice(0, MOST_ROWS);
  const most = Math.max(...groups.map((group) => group.gpu_hours), 1e-9);
  const hasCost = main.total.cost != null;
  if (!groups.length) return <section class="panel"><Empty>No job has ended in this time.</Empty></section>;
  const narrows = main.by === "user" || main.by === "queue";
  return (
    <Panel title={`By ${main.by}`} more={main.groups.length > groups.length ? <span class="muted">{count(groups.length)} of {count(main.groups.length)}; all in the CSV</span> : null}>
      <div class="scroll" tabIndex={0} role="region" aria-label={`Usage by ${main.by}`}>
        <table>
          <thead><tr><th>{main.by}</th><th class="num">GPU-hours</th><th><span class="hidden">share</span></th><th class="num">busy</th><th class="num">wasted</th><th class="num">jobs</th><th class="num">failed</th><th class="num">wait p50</th><th class="num">p90</th><th class="num">kWh</th><th class="num">CPU-hours</th><th class="num">memory</th>{hasCost ? <th class="num">{safe(main.currency || "cost", 12)}</th> : null}</tr></thead>
          <tbody>
            {groups.map((group) => (
              <tr key={group.key}>
                <td>{narrows ? <button type="button" class="plain linklike" onClick={() => setParameters({ [main.by]: group.key })}><Name text={shownKey(group.key)} limit={40} /></button> : main.by === "sweep" && group.key !== "-" ? <a class="inline" href={`#/s/${encodeURIComponent(group.key)}`}>{safe(group.key, 40)}</a> : <Name text={shownKey(group.key)} limit={40} />}</td>
                <td class="num">{hours(group.gpu_hours)}</td>
                <td class="sharecell"><span class="share" style={{ width: `${(100 * group.gpu_hours) / most}%` }} aria-hidden="true" /></td>
                <td class="num">{group.utilization == null ? "–" : `${Math.round(group.utilization)} %`}</td>
                <td class={`num ${group.wasted_gpu_hours > 0.1 * group.gpu_hours ? "warn" : ""}`}>{hours(group.wasted_gpu_hours)}</td>
                <td class="num">{count(group.jobs)}</td>
                <td class="num">{count(group.failed)}</td>
                <td class="num">{group.wait_p50 == null ? "–" : duration(group.wait_p50)}</td>
                <td class="num">{group.wait_p90 == null ? "–" : duration(group.wait_p90)}</td>
                <td class="num">{group.kwh == null ? "–" : figure(group.kwh)}</td>
                <td class="num">{group.cpu_hours == null ? "–" : hours(group.cpu_hours)}</td>
                <td class="num" title="of the largest process">{memory(group.rss_peak)}</td>
                {hasCost ? <td class="num">{group.cost?.toFixed(2)}</td> : null}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function Waits({ groups }: { groups: UsageGroup[] }) {
  const sorted = groups.filter((group) => group.wait_p50 != null).sort((a, b) => Number(a.key) - Number(b.key));
  const most = Math.max(...sorted.map((group) => group.wait_p90 ?? 0), 1);
  return (
    <Panel title="Waiting time by GPUs requested">
      {sorted.length === 0 ? <Empty>No job has started.</Empty> : (
        <table>
          <thead><tr><th class="num">GPUs</th><th class="num">jobs</th><th class="num">half within</th><th class="num">90 % within</th><th><span class="hidden">bar</span></th></tr></thead>
          <tbody>
            {sorted.map((group) => (
              <tr key={group.key}>
                <td class="num">{safe(group.key, 12)}</td><td class="num">{count(group.jobs)}</td><td class="num">{duration(group.wait_p50)}</td><td class="num">{duration(group.wait_p90)}</td>
                <td class="sharecell" aria-hidden="true"><span class="share wide" style={{ width: `${(100 * (group.wait_p90 ?? 0)) / most}%` }} /><span class="share" style={{ width: `${(100 * (group.wait_p50 ?? 0)) / most}%` }} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

const GOOD_CAUSES = new Set(["done", "running", "skipped (exit 77)", "stopped early", "-"]);

function Causes({ groups }: { groups: UsageGroup[] }) {
  const shown = groups.filter((group) => !GOOD_CAUSES.has(group.key)).sort((a, b) => b.wasted_gpu_hours - a.wasted_gpu_hours || b.jobs - a.jobs).slice(0, 12);
  const most = Math.max(...shown.map((group) => group.gpu_hours), 1e-9);
  return (
    <Panel title="Attempts that did not complete, by cause">
      {shown.length === 0 ? <Empty>None.</Empty> : (
        <table>
          <thead><tr><th>cause</th><th class="num">jobs</th><th class="num">GPU-hours</th><th class="num">wasted</th><th><span class="hidden">bar</span></th></tr></thead>
          <tbody>
            {shown.map((group) => (
              <tr key={group.key}>
                <td>{safe(group.key, 60)}</td><td class="num">{count(group.jobs)}</td><td class="num">{hours(group.gpu_hours)}</td><td class="num">{hours(group.wasted_gpu_hours)}</td>
                <td class="sharecell" aria-hidden="true"><span class="share wide" style={{ width: `${(100 * group.gpu_hours) / most}%` }} /><span class="share lost" style={{ width: `${(100 * group.wasted_gpu_hours) / most}%` }} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

/** The last jobs that ended, with filters of their own. */
function Jobs({ length, user, queue }: { length: number; user: string; queue: string }) {
  const jobs = useSignal<JobView[] | null>(null);
  const more = useSignal(0);
  const state = STATES.includes(parameter("state")) ? parameter("state") : "";
  const name = parameter("name");
  useEffect(() => {
    const abort = new AbortController();
    const since = new Date(Date.now() - length * 86_400_000).toISOString();
    const load = async () => {
      const reply = await get<HistoryReply>(withQuery("history", { limit: LISTED_JOBS, since, user, queue, state, name }), abort.signal);
      jobs.value = reply.jobs.reverse();
      more.value = reply.more;
    };
    load().catch(() => {});
    return () => abort.abort();
  }, [length, user, queue, state, name, isLive.value]);
  return (
    <Panel title="Ended jobs" more={
      <>
        <input class="short wide" type="search" placeholder="name" aria-label="Name of the job" defaultValue={name} onChange={(event) => setParameters({ name: event.currentTarget.value.trim() })} />
        <select aria-label="State" value={state} onChange={(event) => setParameters({ state: event.currentTarget.value })}><option value="">all states</option>{STATES.map((one) => <option key={one} value={one}>{one.toLowerCase().replaceAll("_", " ")}</option>)}</select>
      </>
    }>
      {jobs.value?.length === 0 ? <Empty>No such job has ended in this time.</Empty> : null}
      {jobs.value?.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Ended jobs">
          <table>
            <thead><tr><th>job</th><th>state</th><th>user</th><th class="num">GPUs</th><th class="num">waited</th><th class="num">ran</th><th>ended</th><th>cause</th></tr></thead>
            <tbody>
              {jobs.value.map((job) => (
                <tr key={job.id}>
                  <td class="joblinkcell"><JobLink {...job} /></td>
                  <td><StateChip state={job.state} /></td>
                  <td><Name text={job.user} limit={24} /></td>
                  <td class="num">{job.request.gpus ?? "–"}</td>
                  <td class="num">{job.started_at ? duration(unix(job.started_at) - unix(job.submitted_at)) : "–"}</td>
                  <td class="num">{job.started_at ? duration(unix(job.ended_at) - unix(job.started_at)) : "–"}</td>
                  <td class="nowrap"><At time={unix(job.ended_at)} /></td>
                  <td class="muted">{safe(job.cause ?? "", 80)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {more.value ? <p class="hint">{count(more.value)} earlier ones: <code>stoker history --limit {count(more.value + LISTED_JOBS)}</code></p> : null}
    </Panel>
  );
}
