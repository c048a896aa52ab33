"""Be the daemon, or feed the one that runs."""

from __future__ import annotations

from stoker import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.feed.job_stream import JobStream
    from stoker.feed.submit_environment import SubmitEnvironment


def run(work: JobStream, place: SubmitEnvironment, resources: str | None = None) -> int:
    """See the work through to its end; return the exit code."""
    if not _daemon_answers():
        from stoker.feed.foreground import LostTheRace, drive

        try:
            return drive(work, place, resources)
        except LostTheRace:
            pass  # somebody's daemon started at the same moment: it shall have the lines
    from stoker.feed.follower import follow

    return follow(work, place)


def _daemon_answers() -> bool:
    """Whether somebody listens on this user's socket."""
    from stoker.client.errors import DaemonUnreachable
    from stoker.client.transport import open_socket

    try:
        open_socket(places.socket_path(), 5.0).close()
    except DaemonUnreachable:
        return False
    return True
