// What surrounds every page: navigation, state of the connection, questions, notices, help.

import { useLayoutEffect, useRef } from "preact/hooks";
import { act, dismissNotice, menu, notices, question, titleOf } from "../actions";
import { clock, plural, safe } from "../core/format";
import { HELP, isHelpOpen } from "../keys";
import { alarms, announcement, counts, hello, link, mayAct, now } from "../net/live";
import { isDark, nextTheme, zone } from "../prefs";
import { route } from "../route";

const PAGES: [path: string, title: string, icon: string][] = [["", "Overview", "▦"], ["q", "Queue", "☰"], ["s", "Sweeps", "⋔"], ["m", "Machines", "▤"], ["h", "History", "◷"], ["p", "Plan", "⇥"]];

function LinkState() {
  const { state, since } = link.value;
  if (state === "live") return <span class="link live"><span aria-hidden="true">●</span> live</span>;
  if (state === "connecting") return <span class="link">connecting …</span>;
  if (state === "signed-out") return <span class="link lost">signed out</span>;
  const seconds = now.value - since;
  return <span class="link lost" role="status"><span aria-hidden="true">▲</span> {seconds < 3 ? "reconnecting" : `stale since ${clock(since, now.value, zone.value === "utc")}`}</span>;
}

export function Rail() {
  const page = route.value.page;
  const active = page === "j" ? "q" : page;
  return (
    <header class="rail">
      <a class="brand" href="#/">stoker</a>
      <nav aria-label="Pages">
        {PAGES.map(([path, title, icon]) => (
          <a key={path} href={`#/${path}`} aria-current={active === path ? "page" : undefined}><span class="icon" aria-hidden="true">{icon}</span> {title}</a>
        ))}
      </nav>
      <div class="status">
        <LinkState />
        <span class="muted user">{safe(hello.value?.user ?? "", 30)}{hello.value && !mayAct.value ? " · view only" : ""}</span>
        <span class="tools">
          <button type="button" title="light or dark (t)" aria-label="Switch between light and dark" onClick={nextTheme}>{isDark.value ? "☀" : "☾"}</button>
          <button type="button" title="keyboard (?)" aria-label="Keyboard" onClick={() => (isHelpOpen.value = true)}>?</button>
          <a class="button" href="#/settings" title="settings" aria-label="Settings">⚙</a>
        </span>
      </div>
    </header>
  );
}

/** A modal dialog; the browser keeps the focus inside and returns it. */
function Modal({ label, onClose, children }: { label: string; onClose: () => void; children: preact.ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const dialog = ref.current!;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  // The close event comes with the next frame: a key that is pressed before it would be lost.
  const onKeyDown = (event: KeyboardEvent) => event.key === "Escape" && (event.preventDefault(), onClose());
  return <dialog ref={ref} aria-label={label} onClose={() => ref.current && onClose()} onKeyDown={onKeyDown} onClick={(event) => event.target === ref.current && onClose()}>{children}</dialog>;
}

export function Question() {
  const asked = question.value;
  if (!asked) return null;
  const close = () => (question.value = null);
  return (
    <Modal label={asked.title} onClose={close}>
      <h2>{asked.title}</h2>
      <pre class="command">{asked.command.length > 400 ? `${asked.command.slice(0, 400)}…` : asked.command}</pre>
      <p class="actions">
        <button type="button" onClick={close}>Back</button>
        <button type="button" class="danger" autofocus onClick={() => (close(), void asked.run())}>{asked.label}</button>
      </p>
    </Modal>
  );
}

const STEPS: Record<string, number> = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 };

/** The actions that apply to the selected jobs; arrow keys move between them. */
export function Menu() {
  const items = menu.value;
  if (!items) return null;
  const close = () => (menu.value = null);
  const onKeyDown = (event: KeyboardEvent) => {
    const buttons = [...(event.currentTarget as HTMLElement).querySelectorAll("button")];
    const by = STEPS[event.key];
    if (by) buttons[(buttons.indexOf(document.activeElement as HTMLButtonElement) + by + buttons.length) % buttons.length]?.focus();
  };
  return (
    <Modal label="Actions" onClose={close}>
      <h2>Actions</h2>
      <div class="menu" onKeyDown={onKeyDown}>
        {items.map(([verb, ids]) => <button type="button" key={verb} class={verb === "cancel" ? "danger" : ""} onClick={() => (close(), act(verb, ids))}>{titleOf(verb)} <span>{plural(ids.length, "job")}</span></button>)}
        {items.length ? null : <p class="muted">No job is selected to which an action applies.</p>}
        <button type="button" onClick={close}>Close</button>
      </div>
    </Modal>
  );
}

export function Shortcuts() {
  return <dl class="keys">{HELP.flatMap(([keys, meaning]) => [<dt key={keys}>{keys.split("   ").map((key) => <kbd key={key}>{key}</kbd>)}</dt>, <dd key={`${keys}.`}>{meaning}</dd>])}</dl>;
}

export function Help() {
  if (!isHelpOpen.value) return null;
  const close = () => (isHelpOpen.value = false);
  return (
    <Modal label="Keyboard" onClose={close}>
      <h2>Keyboard</h2>
      <Shortcuts />
      <p class="actions"><button type="button" onClick={close}>Close</button></p>
    </Modal>
  );
}

export function Notices() {
  return (
    <>
      <div class="notices" role="status">
        {notices.value.map((notice) => (
          <div key={notice.id} class={notice.isError ? "notice error" : "notice"}>
            <span>{safe(notice.text, 300)}{notice.detail ? <span class="muted"> {safe(notice.detail, 300)}</span> : null}</span>
            {notice.undo ? <button type="button" onClick={() => (dismissNotice(notice.id), notice.undo!())}>Undo</button> : null}
            <button type="button" aria-label="Close" onClick={() => dismissNotice(notice.id)}>×</button>
          </div>
        ))}
      </div>
      <div class="hidden" role="alert">{announcement.value}</div>
    </>
  );
}

export function SignedOut() {
  return (
    <div class="signedout">
      <h1>Open a session</h1>
      <p>This page needs a session, and there is none, or it has expired. On the machine of the daemon, type</p>
      <pre>stoker ui</pre>
      <p>and open the address that it prints. From another machine: <code>stoker ui --on MACHINE</code>.</p>
    </div>
  );
}

/** The title and the icon of the tab show what needs attention. */
export function updateTitle(): void {
  const { RUNNING = 0, PENDING: _pending, ...others } = counts.value;
  const failed = Object.entries(others).filter(([state]) => ["FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE"].includes(state)).reduce((sum, [, n]) => sum + n, 0);
  const parts = [`${RUNNING} running`, ...(failed ? [`${failed} failed`] : [])];
  document.title = link.value.state === "live" || document.hidden ? `● ${parts.join(" · ")} – stoker` : "▲ stale – stoker";
  const icon = document.querySelector<HTMLLinkElement>("link[rel=icon]")!;
  const isAlarm = failed > 0 || alarms.value.length > 0;
  const [badge, bars] = link.value.state === "lost" ? ["%239aa4af", "%239aa4af"] : ["%23D55E00", "%230072B2"];
  const shape = isAlarm ? `<circle cx='24' cy='8' r='8' fill='${badge}'/>` : "";
  icon.href = `data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'><path d='M3 29V17h6v12zM13 29V9h6v20zM23 29V${isAlarm ? 18 : 3}h6v${isAlarm ? 11 : 26}z' fill='${bars}'/>${shape}</svg>`;
}
