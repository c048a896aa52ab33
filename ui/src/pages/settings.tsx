// What a user chooses for this browser, and the sessions that are open.

import { useSignal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { SessionList, SessionView } from "../api";
import { safe, unix } from "../core/format";
import { get } from "../net/api";
import { hello } from "../net/live";
import { colourBy, density, theme, zone } from "../prefs";
import { At } from "../widgets/bits";
import { Empty, Panel } from "../widgets/plain";
import { Shortcuts } from "../widgets/frame";

function Choice<T extends string>({ title, note, value, choices }: { title: string; note: string; value: Signal<T>; choices: readonly T[] }) {
  return (
    <div class="choice" role="group" aria-label={title}>
      <span>{title}</span>
      <span class="segments">{choices.map((one) => <button type="button" key={one} aria-pressed={value.value === one} onClick={() => (value.value = one)}>{one}</button>)}</span>
      <span class="muted">{note}</span>
    </div>
  );
}

export function Settings() {
  return (
    <>
      <h1 class="hidden">Settings</h1>
      <div class="columns pair">
        <Panel title="This browser">
          <Choice title="Theme" note="t switches" value={theme} choices={["system", "light", "dark"] as const} />
          <Choice title="GPUs as" note="auto: lines from 32 GPUs on" value={density} choices={["auto", "strips", "lines"] as const} />
          <Choice title="Colours by" note="what a colour stands for" value={colourBy} choices={["job", "user"] as const} />
          <Choice title="Times" note="of this browser, or UTC" value={zone} choices={["local", "utc"] as const} />
          <p class="hint">stoker {hello.value?.version ?? ""}</p>
        </Panel>
        <Panel title="Keyboard"><Shortcuts /></Panel>
      </div>
      <Sessions />
    </>
  );
}

function Sessions() {
  const sessions = useSignal<SessionView[] | null>(null);
  useEffect(() => {
    get<SessionList>("sessions").then((reply) => (sessions.value = reply.sessions), () => (sessions.value = []));
  }, []);
  const list = sessions.value;
  return (
    <Panel title="Sessions and shared links">
      {list?.length === 0 ? <Empty>None.</Empty> : null}
      {list?.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Sessions">
          <table>
            <thead><tr><th>id</th><th>kind</th><th>rights</th><th>opened</th><th>last used</th><th>expires</th><th>note</th></tr></thead>
            <tbody>
              {list.map((session) => (
                <tr key={session.id}>
                  <td><code>{safe(session.id, 40)}</code></td>
                  <td>{session.share ? "shared link" : "session"}</td>
                  <td>{session.rights}{session.logs ? "" : ", no output"}</td>
                  <td><At time={unix(session.created)} /></td>
                  <td><At time={unix(session.used)} /></td>
                  <td><At time={unix(session.expires)} /></td>
                  <td class="muted">{safe(session.note, 80)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      <p class="hint"><code>stoker ui --revoke ID</code> ends one, <code>stoker ui --share 8h</code> makes a link for others to look.</p>
    </Panel>
  );
}
