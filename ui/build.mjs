// Build the pages with esbuild alone.
//
//   node build.mjs            src/ -> ../src/stoker/ui/dist, the same bytes each time
//   node build.mjs --watch    into dist-dev, again after each change
//   node build.mjs --out DIR  the same into another directory
//   node build.mjs --tests    bundle test/*.test.ts into test-dist, for `node --test`

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const ROOT = dirname(fileURLToPath(import.meta.url));
const mode = process.argv[2] ?? "";
const places = { "--watch": join(ROOT, "dist-dev"), "--out": process.argv[3] };
const out = places[mode] ?? join(ROOT, "../src/stoker/ui/dist");

const sha256 = (data) => createHash("sha256").update(data).digest("hex");

/** Paths of all files below a directory, sorted, relative to this one. */
function filesBelow(directory) {
  return readdirSync(directory, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(ROOT, join(entry.parentPath ?? entry.path, entry.name)))
    .sort();
}

/** What `make ui-check` compares: check.py computes the same without Node. */
function sourceHash() {
  const hash = createHash("sha256");
  // Types of the API do not change what is built.
  const sources = filesBelow(join(ROOT, "src")).filter((file) => !file.endsWith(".d.ts"));
  const files = [...sources, "build.mjs", "package-lock.json"].sort();
  for (const file of files) hash.update(`${file}\0${sha256(readFileSync(join(ROOT, file)))}\n`);
  return hash.digest("hex");
}

/** Scripts and styles of the reports, which are put into one file with their data. */
async function buildReports() {
  const result = await esbuild.build({
    ...common, entryPoints: { "report-sweep": join(ROOT, "src/report/sweep.tsx"), "report-simulation": join(ROOT, "src/report/simulation.tsx") }, outdir: out, format: "iife", metafile: true,
  });
  return Object.keys(result.metafile.outputs).map((path) => path.split("/").at(-1));
}

/** index.html and manifest.json, which name the files with hashes that esbuild wrote. */
async function writePages(metafile) {
  const names = Object.keys(metafile.outputs).map((path) => path.split("/").at(-1));
  names.push(...(await buildReports()));
  const named = (stem, ending) => names.find((name) => name.startsWith(stem) && name.endsWith(ending));
  const page = readFileSync(join(ROOT, "src/index.html"), "utf8")
    .replace("app.js", named("app-", ".js"))
    .replace("app.css", named("app-", ".css"));
  writeFileSync(join(out, "index.html"), page);
  writeFileSync(join(out, "icon.svg"), readFileSync(join(ROOT, "src/icon.svg")));
  const files = {};
  for (const name of [...names, "index.html", "icon.svg"].sort())
    files[name] = sha256(readFileSync(join(out, name)));
  writeFileSync(join(out, "manifest.json"), JSON.stringify({ source: sourceHash(), files }, null, 1) + "\n");
}

const common = {
  bundle: true,
  minify: true,
  target: ["chrome111", "firefox111", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
  absWorkingDir: ROOT,
};
const pages = {
  ...common,
  entryPoints: { app: join(ROOT, "src/main.tsx") },
  outdir: out,
  format: "esm",
  splitting: true,
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  metafile: true,
  plugins: [
    {
      name: "pages",
      setup(build) {
        build.onStart(() => {
          rmSync(out, { recursive: true, force: true });
          mkdirSync(out, { recursive: true });
        });
        build.onEnd(async (result) => {
          if (result.metafile && result.errors.length === 0) await writePages(result.metafile);
        });
      },
    },
  ],
};

if (mode === "--tests") {
  rmSync(join(ROOT, "test-dist"), { recursive: true, force: true });
  await esbuild.build({
    entryPoints: filesBelow(join(ROOT, "test")).filter((file) => file.endsWith(".test.ts")),
    outdir: join(ROOT, "test-dist"),
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    absWorkingDir: ROOT,
    logLevel: "warning",
  });
} else if (mode === "--watch") {
  const context = await esbuild.context({ ...pages, sourcemap: "inline" });
  await context.watch();
  console.log(`watching; the pages are in ${out}`);
} else {
  await esbuild.build(pages);
}
