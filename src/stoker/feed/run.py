"""Run a feed as the daemon, or submit its lines to the daemon that runs."""

from __future__ import annotations

from stoker import places
from stoker.feed.job_stream import JobStream
from stoker.wire import JsonObject


def run(work: JobStream, environment: JsonObject, resources: str | None = None) -> int:
    """Run a stream of jobs to its end; return the exit code."""
    if not _daemon_answers():
        from stoker.feed.foreground import StateTaken, run_foreground

        try:
            return run_foreground(work, environment, resources)
        except StateTaken:
            pass  # a daemon was started at the same time: it gets the lines
    from stoker.client.client import connect
    from stoker.feed.follower import QueueFollower

    return QueueFollower(connect(), work, environment).run()


def _daemon_answers() -> bool:
    """Return whether a daemon takes the commands of this user."""
    from stoker.client.errors import DaemonUnreachable
    from stoker.client.route import system_socket
    from stoker.client.transport import open_socket

    if system_socket():
        return True
    try:
        open_socket(places.socket_path(), 5.0).close()
    except DaemonUnreachable:
        return False
    return True
