"""What can go wrong, said to a person, with the exit code a command should end with."""

from __future__ import annotations

from stoker import wire


class StokerError(Exception):
    """The request failed."""

    answered = False
    """Whether a daemon has said so: then it is certain that nothing was done."""

    def __init__(
        self, message: str, exit_code: int = wire.EXIT_FAILED, code: str = "failed"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.code = code

    def as_dict(self) -> dict[str, object]:
        """Return the error as it stands in `--json` output and in API replies."""
        return {"code": self.code, "message": self.message, "exit": self.exit_code}


class UsageError(StokerError):
    """The command line makes no sense."""

    def __init__(self, message: str) -> None:
        super().__init__(message, wire.EXIT_USAGE, "usage")


class DaemonUnreachable(StokerError):
    """No daemon listens, or it cannot be spoken to."""

    def __init__(self, message: str) -> None:
        super().__init__(message, wire.EXIT_UNREACHABLE, "unavailable")


class NoReply(DaemonUnreachable):
    """The daemon was reached, and did not answer: what was asked of it may have been done."""


class ConnectionBroken(NoReply):
    """The daemon ended while it was replying."""


class OutcomeUnknown(ConnectionBroken):
    """A request was sent that changes something, and no reply says whether it was carried out."""
