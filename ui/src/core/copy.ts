// The text that submits an equal job, to paste into a shell or a script.

import type { JobView } from "../api";
import { quoted } from "./format";

/** Options by their names in `stoker submit`. */
function optionsOf(job: JobView): [name: string, value: string | number][] {
  const { request } = job;
  const range = request.most_gpus ? `${request.gpus}..${request.most_gpus === "64" ? "" : request.most_gpus}` : request.gpus;
  const options: [string, string | number | null | undefined][] = [
    ["name", job.name], ["gpus", request.gpus ? (request.model && !request.most_gpus ? `${request.model}:${range}` : range) : null],
    ["gpu-memory", request.gpu_memory ? `${request.gpu_memory}M` : null], ["gpus-min-vram", request.min_vram ? `${request.min_vram}M` : null],
    ["cpus", request.cpus], ["mem", request.memory ? `${request.memory}M` : null], ["nodes", request.machines],
    ["time", job.time_limit ? `${Math.ceil(job.time_limit / 60)}` : null], ["queue", job.queue === "default" ? null : job.queue],
    ["priority", job.priority || null], ["epochs", job.training?.epochs], ["chdir", job.directory],
  ];
  return options.filter((option): option is [string, string | number] => option[1] != null && option[1] !== "");
}

/** A `stoker submit` command. */
export function submitCommand(job: JobView): string {
  const words = optionsOf(job).map(([name, value]) => `--${name} ${quoted(String(value))}`);
  return `stoker submit ${words.join(" ")} ${job.command}`;
}

/** JSON strings are Python strings, too. */
const literal = (value: string | number): string => JSON.stringify(value);

/** A call of the Python API. */
export function submitPython(job: JobView): string {
  const options = optionsOf(job).map(([name, value]) => `    ${name.replaceAll("-", "_")}=${literal(value)},\n`);
  return `import stoker\n\nstoker.Client().submit(\n    ${literal(job.command)},\n${options.join("")})\n`;
}
