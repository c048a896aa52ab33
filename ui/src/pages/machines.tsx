// The nodes: state and why, resources, jobs, other processes; drain and use again.

import { drain } from "../actions";
import type { GpuView, NodeView, ResourceView } from "../api";
import { memory, plural, safe, unix } from "../core/format";
import { gpus, loaded, mayAct, nodes, samples, table, version } from "../net/live";
import { parameter, setParameters } from "../route";
import { At, JobLink } from "../widgets/bits";
import { Empty, Name } from "../widgets/plain";

const SHOWN_GPUS = 64;

function Amount({ name, resource }: { name: string; resource: ResourceView }) {
  const total = Number(resource.total);
  const held = Number(resource.held);
  const free = Number(resource.free);
  if (!total) return null;
  const other = Math.max(0, total - held - free);
  const text = (value: number) => (name === "mem" ? memory(value) : String(Math.round(value * 1000) / 1000));
  const title = { gpu: "GPUs", cpu: "cores", mem: "memory" }[name] ?? name;
  return (
    <div class="amount">
      <span>{safe(title, 30)}</span>
      <span class="bar" role="img" aria-label={`${text(held)} held, ${text(free)} free of ${text(total)}`}>
        <span class="heldpart" style={{ width: `${(100 * held) / total}%` }} />
        <span class="otherpart" style={{ width: `${(100 * other) / total}%` }} />
      </span>
      <span class="num">{text(held)} / {text(total)}{other > 0.001 ? <span class="muted"> · {text(other)} foreign</span> : null}</span>
    </div>
  );
}

function Gpu({ gpu }: { gpu: GpuView }) {
  version.value;
  const sample = samples.value.get(`${gpu.node}/${gpu.id}`);
  const state = sample?.[5] ?? gpu.state;
  const jobs = sample?.[6] ?? [];
  const isDrained = state === "drained" || gpu.drained !== null;
  return (
    <tr class={state}>
      <td>{gpu.id}</td>
      <td class="model">{safe((gpu.model ?? "").replace(/^NVIDIA (GeForce )?/, ""), 30)}</td>
      <td><span class={`gpustate ${state}`}>{state}</span>{gpu.drained ? <span class="muted"> {safe(gpu.drained, 60)}</span> : null}</td>
      <td class="num">{sample?.[1] == null ? "–" : `${Math.round(sample[1])} %`}</td>
      <td class="num">{memory(sample?.[2])}</td>
      <td>
        {jobs.map(([id]) => <JobLink key={id} id={id} label={table.byId(id)?.label ?? String(id)} name={table.byId(id)?.name ?? ""} />)}
        {gpu.foreign.slice(0, 3).map((process, at) => <span key={at} class="muted">{safe(process.user ?? "?", 30)}: {safe(process.command ?? "process", 40)} ({process.pid}{process.memory ? `, ${memory(process.memory)}` : ""}) </span>)}
        {!gpu.foreign.length && gpu.foreign_process ? <span class="muted">{safe(gpu.foreign_process, 120)}</span> : null}
      </td>
      <td>{mayAct.value ? <button type="button" class="small" aria-label={`${isDrained ? "Use" : "Drain"} GPU ${gpu.id} of ${gpu.node}`} onClick={() => drain(`${gpu.node}/${gpu.id}`, isDrained)}>{isDrained ? "Use again" : "Drain"}</button> : null}</td>
    </tr>
  );
}

function Node({ node }: { node: NodeView }) {
  const own = (gpus.value ?? []).filter((gpu) => gpu.node === node.name);
  const isDrained = node.state === "drained";
  const order = ["gpu", "cpu", "mem"];
  const resources = Object.entries(node.resources).sort(([a], [b]) => (order.indexOf(a) + 9) % 9 - ((order.indexOf(b) + 9) % 9));
  return (
    <section class={`panel node ${node.state}`} aria-label={`Machine ${node.name}`}>
      <header>
        <h2><Name text={node.name} limit={60} /></h2>
        <span class={`nodestate ${node.state}`}>{node.state}</span>
        <span class="muted">{node.since ? <>since <At time={unix(node.since)} /> · </> : null}{node.kind === "local" ? "this machine" : safe(node.address ?? node.kind, 80)}</span>
        <span class="more">
          <a href={`#/q?f=${encodeURIComponent(`node:${node.name}`)}`}>{plural(node.jobs, "job")}</a>
          {mayAct.value && !node.cluster ? <button type="button" onClick={() => drain(node.name, isDrained)}>{isDrained ? "Use again" : "Drain"}</button> : null}
        </span>
      </header>
      {node.why ? <p class="reason">{safe(node.why, 400)}</p> : null}
      {node.notes.map((note, at) => <p class="reason" key={at}>{safe(note, 400)}</p>)}
      {node.pilots ? <p>{plural(node.pilots.running, "allocation")} running, {node.pilots.queued} queued; {safe(node.shape ?? "", 120)}</p> : null}
      {node.allocation ? <p class="muted">Allocation {safe(node.allocation.id, 40)}{node.allocation.reason ? ` waits: ${safe(node.allocation.reason, 60)}` : ""}{node.allocation.end ? <> until <At time={unix(node.allocation.end)} /></> : null}</p> : null}
      <div class="amounts">{resources.map(([name, resource]) => <Amount key={name} name={name} resource={resource} />)}</div>
      {node.measured ? (
        <p class="muted">
          {node.measured.load == null ? "" : `load ${node.measured.load.toFixed(1)} on ${node.measured.cores} cores · `}
          {node.measured.memory_available == null ? "" : `${memory(node.measured.memory_available)} of ${memory(node.measured.memory)} memory available · `}
          {node.measured.disk_free == null ? "" : `${memory(node.measured.disk_free)} disk free`}
        </p>
      ) : null}
      {own.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label={`GPUs of ${node.name}`}>
          <table>
            <thead><tr><th>GPU</th><th class="model">model</th><th>state</th><th class="num">use</th><th class="num">memory</th><th>jobs and other processes</th><th><span class="hidden">actions</span></th></tr></thead>
            <tbody>{own.slice(0, SHOWN_GPUS).map((gpu) => <Gpu key={gpu.id} gpu={gpu} />)}</tbody>
          </table>
        </div>
      ) : null}
    </section>
  );
}

export function Machines() {
  const list = nodes.value;
  const only = parameter("n");
  if (list === null) return <Empty>{loaded.value ? "No answer so far." : "Loading …"}</Empty>;
  const shown = only ? list.filter((node) => node.name === only) : list;
  return (
    <>
      <h1 class="hidden">Machines</h1>
      {only ? <p class="toolbar"><button type="button" onClick={() => setParameters({ n: "" })}>All {plural(list.length, "machine")}</button></p> : null}
      <div class="nodes">{shown.map((node) => <Node key={node.name} node={node} />)}</div>
      {shown.length === 0 ? <Empty>There is no machine {safe(only, 60)}.</Empty> : null}
    </>
  );
}

