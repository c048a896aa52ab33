"""Messages, and the parts of a delivery."""

from __future__ import annotations

import os
from typing import Any

from msgspec import Struct

COMMAND_SECONDS = 60.0
"""How long the command of a target may run."""
MAX_LISTED = 10
"""Messages that a combined one lists; others are counted."""


class Message(Struct, kw_only=True):
    """One message about one thing."""

    key: str
    """Names the thing: the same key is sent to a target once."""
    event: str
    """That of a condition, or `test`; `several`: of a combined message."""
    title: str
    lines: list[str] = []
    """Details, one per line."""
    log: list[str] = []
    """The end of the job's output."""
    command: str = ""
    """A command to type next."""
    link: str = ""
    """The page about it, if the web page has an address."""
    host: str = ""
    """The machine of the daemon."""
    facts: dict[str, Any] = {}
    """The same for programs: id, state, exit code, ..."""


class Delivery(Struct, kw_only=True):
    """What is sent to a target at once."""

    batch: int
    target: str
    messages: list[Message]
    tries: int = 0
    more: int = 0
    """Messages of the batch that are only counted."""

    def combined(self) -> Message:
        """Return one message: the only one, or a list of all."""
        if len(self.messages) == 1 and not self.more:
            return self.messages[0]
        first, total = self.messages[0], len(self.messages) + self.more
        events = {message.event for message in self.messages}
        what = {"fail": "jobs failed", "end": "jobs ended", "alarm": "alarms"}
        noun = what.get(first.event, "messages") if len(events) == 1 else "messages"
        listed = self.messages[:MAX_LISTED]
        lines = [
            f"{message.title}: {message.lines[0]}" if message.lines else message.title
            for message in listed
        ]
        if total > len(listed):
            lines.append(f"and {total - len(listed)} more")
        return Message(
            key=first.key,
            event=first.event if len(events) == 1 else "several",
            title=f"{total} {noun}",
            lines=lines,
            command="stoker alarms" if events == {"alarm"} else "stoker queue",
            link=first.link.partition("#")[0],
            host=first.host,
            facts={"messages": [message.facts for message in listed], "count": total},
        )


class SendJob(Struct, kw_only=True):
    """What the process of a delivery is given."""

    target: dict[str, str]
    """Kind and options of the target; secrets as they are in the configuration."""
    message: Message
    idempotency_key: str = ""


def sendmail() -> str | None:
    """Return the program that takes mail on this machine."""
    import shutil

    return shutil.which("sendmail", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib")
