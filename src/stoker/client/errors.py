"""Errors with a message for the user, a code, and the exit code of a command."""

from __future__ import annotations

from stoker import wire

SYSTEM_DOWN = (
    "The system daemon of this machine is not running; an administrator starts it "
    "(stoker system status). STOKER_MODE=own uses a daemon of your own."
)


class StokerError(Exception):
    """The request failed."""

    code = "failed"
    answered = False
    """Whether a daemon replied with this error: then nothing was done, for certain."""

    def __init__(self, message: str, exit_code: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.exit_code = wire.ERRORS[self.code][1] if exit_code is None else exit_code

    def as_dict(self) -> dict[str, object]:
        """Return the error as in `--json` output and in API replies."""
        return {"code": self.code, "message": self.message, "exit": self.exit_code}


class UsageError(StokerError):
    """The command line or the arguments are invalid."""

    code = "usage"


class NotFound(StokerError):
    """There is no such job, queue, node or device."""

    code = "not_found"


class PermissionDenied(StokerError):
    """It belongs to another user."""

    code = "permission"


class Impossible(StokerError):
    """No node can ever satisfy the request."""

    code = "impossible"


class Full(StokerError):
    """The queue accepts no more jobs at the moment."""

    code = "queue_full"


class DaemonUnreachable(StokerError):
    """No daemon listens, or it cannot be reached."""

    code = "unavailable"


class NoReply(DaemonUnreachable):
    """The daemon was reached and did not reply: the request may have been carried out."""


class ConnectionBroken(NoReply):
    """The daemon ended while it was replying."""


class OutcomeUnknown(ConnectionBroken):
    """No reply came to a request that changes something, so it may have been carried out."""


KINDS = {kind.code: kind for kind in (UsageError, NotFound, PermissionDenied, Impossible, Full)}
"""Error code of a reply -> class of the exception; StokerError for other codes."""
