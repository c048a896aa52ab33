// Figures in rows: policies, users, queues, scheduling times, notes.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { count, safe } from "../../core/format";
import { digits, instant, unitOf } from "../../core/spans";
import { data, measured, runs, written, type Groups, type Measure } from "./data";
import { Choices, Key, nameOf, Section } from "./parts";

const EXPLAINED: Record<string, string> = {
  "mean slowdown": "completion time divided by run time (at least 10 s)",
  "in use": "share of all GPUs, until the last submission; whole: until the last job ended",
  preempted: "preemptions per job",
  "largest wait": "longest time that any job was without resources",
  makespan: "from the first submission until the last job ended",
};

function Table({ label, heads, children }: { label: string; heads: ComponentChildren; children: ComponentChildren }) {
  return <div class="scroll" tabIndex={0} role="region" aria-label={label}><table class="figures"><thead><tr>{heads}</tr></thead><tbody>{children}</tbody></table></div>;
}

const RunHead = ({ run }: { run: number }) => <th scope="row" title={nameOf(run, 400)}><Key run={run} />{nameOf(run)}</th>;

export function Policies() {
  if (!runs.length) return <Section title="Policies"><p class="empty">Nothing was simulated.</p></Section>;
  const whole = measured("in use, whole");
  // Scheduling time has its own table, and both figures of GPUs in use are in one cell.
  const shown = data.measures.filter((measure) => measure.better && measure !== whole && measure.values.some((value) => value !== null));
  const hint = `JCT is the time from submission to end.${runs.length > 1 ? ` × is the ratio to ${nameOf(data.base)}; ▸ marks the best value.` : ""}`;
  return (
    <Section title="Policy comparison" hint={hint} isWide>
      <Table label="Policy comparison" heads={<><th scope="col">policy</th>{shown.map((measure) => <th scope="col" class="num" key={measure.title} title={EXPLAINED[measure.title]}>{measure.title}</th>)}</>}>
        {runs.map((_, run) => <tr key={run}><RunHead run={run} />{shown.map((measure) => <Value key={measure.title} measure={measure} run={run} />)}</tr>)}
      </Table>
    </Section>
  );
}

function Value({ measure, run }: { measure: Measure; run: number }) {
  const value = measure.values[run] ?? null;
  const base = measure.values[data.base];
  const unit = measure.kind === "time" ? unitOf(measure.values) : undefined;
  const text = written(value, measure.kind, unit);
  const whole = measure.title === "in use" ? measured("in use, whole").values[run] ?? null : null;
  const isCompared = runs.length > 1 && measure.kind !== "share" && value !== null && base;
  // A difference that is not seen is none: equal texts are equally good.
  const isBest = measure.best !== null && text === written(measure.best, measure.kind, unit);
  return (
    <td class={`num ${isBest ? "best" : ""}`}>
      {text}
      {isCompared ? <small>{run === data.base ? "base" : `${digits(value / base)} ×`}</small> : null}
      {whole !== null ? <small>whole {written(whole, "share")}</small> : null}
    </td>
  );
}

const COLUMNS = [["mean completion", "time"], ["mean wait", "time"], ["largest wait", "time"], ["mean slowdown", "number"]] as const;

/** Users or queues under each policy. */
export function ByGroup({ groups, title, word }: { groups: Groups; title: string; word: string }) {
  const column = useSignal(0);
  const { rows, left_out: more } = groups;
  if (!rows.length || (rows.length === 1 && !rows[0]![0])) return null;
  const [, kind] = COLUMNS[column.value]!;
  const hint = more ? `The ${rows.length} with the most GPU-hours; ${count(more)} more are not shown.` : "Sorted by GPU-hours.";
  const choices = <Choices title="Figure" all={COLUMNS.map(([text], i) => [i, text] as const)} value={column.value} onChoose={(next) => (column.value = next)} />;
  return (
    <Section title={title} hint={hint} more={choices} isWide>
      <Table label={title} heads={<><th scope="col">{word}</th><th scope="col" class="num">jobs</th><th scope="col" class="num">GPU-hours</th>{runs.map((_, run) => <th scope="col" class="num" key={run}><Key run={run} />{nameOf(run)}</th>)}</>}>
        {rows.map(([name, jobs, service, each]) => {
          const values = each.map((figures) => figures?.[column.value] ?? null);
          const unit = kind === "time" ? unitOf(values) : undefined;
          const texts = values.map((value) => written(value, kind, unit));
          const least = written(Math.min(...values.filter((value) => value !== null)), kind, unit);
          const differ = texts.some((text) => text !== least && text !== "–");
          return (
            <tr key={name}>
              <th scope="row" title={safe(name, 400)}>{safe(name, 60) || "(no name)"}</th><td class="num">{count(jobs)}</td><td class="num">{digits(service / 3600)}</td>
              {texts.map((text, run) => <td key={run} class={`num ${differ && text === least ? "best" : ""}`}>{text}</td>)}
            </tr>
          );
        })}
      </Table>
    </Section>
  );
}

export function SchedulingTime({ isWide }: { isWide: boolean }) {
  if (!runs.some((run) => run.cost.events)) return null;
  return (
    <Section title="Scheduling time" hint="Time per event, on the host that ran the simulation." isWide={isWide}>
      <Table label="Scheduling time" heads={["policy", "events", "median", "p99", "total"].map((text, i) => <th scope="col" class={i ? "num" : ""} key={text}>{text}</th>)}>
        {runs.map(({ cost }, run) => (
          <tr key={run}><RunHead run={run} />{[count(cost.events), ...[cost.median, cost.p99, cost.seconds].map((each) => (cost.events ? instant(each) : "–"))].map((text, i) => <td class="num" key={i}>{text}</td>)}</tr>
        ))}
      </Table>
    </Section>
  );
}

export function Notes() {
  const rows = runs.map((run, place) => ({ ...run, place })).filter((run) => Object.keys(run.parameters).length || run.notes.length);
  if (!rows.length && !data.notes.length) return null;
  return (
    <Section title="Notes" hint="Notes on the workload, and parameters of the policies." isWide>
      <ul class="notes">{data.notes.map((text, i) => <li key={i}>{safe(text, 2000)}</li>)}</ul>
      {rows.length ? (
        <table><tbody>
          {rows.map((run) => (
            <tr key={run.place}>
              <RunHead run={run.place} />
              <td><code>{safe(Object.entries(run.parameters).map(([name, value]) => `${name}=${value}`).join("  "), 1000)}</code>{run.notes.map((text, i) => <div key={i}>{safe(text, 1000)}</div>)}</td>
            </tr>
          ))}
        </tbody></table>
      ) : null}
    </Section>
  );
}
