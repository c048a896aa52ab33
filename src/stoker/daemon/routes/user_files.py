"""Files of users of a system daemon, read by the process of their user."""

from __future__ import annotations

import errno
import os

from msgspec.structs import replace

from stoker.core.model.job import FAILED_STATES, JobState
from stoker.core.state.state import State
from stoker.daemon.context import FileData, reply_only
from stoker.daemon.rights import Caller
from stoker.daemon.routes.bridge import RouteContext, reply_future
from stoker.daemon.routes.log_stream import FilePart, ReadPart
from stoker.daemon.views.job import MAX_TAIL_BYTES, as_lines
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema.job import JobView

MAX_TAILS = 20
"""Failed jobs of a listing with the end of their output: each is read by a process."""
MISSING = os.strerror(errno.ENOENT)


def user_part_reader(api: RouteContext, uid: int, path: str) -> ReadPart:
    """Return what reads a file with the rights of a user; the daemon opens nothing itself."""

    async def read(offset: int, size: int) -> FilePart:
        future, on_reply = reply_future()

        def on_data(data: FileData) -> None:
            why = data.error if data.error != MISSING else ""
            rejection = CommandRejected(f"{path} cannot be read: {why}.", "failed")
            on_reply(FilePart(data.data, max(data.size, 0), data.changed_at),
                     rejection if why else None)  # fmt: skip

        def handle(state: State, now: Instant) -> CommandResult:
            api.context.read_user_file(uid, path, offset, size, on_data)
            return reply_only(None)

        await api.ask(handle)
        part: FilePart = await future
        return part

    return read


async def with_tails(
    api: RouteContext, caller: Caller, jobs: list[JobView[str]], lines: int
) -> list[JobView[str]]:
    """Return a listing with the last lines of failed jobs, as far as they are the caller's own."""
    own = [
        job for job in jobs
        if job.user == caller.name and job.log is not None and JobState(job.state) in FAILED_STATES
    ][:MAX_TAILS]  # fmt: skip
    tails = {job.id: await _tail(api, caller.uid, job, lines) for job in own}
    return [replace(job, tail=tails[job.id]) if job.id in tails else job for job in jobs]


async def _tail(api: RouteContext, uid: int, job: JobView[str], lines: int) -> list[str]:
    for path in filter(None, (job.error_log, job.log)):
        try:
            part = await user_part_reader(api, uid, path)(-MAX_TAIL_BYTES, MAX_TAIL_BYTES)
        except CommandRejected:
            continue
        if part.data:
            return as_lines(part.data, lines)
    return []
