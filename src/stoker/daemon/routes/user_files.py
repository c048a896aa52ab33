"""Files of users of a system daemon, read by the process of their user."""

from __future__ import annotations

import errno
import os

from stoker.core.state.state import State
from stoker.daemon.context import FileData, reply_only
from stoker.daemon.routes.bridge import RouteContext, reply_future
from stoker.daemon.routes.log_stream import FilePart, ReadPart
from stoker.engine import CommandRejected, CommandResult, Instant

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
