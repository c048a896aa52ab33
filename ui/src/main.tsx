// The page: opens a session if its address has a code, then shows and keeps current.

import { effect } from "@preact/signals";
import { render } from "preact";
import { listenToKeys } from "./keys";
import { post } from "./net/api";
import { connect, isStale, link } from "./net/live";
import { Job } from "./pages/job";
import { Machines } from "./pages/machines";
import { Overview } from "./pages/overview";
import { Queue } from "./pages/queue";
import { Sweep, Sweeps } from "./pages/sweep";
import { applyTheme } from "./prefs";
import { route } from "./route";
import { Empty } from "./widgets/bits";
import { Help, Notices, Question, Rail, SignedOut, updateTitle } from "./widgets/frame";
import "./style.css";

function Page() {
  switch (route.value.page) {
    case "": return <Overview />;
    case "q": return <Queue />;
    case "j": return <Job key={route.value.argument} />;
    case "s": return route.value.argument ? <Sweep key={route.value.argument} /> : <Sweeps />;
    case "m": return <Machines />;
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
