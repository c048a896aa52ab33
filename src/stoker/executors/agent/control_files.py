"""Control files of attempts on a node, sent again over every connection while they run."""

from __future__ import annotations

from stoker.executors.agent.attempt import Phase, RemoteAttempt
from stoker.executors.agent.session.reconnecting import ReconnectingSession


class ControlFiles:
    """Writes control files for the training libraries of one node's attempts."""

    def __init__(self, connection: ReconnectingSession) -> None:
        self.connection = connection

    def set(self, attempt: RemoteAttempt, name: str, text: str) -> None:
        """Write a control file, now or when the node answers again."""
        attempt.control_files = attempt.control_files | {name: text}
        self.resend(attempt)

    def resend(self, attempt: RemoteAttempt) -> None:
        """Send the control files of a running attempt that this connection has not sent."""
        if attempt.phase is not Phase.RUNNING:
            return
        for name, text in attempt.control_files.items():
            if attempt.sent_control_files.get(name) != text:
                attempt.sent_control_files = attempt.sent_control_files | {name: text}
                self._send(attempt, name, text)

    def _send(self, attempt: RemoteAttempt, name: str, text: str) -> None:
        def on_reply(words: list[str]) -> None:
            if words[0] != "done":  # the disk is full: sent again with the next poll
                attempt.sent_control_files = {
                    other: sent
                    for other, sent in attempt.sent_control_files.items()
                    if other != name
                }

        self.connection.request(on_reply, "write_control", attempt.word, name, text)
