"""Errors with a message for the user, a code, and the exit code of a command."""

from __future__ import annotations

from stoker import wire


class StokerError(Exception):
    """The request failed."""

    answered = False
    """Whether a daemon replied with this error: then nothing was done, for certain."""

    def __init__(
        self, message: str, exit_code: int = wire.EXIT_FAILED, code: str = "failed"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.code = code

    def as_dict(self) -> dict[str, object]:
        """Return the error as in `--json` output and in API replies."""
        return {"code": self.code, "message": self.message, "exit": self.exit_code}


class UsageError(StokerError):
    """The command line or the arguments are invalid."""

    def __init__(self, message: str) -> None:
        super().__init__(message, wire.EXIT_USAGE, "usage")


class DaemonUnreachable(StokerError):
    """No daemon listens, or it cannot be reached."""

    def __init__(self, message: str) -> None:
        super().__init__(message, wire.EXIT_UNREACHABLE, "unavailable")


class NoReply(DaemonUnreachable):
    """The daemon was reached and did not reply: the request may have been carried out."""


class ConnectionBroken(NoReply):
    """The daemon ended while it was replying."""


class OutcomeUnknown(ConnectionBroken):
    """No reply came to a request that changes something, so it may have been carried out."""
