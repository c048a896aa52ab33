// What a user chooses for this browser, and the sessions that are open.

import { useSignal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { notify } from "../actions";
import type { DeliveryReply, SessionList, SessionView, TargetList, TargetView } from "../api";
import { count, safe, unix } from "../core/format";
import { get, post } from "../net/api";
import { hello, isLive, mayAct } from "../net/live";
import { colourBy, density, theme, zone } from "../prefs";
import { At } from "../widgets/bits";
import { Empty, Name, Panel } from "../widgets/plain";
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
      <Targets />
      <Sessions />
    </>
  );
}

/** Where notifications go, and what became of them. */
function Targets() {
  const targets = useSignal<TargetView[] | null>(null);
  const testing = useSignal("");
  const load = () => get<TargetList>("notifications").then((reply) => (targets.value = reply.targets), () => undefined);
  useEffect(() => void load(), [isLive.value]);
  const test = async (name: string) => {
    testing.value = name;
    try {
      const reply = await post<DeliveryReply>("notifications/test", { target: name });
      notify(reply.error ? { text: `${name}: ${safe(reply.error, 200)}`, isError: true } : { text: `a test message was sent to ${safe(name, 60)}` });
    } catch (error) {
      notify({ text: (error as Error).message, isError: true });
    }
    testing.value = "";
    void load();
  };
  const list = targets.value;
  return (
    <Panel title="Notifications">
      {list?.length === 0 ? <Empty>No target. <code>[notify.NAME]</code> in config.toml adds one; <code>stoker submit --notify NAME</code> uses it for one job.</Empty> : null}
      {list?.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Notifications">
          <table>
            <thead><tr><th>target</th><th>kind</th><th>of every job</th><th class="num">sent</th><th class="num">pending</th><th class="num">failed</th><th>last error</th><th><span class="hidden">actions</span></th></tr></thead>
            <tbody>
              {list.map((target) => (
                <tr key={target.name}>
                  <td><Name text={target.name} limit={60} /></td>
                  <td>{safe(target.kind, 20)}</td>
                  <td>{target.on.length ? safe(target.on.join(", "), 120) : <span class="muted">only if a job names it</span>}</td>
                  <td class="num">{count(target.sent)}</td>
                  <td class="num">{count(target.pending)}</td>
                  <td class="num">{count(target.failed)}</td>
                  <td class="warn">{safe(target.error ?? "", 200)}</td>
                  <td>{mayAct.value && target.kind !== "gone" ? <button type="button" class="small" disabled={testing.value === target.name} aria-label={`Send a test message to ${safe(target.name, 60)}`} onClick={() => test(target.name)}>Test</button> : null}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      <p class="hint">Counts are of the last 14 days. Rules are in config.toml; <code>stoker notify</code> lists them, too.</p>
    </Panel>
  );
}

function Sessions() {
  const sessions = useSignal<SessionView[] | null>(null);
  useEffect(() => {
    get<SessionList>("sessions").then((reply) => (sessions.value = reply.sessions), () => undefined);
  }, [isLive.value]);
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
