// The page: opens a session if its address has a code, then shows and keeps current.

import { effect, signal } from "@preact/signals";
import { render, type ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { listenToKeys } from "./keys";
import { post } from "./net/api";
import { connect, isLive, isStale, link } from "./net/live";
import { Job } from "./pages/job";
import { Machines } from "./pages/machines";
import { Overview } from "./pages/overview";
import { Queue } from "./pages/queue";
import { Sweep, Sweeps } from "./pages/sweep";
import { applyTheme } from "./prefs";
import { route } from "./route";
import { Empty } from "./widgets/plain";
import { Help, Menu, Notices, Question, Rail, SignedOut, updateTitle } from "./widgets/frame";
import "./style.css";

/** Pages that are opened now and then, loaded after all others: a daemon that has ended has no files. */
const LATER: Record<string, () => Promise<ComponentType>> = {
  h: async () => (await import("./pages/history")).History,
  p: async () => (await import("./pages/plan")).Plan,
  settings: async () => (await import("./pages/settings")).Settings,
};
const LATER_SECONDS = 0.5;
const later = signal<Record<string, ComponentType | null>>({});

function load(page: string): void {
  const set = (made: ComponentType | null) => (later.value = { ...later.peek(), [page]: made });
  if (!later.peek()[page]) LATER[page]!().then(set, () => set(null));
}

function Later({ page }: { page: string }) {
  const Loaded = later.value[page];
  useEffect(() => {
    // Chromium does not ask again for a module whose host refused the connection.
    if (Loaded === null && isLive.value) location.reload();
    else load(page);
  }, [page, isLive.value]);
  if (Loaded) return <Loaded />;
  return <Empty>{isStale.value ? "The daemon does not answer." : Loaded === null ? "The page cannot be loaded. Load it again." : "Loading …"}</Empty>;
}

function Page() {
  switch (route.value.page) {
    case "": return <Overview />;
    case "q": return <Queue />;
    case "j": return <Job key={route.value.argument} />;
    case "s": return route.value.argument ? <Sweep key={route.value.argument} /> : <Sweeps />;
    case "m": return <Machines />;
    case "h": case "p": case "settings": return <Later page={route.value.page} />;
    default: return <Empty>There is no such page. <a href="#/">Overview</a></Empty>;
  }
}

function App() {
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), document.getElementById("content")!.focus())}>To the content</a>
      <Rail />
      <main id="content" tabIndex={-1} class={`${isStale.value ? "stale" : ""} page-${route.value.page || "o"}`}>
        {link.value.state === "signed-out" ? <SignedOut /> : <Page />}
      </main>
      <Question />
      <Menu />
      <Help />
      <Notices />
    </>
  );
}

/** Exchange the code of the address for a session, and remove it from the address. */
async function openSession(): Promise<void> {
  const code = /^#c=([\w-]+)/.exec(location.hash)?.[1];
  if (!code) return;
  window.history.replaceState(null, "", "#/");
  window.dispatchEvent(new HashChangeEvent("hashchange"));
  try {
    await post("sessions/open", { code });
  } catch {
    // Used or expired; there may still be a session. If not, the page says how to open one.
  }
}

applyTheme();
const opening = openSession();
render(<App />, document.getElementById("app")!);
effect(updateTitle);
listenToKeys();
void opening.then(connect);
effect(() => {
  if (isLive.value) window.setTimeout(() => Object.keys(LATER).forEach(load), 1000 * LATER_SECONDS);
});
