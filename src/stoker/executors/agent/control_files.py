"""What attempts are told through files: repeated over every connection for as long as they live."""

from __future__ import annotations

from stoker.executors.agent.attempt import RemoteAttempt
from stoker.executors.agent.session.reconnecting import ReconnectingSession

STOP, STOP_AT = "stop", "stop_at"


class ControlFiles:
    """Leaves word for the training libraries of one machine's attempts."""

    def __init__(self, connection: ReconnectingSession) -> None:
        self.connection = connection

    def leave(self, attempt: RemoteAttempt | None, name: str, text: str) -> None:
        """Have an attempt find this, now or when its machine answers."""
        if attempt is not None:
            attempt.words = attempt.words | {name: text}
            self.repeat(attempt)

    def repeat(self, attempt: RemoteAttempt) -> None:
        """Whatever this connection's agent has not been told yet, of an attempt that runs."""
        if attempt.pid is None or attempt.over is not None:
            return
        for name, text in attempt.words.items():
            if attempt.left.get(name) != text:
                attempt.left = attempt.left | {name: text}
                self._send(attempt, name, text)

    def _send(self, attempt: RemoteAttempt, name: str, text: str) -> None:
        def left(words: list[str]) -> None:
            if words[0] != "done":  # no room: again when we next look at it
                attempt.left = {each: said for each, said in attempt.left.items() if each != name}

        self.connection.ask(left, "leave", attempt.word, name, text)
