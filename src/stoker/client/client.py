"""One method per endpoint of the HTTP API; replies are plain dicts as in docs/api.md."""

from __future__ import annotations

import os

from stoker import places, wire
from stoker.client import fast_json, route, transport
from stoker.client.errors import (
    KINDS,
    ConnectionBroken,
    DaemonUnreachable,
    NoReply,
    NotFound,
    OutcomeUnknown,
    StokerError,
    UsageError,
)
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from stoker.client.tcp_endpoint import Endpoint

TIMEOUT_SECONDS = 120.0
"""How long a daemon may take to reply; loading a long queue takes a few seconds."""
MAX_TRIES = 3
"""How often a request is sent that may be repeated."""
MAYBE_QUEUED = "It may be queued: look with `stoker queue` before you submit it again."
MAYBE_DONE = "It may have been done: look with `stoker queue` before you repeat it."


def connect(autostart: bool = True, path: str | None = None) -> Client:
    """Return a client of this user's daemon, which the first request starts if necessary.

    With STOKER_SERVER, the client of that daemon, and where a system daemon serves this user, the
    client of that one; these must run.
    """
    if path is None and os.environ.get("STOKER_SERVER"):
        from stoker.client.tcp_endpoint import from_environment

        return Client(from_environment())
    system = route.system_socket() if path is None else None
    return Client(system or path, autostart=autostart and system is None)


def new_key() -> str:
    """Return a random key: a submission that is repeated with its key is queued once."""
    return os.urandom(16).hex()


class Client:
    """Client of one daemon; opens a connection per request."""

    def __init__(self, path: str | Endpoint | None = None, *, autostart: bool = False) -> None:
        self.path = path or places.socket_path()
        self.autostart = autostart
        self.check_version = True

    # -- jobs ---------------------------------------------------------------------------------

    def submit(self, submission: Mapping[str, Any]) -> JsonObject:
        """Queue one job, an array or many lines: all or none, and once per key."""
        return self._post("/jobs", _with_key(submission), retry=True, effect=MAYBE_QUEUED)

    def jobs(self, select: Sequence[str] = (), **filters: object) -> JsonObject:
        """List the selected jobs, or all unfinished jobs and undismissed failures."""
        return self._get("/jobs", select, **filters)

    def columns(self, **query: object) -> JsonObject:
        """List jobs as columns."""
        return self._get("/jobs/columns", **query)

    def why(self, selector: str) -> JsonObject:
        """Explain why a job is pending, per node and constraint."""
        return self._get(f"/jobs/{transport.quote(selector)}/why")

    def eta(self, select: Sequence[str] = (), **more: object) -> JsonObject:
        """Forecast when the selected jobs, or all unfinished jobs, start and end."""
        return self._get("/eta", select, **more)

    def log(self, selector: str, *, follow: bool = False, **more: object) -> Iterator[bytes]:
        """Yield a job's output as raw bytes; with `follow`, until the job ends."""
        pairs = [("follow", "1" if follow else None), *more.items()]
        target = f"{wire.PREFIX}/jobs/{transport.quote(selector)}/log{transport.query(pairs)}"
        reply = self.open("GET", target, None, None if follow else TIMEOUT_SECONDS, retry=True)
        return reply.stream()

    def wait(
        self, select: Sequence[str], *, any_of: bool = False, timeout: float | None = None
    ) -> JsonObject:
        """Return when all jobs, with `any_of` one of them, have ended, or at the timeout."""
        body = {"select": list(select), "any": any_of, "timeout": timeout}
        return self._post("/wait", body, timeout=None, retry=True, effect="")

    def cancel(self, select: Sequence[str]) -> JsonObject:
        """Cancel jobs: SIGTERM, a grace period, SIGKILL."""
        return self.act("cancel", select)

    def kill(self, select: Sequence[str], signal: str | None = None) -> JsonObject:
        """Send a signal to running jobs; by default, kill them at once."""
        return self.act("kill", select, signal=signal)

    def pause(self, select: Sequence[str]) -> JsonObject:
        """Suspend running jobs; they keep their devices."""
        return self.act("pause", select)

    def resume(self, select: Sequence[str]) -> JsonObject:
        """Continue suspended jobs."""
        return self.act("resume", select)

    def hold(self, select: Sequence[str]) -> JsonObject:
        """Hold pending jobs: they do not start until released."""
        return self.act("hold", select)

    def release(self, select: Sequence[str]) -> JsonObject:
        """Release held jobs."""
        return self.act("release", select)

    def retry(self, select: Sequence[str], **options: object) -> JsonObject:
        """Queue finished jobs again, as a further attempt."""
        return self.act("retry", select, **options)

    def edit(
        self, select: Sequence[str], options: Mapping[str, object], dry_run: bool = False
    ) -> JsonObject:
        """Change pending jobs, or the time limit and priority of running ones."""
        more = {"dry_run": True} if dry_run else {}
        return self.act("edit", select, options=dict(options), **more)

    def move(self, select: Sequence[str], where: str, other: str | None = None) -> JsonObject:
        """Change the order of pending jobs."""
        return self.act("move", select, where=where, other=other)

    def dismiss(self, select: Sequence[str]) -> JsonObject:
        """Dismiss failures: they are no longer listed."""
        return self.act("jobs/dismiss", select)

    def act(self, verb: str, select: Sequence[str], **more: object) -> JsonObject:
        """Apply one of the verbs above to the selected jobs."""
        return self._post(f"/{verb}", {"select": list(select), **more})

    def history(self, select: Sequence[str] = (), **filters: object) -> JsonObject:
        """List finished and unfinished jobs, newest last."""
        return self._get("/history", select, **filters)

    def acts(self, limit: int) -> JsonObject:
        """List what users of a system daemon have changed, newest last."""
        return self._get("/acts", limit=limit)

    # -- sweeps -------------------------------------------------------------------------------

    def sweep(self, body: Mapping[str, Any]) -> JsonObject:
        """Create a sweep, or resume a known one; once per key."""
        return self._post("/sweeps", _with_key(body), retry=True, effect=MAYBE_QUEUED)

    def sweeps(self, *, all: bool = False) -> JsonObject:
        """List unfinished sweeps, or all of them."""
        return self._get("/sweeps", all="1" if all else None)

    def get_sweep(self, selector: str) -> JsonObject:
        """Describe a sweep with all its trials."""
        return self._get(f"/sweeps/{transport.quote(selector)}")

    def change_sweep(self, selector: str, **changes: object) -> JsonObject:
        """Change a sweep."""
        return self._post(f"/sweeps/{transport.quote(selector)}", changes)

    def metrics(self, selector: str, **more: object) -> JsonObject:
        """Return a job's metrics as series: `names=...`, `points=...`."""
        return self._get(f"/jobs/{transport.quote(selector)}/metrics", **more)

    # -- nodes --------------------------------------------------------------------------------

    def gpus(self) -> JsonObject:
        """List GPUs: utilisation, memory, jobs and foreign processes."""
        return self._get("/gpus")

    def gpu_history(self, **query: object) -> JsonObject:
        """Return the use of GPUs over time: `minutes=...`, `step=...`."""
        return self._get("/gpus/history", **query)

    def alarms(self) -> JsonObject:
        """List what is probably wrong with running jobs and GPUs."""
        return self._get("/alarms")

    def notification_targets(self) -> JsonObject:
        """List the targets of notifications, and what became of their messages."""
        return self._get("/notifications")

    def test_notification(self, target: str) -> JsonObject:
        """Send a test message to a target."""
        return self._post("/notifications/test", {"target": target})

    def add_notify_rule(self, target: str, when: str) -> JsonObject:
        """Notify a target of what a condition says: `sweep 17 done`, `gpu free`."""
        return self._post("/notifications/rules", {"target": target, "when": when})

    def remove_notify_rule(self, id: str) -> JsonObject:
        """Remove a rule of notifications."""
        return self._delete(f"/notifications/rules/{transport.quote(id)}")

    def usage_summary(self, **query: object) -> JsonObject:
        """Return GPU time by user, queue or another key: `by=...`, `since=...`."""
        return self._get("/usage", **query)

    def usage(self, selector: str) -> JsonObject:
        """Return the GPU time that a job has used."""
        return self._get(f"/jobs/{transport.quote(selector)}/usage")

    def nodes(self) -> JsonObject:
        """List nodes and their free resources."""
        return self._get("/nodes")

    def add_node(self, name: str, address: str, **more: object) -> JsonObject:
        """Add an SSH node, whether or not it is reachable yet."""
        return self._post("/nodes", {"name": name, "address": address, **more})

    def remove_node(self, name: str, force: bool = False) -> JsonObject:
        """Remove a node; with `force`, abandon the jobs that run there."""
        return self._post("/nodes/remove", {"name": name, "force": force})

    def refresh_nodes(self, names: Sequence[str] = ()) -> JsonObject:
        """Refresh and list nodes."""
        return self._post("/nodes/refresh", {"names": list(names)})

    def check_node(self, name: str) -> JsonObject:
        """Check a cluster: connection, rights, GPUs, volumes."""
        return self._post("/nodes/check", {"name": name})

    def drain(self, devices: Sequence[str], reason: str | None = None) -> JsonObject:
        """Start no more jobs on these devices; running jobs continue."""
        return self._post("/drain", {"devices": list(devices), "reason": reason or ""})

    def undrain(self, devices: Sequence[str]) -> JsonObject:
        """Use drained devices again."""
        return self._post("/undrain", {"devices": list(devices)})

    # -- the daemon ---------------------------------------------------------------------------

    def daemon(self) -> JsonObject:
        """Return the daemon's status."""
        return self._get("/daemon")

    def queues(self) -> JsonObject:
        """List queues and their limits."""
        return self._get("/queues")

    def define_queue(self, name: str, **limits: object) -> JsonObject:
        """Define a queue, or change its limits."""
        return self._post("/queues", {"name": name, **limits})

    def delete_queue(self, name: str) -> JsonObject:
        """Delete a queue; its running jobs continue."""
        return self._delete(f"/queues/{transport.quote(name)}")

    def policies(self) -> JsonObject:
        """List the policy of each queue, and all policies."""
        return self._get("/policies")

    def choose_policy(
        self, name: str, parameters: Mapping[str, object] | None = None, queue: str = "*"
    ) -> JsonObject:
        """Set the policy of a queue; without a name, the queue uses the default policy."""
        return self._post(
            "/policies", {"queue": queue, "name": name, "parameters": dict(parameters or {})}
        )

    def limits(self) -> JsonObject:
        """List the limits of users, groups and queues."""
        return self._get("/limits")

    def set_limits(self, subject: str, **limits: object) -> JsonObject:
        """Set limits of a user, a group (`@NAME`) or a queue (`queue:NAME`)."""
        return self._post("/limits", {"subject": subject, **limits})

    def hide_history(self, client: str) -> JsonObject:
        """Hide earlier jobs from the history of a compatibility command."""
        return self._post("/history/hide", {"client": client})

    def listen(
        self, address: str, *, tls: bool = False, note: Mapping[str, str] | None = None,
        keep: bool = False,
    ) -> JsonObject:  # fmt: skip
        """Open a TCP port of the daemon, with a note that its clients can read.

        With `keep`, it is opened again after a restart, as long as there are browser sessions.
        """
        body = {"address": address, "tls": tls, "note": dict(note or {}), "keep": keep}
        return self._post("/listen", body)

    def reservations(self) -> JsonObject:
        """List the advance reservations."""
        return self._get("/reservations")

    def reserve(self, **reservation: object) -> JsonObject:
        """Reserve GPUs or nodes for a time."""
        return self._post("/reservations", reservation)

    def cancel_reservation(self, name: str) -> JsonObject:
        """Cancel an advance reservation."""
        return self._delete(f"/reservations/{transport.quote(name)}")

    def shares(self) -> JsonObject:
        """List the users of fair share."""
        return self._get("/shares")

    def set_share(self, subject: str, weight: float | None) -> JsonObject:
        """Set the weight of a user or a group (`@NAME`) in fair share; None: the default."""
        return self._post("/shares", {"subject": subject, "weight": weight})

    def create_token(self, name: str, rights: str, days: float) -> JsonObject:
        """Create a named token for remote clients."""
        return self._post("/tokens", {"name": name, "rights": rights, "days": days})

    def tokens(self) -> JsonObject:
        """List the named tokens."""
        return self._get("/tokens")

    def revoke_token(self, token: str) -> JsonObject:
        """End a token and all connections that use it."""
        return self._delete(f"/tokens/{transport.quote(token)}")

    def create_session(self, **session: object) -> JsonObject:
        """Return a code that opens a browser session."""
        return self._post("/sessions", session)

    def sessions(self) -> JsonObject:
        """List browser sessions and shared codes."""
        return self._get("/sessions")

    def end_session(self, id: str) -> JsonObject:
        """End a browser session, or a shared code with all its sessions."""
        return self._delete(f"/sessions/{transport.quote(id)}")

    def unlisten(self, address: str) -> JsonObject:
        """Close a TCP port of the daemon."""
        return self._delete(f"/listen/{transport.quote(address)}")

    def thresholds(self, **limits: object) -> JsonObject:
        """Set the thresholds above which a GPU counts as used by others."""
        return self._post("/thresholds", limits)

    def export(self, *, unheld: bool = False) -> JsonObject:
        """Return held jobs, or all that wait, as submissions to another daemon; why others stay."""
        return self._get("/export", unheld="1" if unheld else None)

    def stop(self, mode: str = "leave", **check: object) -> JsonObject:
        """Stop the daemon: `leave` jobs running, or `drain` or `cancel` them first.

        With `check=True` it rejects if a new daemon could not start (with these `gpus`, ...).
        """
        return self._post("/daemon/stop", {"mode": mode, **check})

    def backup(self, path: str) -> JsonObject:
        """Write a consistent copy of the database."""
        return self._post("/backup", {"path": path}, timeout=None)

    # -- requests -----------------------------------------------------------------------------

    def _get(self, path: str, select: Sequence[str] = (), /, **query: object) -> JsonObject:
        pairs = [*(("select", selector) for selector in select), *query.items()]
        target = wire.PREFIX + path + transport.query(pairs)
        return self._request("GET", target, None, TIMEOUT_SECONDS, retry=True, effect="")

    def _delete(self, path: str) -> JsonObject:
        return self._request("DELETE", wire.PREFIX + path, None, TIMEOUT_SECONDS)

    def _post(
        self,
        path: str,
        body: Mapping[str, object],
        timeout: float | None = TIMEOUT_SECONDS,
        *,
        retry: bool = False,
        effect: str = MAYBE_DONE,
    ) -> JsonObject:
        try:
            data = fast_json.dumps(body).encode()
        except UnicodeEncodeError:
            raise UsageError("The command line contains bytes that are not UTF-8.") from None
        return self._request("POST", wire.PREFIX + path, data, timeout, retry=retry, effect=effect)

    def _request(
        self,
        method: str,
        target: str,
        body: bytes | None,
        timeout: float | None,
        *,
        retry: bool = False,
        effect: str = MAYBE_DONE,
    ) -> JsonObject:
        """Send a request and return its reply.

        With `retry`, repeat it if the connection breaks: it has a key or changes nothing. `effect`
        is the text about a request that was sent and not answered.
        """
        tries = MAX_TRIES if retry else 1
        sent = False
        while True:
            tries -= 1
            try:
                return _parse(self.open(method, target, body, timeout, retry=False))
            except StokerError as error:
                sent = sent or (isinstance(error, NoReply) and not error.answered)
                if isinstance(error, ConnectionBroken) and tries:
                    continue
                if sent and effect and not error.answered:
                    why = error.message.removesuffix(" Try again.")
                    raise OutcomeUnknown(f"{why} {effect}") from None
                raise

    def open(
        self, method: str, target: str, body: bytes | None, timeout: float | None, *, retry: bool
    ) -> transport.Reply:
        """Send a request, after starting a daemon if allowed; return the reply's head."""
        try:
            reply = transport.send(self.path, method, target, body, timeout)
        except NoReply as error:
            if not (retry and isinstance(error, ConnectionBroken)):
                raise
            return self.open(method, target, body, timeout, retry=False)
        except DaemonUnreachable:
            if not self.autostart:
                raise
            from stoker.client.autostart import send_after_start

            reply = send_after_start(
                lambda: transport.send(self.path, method, target, body, timeout)
            )
        if self.check_version:
            try:
                check_version(reply.headers.get(wire.HEADER_API.lower(), wire.API_VERSION))
            except StokerError:
                reply.close()
                raise
        if reply.status >= 400:
            raise _error(reply)
        return reply


def _with_key(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return body if body.get("key") else {**body, "key": new_key()}


def _parse(reply: transport.Reply) -> JsonObject:
    try:
        value = fast_json.loads(reply.read())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StokerError("The daemon's reply cannot be parsed. Try: stoker daemon restart")
    return value


def check_version(daemon_version: str) -> None:
    """Raise unless the daemon's API version is compatible with ours."""
    major, _, minor = daemon_version.partition(".")
    try:
        distance = int(major) - wire.API_MAJOR, int(minor or 0) - wire.API_MINOR
    except ValueError:
        distance = (1, 0)
    if distance[0] == 0 and distance[1] >= -1:
        return
    if distance > (0, 0):
        raise DaemonUnreachable(
            f"The daemon is newer (API {daemon_version}) than this command "
            f"(API {wire.API_VERSION}). "
            "Upgrade stoker here, or use the installation that started the daemon."
        )
    raise DaemonUnreachable(
        f"The daemon is older (API {daemon_version}) than this command (API {wire.API_VERSION}). "
        "Run `stoker daemon restart`; jobs continue to run."
    )


def require_attempt(view: JsonObject, attempt: int, *, may_start_later: bool = False) -> None:
    """Raise NotFound unless this attempt of a job has started, or may still start."""
    last = int(view["attempt"])
    has_started = view["state"] != "PENDING" or last == 0 or may_start_later
    if attempt > last or (attempt == last and not has_started):
        raise NotFound(f"There is no attempt {attempt} of job {view['label']}.")


def _error(reply: transport.Reply) -> StokerError:
    """Return the exception for an error reply."""
    try:
        error = fast_json.loads(reply.read())["error"]
        message, code, exit_code = str(error["message"]), str(error["code"]), int(error["exit"])
    except (ValueError, KeyError, TypeError, ConnectionBroken):
        return StokerError(f"The daemon answered {reply.status} without a reason.")
    if code == "stopping":
        stopping = ConnectionBroken(message)
        stopping.answered = True
        return stopping
    version = reply.headers.get(wire.HEADER_API.lower(), wire.API_VERSION)
    if code == "not_found" and version != wire.API_VERSION:
        message += " (The daemon is of another version; `stoker daemon restart` updates it.)"
    rejected = KINDS.get(code, StokerError)(message, exit_code, code)
    rejected.answered = True
    return rejected
