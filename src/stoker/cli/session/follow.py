"""Follow or wait for jobs until they end, and return their exit code."""

from __future__ import annotations

import sys
import time

from stoker import wire
from stoker.cli import output
from stoker.cli.output.progress import AfterProgress, upload
from stoker.client import reconnect
from stoker.client.client import Client
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Thread

CANCEL_SECONDS = 2.0


def follow_to_end(client: Client, label: str, count: int, *, error: bool = False) -> int:
    """Copy a job's output to stdout until it ends; return its exit code. ^C detaches."""
    if count != 1:
        return wait_to_end(client, label)
    try:
        stderr_thread = _copy_stderr(client, label) if error else None
        with upload(client, label) as progress:
            target = AfterProgress(sys.stdout.buffer, progress)
            reconnect.copy(reconnect.follow_attempts(client, label, 0), target)
        if stderr_thread is not None:
            stderr_thread.join(5.0)
        views = reconnect.wait(client, [label])["jobs"]
    except KeyboardInterrupt:
        return detach(client, label)
    return report_failures(client, views)


def wait_to_end(client: Client, label: str) -> int:
    """Wait for all jobs with a label; return the highest exit code. ^C detaches."""
    try:
        with upload(client, label):
            reply = reconnect.wait(client, [label])
    except KeyboardInterrupt:
        return detach(client, label)
    return max(report_failures(client, reply["jobs"]), report_stuck(reply))


def report_usage(client: Client, views: list[JsonObject]) -> None:
    """Print the GPU time of a single job; an error is no failure of the command."""
    if len(views) != 1 or not views[0]["request"]["gpus"] or views[0].get("result") is None:
        return
    from stoker.cli.output.usage_text import usage_line
    from stoker.client.errors import StokerError

    try:
        view = views[0]
        line = usage_line(view["label"], client.usage(str(view["id"])), view["result"])
    except StokerError:
        return
    if line is not None:
        output.say(f"stoker: {line}")


def report_failures(client: Client, views: list[JsonObject]) -> int:
    """Print which jobs failed; return the highest exit code."""
    failed = [view for view in views if view.get("result")]
    for view in failed[:10]:
        output.say(f"stoker: {failure_line(view)}")
    if len(failed) > 10:
        output.say(f"stoker: ... and {output.counted(len(failed) - 10, 'more job')} failed")
    if output.is_terminal(2):
        report_usage(client, views)
        dismiss_failures(client, failed)
    return max((int(view["result"]) for view in failed), default=0)


def failure_line(view: JsonObject) -> str:
    """Return `job 42 (train) FAILED: exit 3`."""
    name = f" ({output.clean(view['name'])})" if view.get("name") else ""
    cause = f": {output.clean(view['cause'])}" if view.get("cause") else ""
    return f"job {view['label']}{name} {view['state']}{cause}"


def report_stuck(reply: JsonObject) -> int:
    """Print which jobs can never start and which sweeps cannot continue; 1 if any."""
    for job in reply.get("stuck") or ():
        output.say(f"stoker: job {job.get('label', job['id'])} can never start: {job['text']}")
    for note in reply.get("notes") or ():
        output.say(f"stoker: {output.clean(note)}")
    return wire.EXIT_FAILED if is_stuck(reply) else wire.EXIT_OK


def is_stuck(reply: JsonObject) -> bool:
    """Return True if a job can never start or a sweep cannot continue."""
    return bool(reply.get("stuck") or (reply.get("notes") and not reply["finished"]))


def dismiss_failures(client: Client, views: list[JsonObject]) -> None:
    """Dismiss the failures among jobs that were displayed; `queue` no longer lists them."""
    failed = [view for view in views if view.get("result") and not view.get("dismissed")]
    if failed:
        dismiss_jobs(client, [str(view["label"]) for view in failed])


def dismiss_jobs(client: Client, labels: list[str]) -> None:
    """Dismiss failed jobs; an error is only reported."""
    from stoker.client.errors import StokerError

    try:
        client.dismiss(labels)
    except StokerError as error:
        output.say(f"stoker: {error.message}")


def detach(client: Client, label: str) -> int:
    """Leave the job running, unless ^C is pressed again within CANCEL_SECONDS."""
    output.say(
        f"\nstoker: detached; job {label} continues. ^C again cancels it. "
        f"To follow it again: stoker logs -f {label}"
    )
    try:
        time.sleep(CANCEL_SECONDS)
    except KeyboardInterrupt:
        client.cancel([label])
        output.say(f"stoker: cancelled job {label}")
    return wire.EXIT_INTERRUPTED


def _copy_stderr(client: Client, label: str) -> Thread:
    """Start to copy the job's separate stderr to ours; return the thread that does it."""
    from threading import Thread

    pieces = reconnect.follow_attempts(client, label, 0, stream="err")
    thread = Thread(target=reconnect.copy, args=(pieces, sys.stderr.buffer), daemon=True)
    thread.start()
    return thread
