// The page that stays open: every GPU, what runs, what is next, what failed.

import { computed, effect } from "@preact/signals";
import type { GpuView } from "../api";
import { count, duration, plural, safe, unix } from "../core/format";
import { groupOf } from "../core/states";
import { NONE, type Row } from "../core/table";
import { act } from "../actions";
import { detail, useDetails } from "../details";
import { alarmKey, alarms, counts, ended, gpuNote, gpus, hours, loaded, mayAct, minute, nodes, samples, stuck, table, version } from "../net/live";
import { RANGES, chooseRange, density, range } from "../prefs";
import { At, Estimate, JobLink, Since } from "../widgets/bits";
import { Empty, Name, Panel, Progress, StateChip } from "../widgets/plain";
import { updateColours } from "../widgets/canvas";
import { Strip, StripLine, Swatch } from "../widgets/strip";

const MANY_GPUS = 32;

effect(() => {
  samples.value;
  version.value;
  updateColours();
});

/** Rows of the three lists; the table may hold 100,000 jobs, so that one pass finds them all. */
const lists = computed(() => {
  version.value;
  const running: number[] = [];
  const next: number[] = [];
  const failed: number[] = [];
  const held: number[] = [];
  const groups = table.words.state.map(groupOf);
  const totals = { running: 0, pending: 0, failed: 0, done: 0, held: 0 };
  for (let at = 0; at < table.size; at++) {
    if (!table.alive[at]) continue;
    const group = groups[table.codes.state[at]!] ?? "failed";
    totals[group]++;
    if (group === "running") running.push(at);
    else if (group === "failed") failed.push(at);
    else if (table.held[at]) totals.held++ < 3 && held.push(at);
    else if (group === "pending" && next.length < 5) next.push(at);
  }
  running.sort((a, b) => (table.numbers.started[b] || 0) - (table.numbers.started[a] || 0));
  failed.sort((a, b) => (table.numbers.ended[b] || 0) - (table.numbers.ended[a] || 0));
  const rows = (list: number[], limit: number) => list.slice(0, limit).map((at) => table.row(at));
  return { running: rows(running, 10), next: rows(next, 5), held: rows(held, 3), totals, failures: groupFailures(failed) };
});

/** Failures of one array or sweep with the same cause are one entry. */
function groupFailures(failed: number[]): { first: Row; ids: number[] }[] {
  const groups = new Map<string, { first: Row; ids: number[] }>();
  for (const at of failed) {
    const { id, array } = table.integers;
    const key = `${array[at] === NONE ? `j${id[at]}` : array[at]} ${table.codes.cause[at]}`;
    const group = groups.get(key);
    if (group) group.ids.push(table.integers.id[at]!);
    else if (groups.size < 200) groups.set(key, { first: table.row(at), ids: [table.integers.id[at]!] });
  }
  return [...groups.values()];
}

const gpuTotals = computed(() => {
  const totals: Record<string, number> = {};
  for (const sample of samples.value.values()) {
    const state = sample[5] === "shared" ? "busy" : sample[5];
    totals[state] = (totals[state] ?? 0) + 1;
  }
  return totals;
});

const hoursText = (value: number): string => value.toFixed(value < 10 ? 1 : 0);

function Figure({ value, label, href, note, kind = "" }: { value: string; label: string; href?: string; note?: string; kind?: string }) {
  const content = (
    <>
      <span class="value">{value}</span>
      <span class="label">{label}</span>
      <span class="note">{note}</span>
    </>
  );
  return href ? <a class={`figure ${kind}`} href={href} data-nav>{content}</a> : <div class={`figure ${kind}`}>{content}</div>;
}

function Figures() {
  const { totals, next } = lists.value;
  const all = samples.value.size;
  const { busy = 0, free = 0, ...others } = gpuTotals.value;
  const rest = Object.entries(others).map(([state, n]) => `${n} ${state}`);
  const first = next[0];
  const today = hours.value;
  const wasted = today ? today.idle + today.lost : 0;
  useDetails(first ? [first.id] : []);
  const expected = first ? (first.expected ?? unix(detail(first.id)?.expected_start)) : NaN;
  const failed = Object.entries(counts.value).reduce((sum, [state, n]) => (groupOf(state) === "failed" ? sum + n : sum), 0);
  return (
    <div class="figures-row" aria-label="Summary">
      <Figure value={count(totals.running)} label="running" href="#/q?f=state:running" kind="running" />
      <Figure value={count(totals.pending)} label="waiting" href="#/q?f=state:pending" note={totals.held ? `${count(totals.held)} held` : ""} />
      <Figure value={count(Math.max(failed, totals.failed))} label="failed" href="#/q?f=state:failed" kind={totals.failed ? "failed" : ""} note={totals.failed ? "not seen yet" : ""} />
      <Figure value={all ? `${busy}/${all}` : "–"} label="GPUs busy" href="#/m" note={all === 0 && gpus.value ? "no GPUs here" : [free ? `${free} free` : "", ...rest].filter(Boolean).join(" · ")} />
      <Figure value={today ? hoursText(today.held) : "–"} label="GPU-hours today" href="#/h" />
      <Figure value={today ? hoursText(wasted) : "–"} label="wasted today" href="#/h" note={today && wasted >= 0.05 ? [today.idle >= 0.05 ? `${hoursText(today.idle)} idle` : "", today.lost >= 0.05 ? `${hoursText(today.lost)} failed` : ""].filter(Boolean).join(" · ") : today?.held ? "none idle" : ""} kind={today && wasted > 0.1 * today.held && wasted > 0.5 ? "warn" : ""} />
      <Figure value={first ? (Number.isFinite(expected) ? (expected - minute.value < 90 ? "soon" : duration(expected - minute.value)) : "–") : "–"} label="to the next start" href={first ? `#/j/${first.id}` : "#/q"} note={first ? `job ${first.label}` : "nothing waits"} />
    </div>
  );
}

function Machines() {
  const list = gpus.value;
  if (list === null) return <div class="strips ghosts" aria-hidden="true">{[0, 1, 2, 3].map((i) => <div class="strip ghost" key={i} />)}</div>;
  if (list.length === 0) return <Empty>{gpuNote.value ?? "This machine has no GPUs. Jobs run on its cores."}</Empty>;
  const byNode = new Map<string, GpuView[]>();
  for (const gpu of list) byNode.set(gpu.node, [...(byNode.get(gpu.node) ?? []), gpu]);
  const isDense = density.value === "lines" || (density.value === "auto" && list.length >= MANY_GPUS);
  return (
    <div class={isDense ? "dense" : ""}>
      {[...byNode].map(([node, members]) => {
        const state = nodes.value?.find((one) => one.name === node);
        return (
          <section class="machine" key={node} aria-label={`GPUs of ${node}`}>
            {byNode.size > 1 || isDense ? (
              <h2>
                <a href={`#/m?n=${encodeURIComponent(node)}`}><Name text={node} limit={40} /></a>
                {state && state.state !== "up" ? <span class={`nodestate ${state.state}`}> {state.state}</span> : null}
              </h2>
            ) : null}
            <div class={isDense ? "lines" : "strips"}>
              {members.map((gpu) => (isDense ? <StripLine gpu={gpu} key={gpu.id} /> : <Strip gpu={gpu} key={gpu.id} />))}
            </div>
          </section>
        );
      })}
    </div>
  );
}

function Ranges() {
  return (
    <span class="segments" role="group" aria-label="Period of the strips">
      {RANGES.map((one, at) => (
        <button type="button" key={one.name} aria-pressed={range.value === one} onClick={() => chooseRange(at - RANGES.indexOf(range.value))}>{one.name}</button>
      ))}
    </span>
  );
}

function Running() {
  const { running, totals } = lists.value;
  return (
    <Panel title="Running" more={totals.running > running.length ? <a href="#/q?f=state:running">all {count(totals.running)}</a> : null}>
      {running.length === 0 ? <Empty>{loaded.value ? "Nothing runs." : "Loading …"}</Empty> : null}
      <ul class="jobs">
        {running.map((job) => (
          <li key={job.id}>
            <span class="first"><Swatch id={job.id} /><JobLink {...job} /></span>
            <span class="side"><Name text={job.user} limit={20} />{job.gpus ? <span class="muted"> · {plural(job.gpus, "GPU")}</span> : null}</span>
            <span class="second">
              {job.total_epochs ? <><Progress done={job.epochs} total={job.total_epochs} label="epochs" /> epoch {job.epochs ?? 0}/{job.total_epochs}</> : job.limit ? <Progress done={Math.max(0, minute.value - (job.started ?? minute.value))} total={job.limit} label="of the time limit" /> : null}
              {job.state === "RUNNING" ? null : <StateChip state={job.state} />}
            </span>
            <span class="side muted"><Since time={job.started} />{job.expected ? <> · ends <At time={job.expected} /></> : null}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function NextUp() {
  const { next, totals } = lists.value;
  useDetails(next.map((job) => job.id));
  return (
    <Panel title="Next up" more={totals.pending > next.length ? <a href="#/q?f=state:pending">all {count(totals.pending)}</a> : null}>
      {next.length === 0 ? <Empty>{loaded.value ? (totals.held ? `${plural(totals.held, "job")} held, nothing else waits.` : <>Nothing waits. <code>stoker submit python train.py</code> adds a job.</>) : "Loading …"}</Empty> : null}
      <ol class="jobs">
        {next.map((job) => {
          const view = detail(job.id);
          return (
            <li key={job.id}>
              <span class="first"><JobLink {...job} /></span>
              <span class="side"><Estimate view={view?.foreseen} which="start" /></span>
              <span class="second muted">{safe(view?.reason_text ?? (view?.reason ? view.reason : ""), 160)}</span>
              <span class="side muted"><Name text={job.user} limit={20} />{job.gpus ? ` · ${plural(job.gpus, "GPU")}` : ""}</span>
            </li>
          );
        })}
      </ol>
    </Panel>
  );
}

function Ended() {
  const jobs = ended.value;
  return (
    <Panel title="Ended">
      {!jobs?.length ? <Empty>{jobs ? "Nothing has ended yet." : "Loading …"}</Empty> : null}
      <ul class="jobs">
        {jobs?.map((job) => (
          <li key={`${job.id} ${job.ended_at}`}>
            <span class="first"><JobLink {...job} /></span>
            <span class="side muted"><At time={unix(job.ended_at)} /></span>
            <span class="second"><StateChip state={job.state} /></span>
            <span class="side muted">{job.started_at ? `ran ${duration(unix(job.ended_at) - unix(job.started_at))}` : "never started"}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Alarms() {
  version.value;
  const list = alarms.value.slice(0, 8);
  if (!list.length) return null;
  return (
    <Panel title="Alarms" kind="alarms" more={<span class="muted">{count(alarms.value.length)}</span>}>
      <ul class="jobs">
        {list.map((alarm) => {
          const row = alarm.job === null ? null : table.byId(alarm.job);
          const since = typeof alarm.since === "string" ? unix(alarm.since) : alarm.since;
          return (
            <li key={alarmKey(alarm)}>
              <span class="first"><span class="warn" aria-hidden="true">▲</span> {alarm.job === null ? null : <JobLink id={alarm.job} label={row?.label ?? String(alarm.job)} name={row?.name ?? ""} />}{alarm.job === null && alarm.node ? <a href={`#/m?n=${encodeURIComponent(alarm.node)}`}>{safe(alarm.node, 40)}</a> : null}</span>
              <span class="side muted">{safe(alarm.kind.replaceAll("_", " "), 20)} <Since time={since} /></span>
              <span class="second">{safe(alarm.text, 200)}</span>
              <span class="side muted">{alarm.action && alarm.action !== "tell" ? safe(alarm.action.replaceAll("_", " "), 30) : ""}</span>
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

function NeedsYou() {
  const { failures, held, totals } = lists.value;
  const shown = failures.slice(0, 5);
  useDetails(shown.map((group) => group.first.id));
  return (
    <Panel title="Needs you" kind={shown.length ? "failed" : ""} more={totals.failed ? <>
      <a href="#/q?f=state:failed">all {count(totals.failed)}</a>
      {mayAct.value ? <button type="button" class="small" onClick={() => act("dismiss", failures.flatMap((group) => group.ids))}>All seen</button> : null}
    </> : null}>
      {shown.length === 0 && stuck.value.jobs.length === 0 ? <Empty>{loaded.value ? "No failures." : "Loading …"}</Empty> : null}
      <ul class="jobs failures">
        {shown.map(({ first, ids }) => {
          const view = detail(first.id);
          const tail = (view?.tail ?? []).filter((line) => line.trim());
          return (
            <li key={first.id}>
              <span class="first"><StateChip state={first.state} /> <JobLink {...first} />{ids.length > 1 ? <span class="muted"> and {plural(ids.length - 1, "other")}</span> : null}</span>
              <span class="side muted"><At time={first.ended} /></span>
              <span class="second cause">{safe(first.cause ?? "", 160)}{view && view.attempts.length > 1 ? `, ${view.attempts.length} attempts` : ""}</span>
              <span class="side">
                {mayAct.value ? (
                  <>
                    <button type="button" class="small" onClick={() => act("retry", ids)}>Retry{ids.length > 1 ? ` ${ids.length}` : ""}</button>
                    <button type="button" class="small" onClick={() => act("dismiss", ids)} aria-label={`Mark job ${first.label} as seen`}>Seen</button>
                  </>
                ) : null}
              </span>
              {tail.length ? <pre>{tail.slice(-3).map((line) => safe(line, 240)).join("\n")}</pre> : null}
            </li>
          );
        })}
        {stuck.value.jobs.map((job) => (
          <li key={job.id}>
            <span class="first"><StateChip state={job.state} /> <JobLink {...job} /></span>
            <span class="side">{mayAct.value ? <button type="button" class="small" onClick={() => act("cancel", [job.id])}>Cancel</button> : null}</span>
            <span class="second cause">can never start: {safe(job.reason_text ?? "", 160)}</span>
          </li>
        ))}
        {stuck.value.more ? <li class="muted">and {count(stuck.value.more)} more that can never start</li> : null}
        {held.map((job) => (
          <li key={job.id}>
            <span class="first"><StateChip state={job.state} held /> <JobLink {...job} /></span>
            <span class="side">{mayAct.value ? <button type="button" class="small" onClick={() => act("release", [job.id])}>Release</button> : null}</span>
          </li>
        ))}
        {totals.held > held.length ? <li><a href="#/q?f=state:held">all {count(totals.held)} held</a></li> : null}
      </ul>
    </Panel>
  );
}

export function Overview() {
  return (
    <>
      <h1 class="hidden">Overview</h1>
      <Figures />
      {samples.value.size ? <div class="toolbar"><Ranges /></div> : null}
      <Machines />
      <div class="columns">
        <Running />
        <NextUp />
        <div>
          <Alarms />
          <NeedsYou />
          <Ended />
        </div>
      </div>
    </>
  );
}
