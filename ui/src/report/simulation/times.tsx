// How long jobs took and waited under each policy, and what the GPUs did over time.

import { signal, useSignal } from "@preact/signals";
import { count } from "../../core/format";
import { digits, elapsed, roomy, roundSpans, shareAt, span, ticks, timeLabels } from "../../core/spans";
import { paint } from "../../palette";
import { Chart } from "../../widgets/chart";
import { data, measured, runs, SIZES, type Quantity } from "./data";
import { Choices, dashOf, isGone, Key, nameOf, Plot, Section, tip } from "./parts";

const QUANTITIES: Record<Quantity, [title: string, note: string]> = {
  jct: ["completion time", "from submission to end"],
  waiting: ["wait", "time without GPUs"],
  slowdown: ["slowdown", "completion time divided by run time"],
};

const CURVE_POINTS = 300;

/** For each time, the share of jobs that took no longer. */
export function Distribution() {
  const chosen = useSignal<Quantity>("jct");
  const quantity = chosen.value;
  const isTime = quantity !== "slowdown";
  const lines = runs.map((run, place) => ({ label: nameOf(place, 40), colour: paint(place), dash: dashOf(place), points: run.curves[quantity] })).filter((line) => line.points.length);
  if (!lines.length) return null;
  const ends = lines.flatMap(({ points }) => [points[Math.floor(points.length * 0.02)]!, points.at(-4)!]);
  const high = Math.max(isTime ? 60 : 10, ...ends);
  const low = isTime ? Math.max(1, Math.min(high / 100, ...ends)) : 1;
  const x = Array.from({ length: CURVE_POINTS + 1 }, (_, i) => low * (high / low) ** (i / CURVE_POINTS));
  const series = lines.map(({ points, ...line }) => ({ ...line, x, y: x.map((value) => 100 * shareAt(points, data.shares, value)) }));
  const [title, note] = QUANTITIES[quantity];
  const labels = isTime ? roundSpans(low, high, 7) : [1, 2, 5, 10, 20, 50, 100, 1e3, 1e4, 1e5].filter((at) => at <= high).map((at) => ({ at, text: `${count(at)} ×` }));
  const texts = new Map(labels.map(({ at, text }) => [at, text]));
  const format = (value: number) => texts.get(value) ?? (isTime ? span(value) : `${digits(value)} ×`);
  const choices = <Choices title="Quantity" all={(Object.keys(QUANTITIES) as Quantity[]).map((each) => [each, QUANTITIES[each][0]] as const)} value={quantity} onChoose={(next) => (chosen.value = next)} />;
  return (
    <Section title="Distribution of job times" hint="Share of jobs that took at most this long; further left is better." more={choices}>
      <Chart key={quantity} title={`${title}: ${note}`} series={series} height={Math.max(320, Math.min(sizesHeight(), 540))} range={[0, 100]} logX={{ title: "at most", range: [low, high], splits: labels.map(({ at }) => at), format }} format={(value) => `${Math.round(10 * value) / 10} %`} hasLegend />
    </Section>
  );
}

const sizesShown = SIZES.filter(([name]) => runs.some((run) => run.sizes[name]));
const SIZE_ROW = runs.length > 6 ? 15 : 17;
const SIZE_GAP = 30;
const sizesHeight = () => sizesShown.length * (SIZE_GAP + runs.length * SIZE_ROW) + 26;

/** Waiting by the GPUs of a job: a dot for the median, a bar to the 90th percentile. */
export function WaitBySize() {
  if (!sizesShown.length) return null;
  return <Section title="Wait by job size" hint="From the median (dot) to the 90th percentile (end of the bar)."><Plot draw={drawSizes} /></Section>;
}

function drawSizes(width: number) {
  const longest = Math.max(...runs.map((run) => run.label.length));
  const left = Math.min(Math.max(60, longest * 6.6 + 28), width * 0.36);
  const right = width - 58;
  const values = runs.flatMap((run) => Object.values(run.sizes).flatMap(([, ...waits]) => waits)).filter((value) => value > 0);
  const high = Math.max(60, ...values);
  const low = Math.max(1, Math.min(high / 60, ...values.filter((value) => value >= 1)));
  // Many jobs do not wait at all: zero has its own place on a logarithmic axis.
  const x = (value: number) => (value < low ? left + 4 : left + 26 + (Math.log(value / low) / Math.log(high / low)) * (right - left - 26));
  const height = sizesHeight();
  const bottom = height - 24;
  return (
    <svg viewBox={`0 0 ${width} ${height}`} height={height} role="img" aria-label="Wait by number of GPUs, for each policy">
      {[{ at: 0, text: "0" }, ...roomy(roundSpans(low, high, 9), x, 52)].map(({ at, text }) => (
        <g key={at}><line class="axis" x1={x(at)} x2={x(at)} y1={22} y2={bottom + 4} /><text x={x(at)} y={bottom + 18} text-anchor="middle">{text}</text></g>
      ))}
      {sizesShown.map(([name, title], group) => {
        const above = 2 + group * (SIZE_GAP + runs.length * SIZE_ROW);
        const jobs = Math.max(...runs.map((run) => run.sizes[name]?.[0] ?? 0));
        return (
          <g key={name}>
            <text class="strong halo" x={0} y={above + 16}>{title}<tspan class="soft" dx={8}>{count(jobs)} {jobs === 1 ? "job" : "jobs"}</tspan></text>
            {runs.map((run, place) => {
              const y = above + SIZE_GAP - 5 + (place + 0.5) * SIZE_ROW;
              const [, median, p90] = run.sizes[name] ?? [];
              return (
                <g key={place}>
                  <text x={left - 8} y={y + 4} text-anchor="end">{nameOf(place, Math.max(3, Math.floor((left - 24) / 6.6)))}</text>
                  {median === undefined || p90 === undefined ? null : (
                    <g fill={paint(place)}>
                      <title>{`${nameOf(place)}, ${title}: median ${span(median)}, 90th percentile ${span(p90)}`}</title>
                      <rect x={x(median)} y={y - 3.5} width={Math.max(0, x(p90) - x(median))} height={7} rx={3.5} fill-opacity={0.4} />
                      <circle cx={x(median)} cy={y} r={4.5} />
                      <text class="halo" x={x(p90) + 8} y={y + 4}>{span(p90)}</text>
                    </g>
                  )}
                </g>
              );
            })}
          </g>
        );
      })}
    </svg>
  );
}

/** The span shown: 0 is the whole time, 1 ends with the last submission, where draining is long. */
const shownSpan = signal(data.spans.length > 1 && data.last > 0.2 * data.end ? 1 : 0);

type Series = "use" | "queue";
const valuesOf = (run: number, what: Series): number[] => runs[run]![what][shownSpan.value] ?? [];
const peakOf = (run: number, what: Series): number => valuesOf(run, what).reduce((most, value) => Math.max(most, value), 0);
const hasSeries = (what: Series): boolean => runs.some((run) => run[what][0]?.length);

export function InUse() {
  if (!hasSeries("use")) return null;
  const { values } = measured("in use");
  const most = Math.max(data.gpus, ...runs.map((_, run) => peakOf(run, "use")));
  const hint = `Of ${count(data.gpus)}.${values.some((value) => value !== null) ? " On the right: mean share in use until the last submission." : ""}`;
  const choices = data.spans.length > 1 ? <Choices title="Time" all={[[1, "until the last submission"], [0, "until all jobs ended"]]} value={shownSpan.value} onChoose={(next) => (shownSpan.value = next)} /> : null;
  return (
    <Section title="GPUs in use" hint={hint} more={choices}>
      <OverTime what="use" most={() => most} text={(value) => `${digits(value)} GPUs`} note={(run) => (values[run] == null ? "" : `${(100 * values[run]).toFixed(1)} %`)} />
    </Section>
  );
}

export function Pending() {
  const isOwn = useSignal(0);
  if (!hasSeries("queue")) return null;
  const all = Math.max(1, ...runs.map((_, run) => peakOf(run, "queue")));
  const choices = runs.length > 1 ? <Choices title="Scale" all={[[0, "same scale"], [1, "own scale"]]} value={isOwn.value} onChoose={(next) => (isOwn.value = next)} /> : null;
  return (
    <Section title="Pending jobs" hint="Jobs without GPUs." more={choices}>
      <OverTime what="queue" most={(run) => (isOwn.value ? Math.max(1, peakOf(run, "queue")) : all)} text={(value) => `${count(value)} jobs`} note={(run) => `at most ${count(runs[run]!.most)}`} />
    </Section>
  );
}

interface OverTimeProps {
  what: Series;
  most: (run: number) => number;
  text: (value: number) => string;
  note: (run: number) => string;
}

/** An area over time for each policy, with one line across all at the pointer. */
function OverTime({ what, most, text, note }: OverTimeProps) {
  const cross = useSignal<number | null>(null);
  const each = runs.length > 6 ? 44 : 58;
  const gap = 26;
  const left = 48;
  const bottom = runs.length * (each + gap);
  const height = bottom + 34;
  const long = data.spans[shownSpan.value] || 1;
  const bins = Math.max(...runs.map((_, run) => valuesOf(run, what).length));
  const draw = (width: number) => {
    const right = width - 8;
    const x = (at: number) => left + (at / long) * (right - left);
    const show = (svg: Element, px: number, y?: number) => {
      const at = Math.max(left, Math.min(right, px));
      const share = (at - left) / (right - left);
      const bin = Math.min(bins - 1, Math.floor(share * bins));
      const box = svg.getBoundingClientRect();
      cross.value = share;
      tip.value = { title: `at ${elapsed(share * long)}`, x: box.left + at, y: y ?? box.top + gap, rows: runs.map((run, place) => ({ name: run.label, value: valuesOf(place, what).length ? text(valuesOf(place, what)[bin]!) : "–", run: place })) };
    };
    const hide = () => (cross.value = tip.value = null);
    const onPointer = (event: PointerEvent & { currentTarget: Element }) => show(event.currentTarget, event.clientX - event.currentTarget.getBoundingClientRect().left, event.clientY);
    const onKey = (event: KeyboardEvent & { currentTarget: Element }) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      show(event.currentTarget, left + (cross.value ?? 0.5) * (right - left) + step * (event.shiftKey ? 40 : 8));
    };
    const { word, labels } = timeLabels(0, long, width / 90);
    const isLastInside = data.last > 0 && data.last < long * 0.98;
    return (
      <svg viewBox={`0 0 ${width} ${height}`} height={height} role="img" tabIndex={0} aria-label={runs.map((run, place) => `${nameOf(place)}: ${note(place) || run.jobs}`).join("; ")}
        onPointerDown={onPointer} onPointerMove={onPointer} onPointerLeave={(event) => isGone(event) && hide()} onBlur={hide} onKeyDown={onKey}>
        {runs.map((_, run) => {
          const low = (run + 1) * (each + gap);
          const top = most(run);
          const y = (value: number) => low - (value / top) * each;
          const step = (right - left) / bins;
          const path = valuesOf(run, what).map((value, i) => `H${(left + i * step).toFixed(1)}V${y(value).toFixed(1)}`).join("");
          return (
            <g key={run}>
              <line x1={left} x2={left + 14} y1={low - each - 11} y2={low - each - 11} stroke={paint(run)} stroke-width={3} stroke-dasharray={dashOf(run)?.join(" ")} />
              <text class="strong" x={left + 20} y={low - each - 7}>{nameOf(run, 40)}</text>
              <text x={right} y={low - each - 7} text-anchor="end">{note(run)}</text>
              {[0, top].map((value) => <g key={value}><line class="axis" x1={left} x2={right} y1={y(value)} y2={y(value)} /><text x={left - 7} y={y(value) + 4} text-anchor="end">{count(value)}</text></g>)}
              {path ? <path d={`M${left} ${low}${path}H${right}V${low}Z`} fill={paint(run)} fill-opacity={0.6} /> : null}
              {isLastInside ? <line class="mark" x1={x(data.last)} x2={x(data.last)} y1={low - each} y2={low}><title>last submission</title></line> : null}
            </g>
          );
        })}
        {labels.map(({ at, text: label }) => <text key={at} x={x(at)} y={bottom + 16} text-anchor="middle">{label}</text>)}
        <text x={(left + right) / 2} y={bottom + 31} text-anchor="middle">{word} since the start{isLastInside ? "; dashed: last submission" : ""}</text>
        {cross.value === null ? null : <line class="cross" x1={left + cross.value * (right - left)} x2={left + cross.value * (right - left)} y1={gap} y2={bottom} />}
      </svg>
    );
  };
  return <Plot draw={draw} />;
}

const stops = measured("preempted").values;
export const hasPreemptions = runs.length > 1 && stops.some((value) => value);

/** What short completion times cost: jobs that are stopped and started again. */
export function Preemptions() {
  if (!hasPreemptions) return null;
  const jct = measured("mean JCT").values;
  const points = runs.map((_, run) => ({ run, a: stops[run] ?? null, b: jct[run] ?? null })).filter((each): each is { run: number; a: number; b: number } => each.a !== null && each.b !== null && each.b > 0);
  return (
    <Section title="Completion time and preemptions" hint="Mean JCT against preemptions per job; nearer to the lower left corner is better.">
      <Plot draw={(width) => drawPreemptions(width, points)} />
      <p class="legend">{points.map(({ run }) => <span key={run}><Key run={run} />{nameOf(run)}</span>)}</p>
    </Section>
  );
}

function drawPreemptions(width: number, points: { run: number; a: number; b: number }[]) {
  const height = 300;
  const left = 58;
  const right = width - 16;
  const bottom = height - 38;
  const low = Math.min(...points.map((each) => each.b)) / 1.25;
  const high = Math.max(...points.map((each) => each.b)) * 1.15;
  const far = Math.max(...points.map((each) => each.a)) * 1.12;
  const x = (value: number) => left + 10 + (value / far) * (right - left - 10);
  const y = (value: number) => bottom - (Math.log(value / low) / Math.log(high / low)) * (bottom - 14);
  const say = ({ run, a, b }: { run: number; a: number; b: number }) => `${nameOf(run)}: ${digits(a)} preemptions per job, mean JCT ${span(b)}`;
  return (
    <svg viewBox={`0 0 ${width} ${height}`} height={height} role="img" aria-label={points.map(say).join("; ")}>
      {roundSpans(low, high, 7).map(({ at, text }) => <g key={at}><line class="axis" x1={left} x2={right} y1={y(at)} y2={y(at)} /><text x={left - 7} y={y(at) + 4} text-anchor="end">{text}</text></g>)}
      {ticks(0, far, width / 100).map((value) => <text key={value} x={x(value)} y={bottom + 17} text-anchor="middle">{String(value)}</text>)}
      <text x={(left + right) / 2} y={height - 3} text-anchor="middle">preemptions per job</text>
      {points.map((point) => (
        <g key={point.run}>
          <circle cx={x(point.a)} cy={y(point.b)} r={6} fill={paint(point.run)} stroke="var(--panel)" stroke-width={1.5}
            onPointerEnter={(event) => (tip.value = { title: nameOf(point.run), x: event.clientX, y: event.clientY, rows: [{ name: "mean JCT", value: span(point.b) }, { name: "preemptions per job", value: digits(point.a) }] })}
            onPointerLeave={() => (tip.value = null)} />
        </g>
      ))}
    </svg>
  );
}
