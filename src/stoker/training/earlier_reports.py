"""What was said in this attempt before this process came.

A job's command may be a script of its own: one that starts the training again after a crash, or
two trainings, one after the other. Stoker counts the epochs of one training, so that each process
has to know whether it is that one, goes on with it, or is another one.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINE = 4096
KINDS = (b'{"k":"hello"', b'{"k":"start"', b'{"k":"end"', b'{"k":"done"', b'{"k":"stopped"')
RANKS = ("--local-rank", "--local_rank")
"""What some launchers add to the words of each process, so that they differ."""


class Speaker:
    """A process that has told of its epochs."""

    def __init__(self, who: str, pid: int) -> None:
        self.who = who
        self.pid = pid
        self.starts: list[int] = []
        self.ended = False
        """Whether an epoch of it was trained to its end."""
        self.done = False
        """Whether it ended well: its training is over."""


class EarlierReports:
    """How things stood when this process came."""

    def __init__(self) -> None:
        self.speakers: list[Speaker] = []
        self.stopped: int | None = None
        """The epoch before which the attempt has stopped: nothing is to be trained any more."""
        self.counted = 0
        """Epochs that this program has told of, if it is the one that is counted."""
        self.ended = False
        """Whether one of them was trained to its end."""
        self.apart = False
        """Whether another training is the one that is counted."""

    def judge(self, me: str, alone: bool) -> None:
        """Find out where we stand. `alone`: we are no process among several of one training."""
        speakers = self.speakers
        if not alone:
            # Those who are still there train with us, and may have begun before we came.
            while speakers and _alive(speakers[-1].pid):
                me = speakers.pop().who
        begun = [speaker for speaker in speakers if speaker.starts or speaker.done]
        if not begun:
            return
        last = begun[-1]
        if last.who != me or last.done or (alone and _alive(last.pid)):
            self.apart = True
            return
        self.counted = max(epoch for speaker in begun for epoch in speaker.starts)
        self.counted = max(self.counted, self.stopped or 0)
        self.ended = any(speaker.ended for speaker in begun)


def read(path: str) -> EarlierReports:
    """What a report says; nothing if there is none or it cannot be read."""
    past = EarlierReports()
    try:
        if not os.path.isfile(path):
            return past
        with open(path, "rb") as file:
            while True:
                line = file.readline(LINE)
                if not line:
                    return past
                if line.startswith(KINDS):
                    _take(past, line)
    except (OSError, ValueError):
        return past


def _take(past: EarlierReports, data: bytes) -> None:
    import json

    try:
        line: dict[str, Any] = json.loads(data)
        kind = line["k"]
        if kind == "hello":
            past.speakers.append(Speaker(str(line.get("w", "")), int(line["pid"])))
            return
        epoch = int(line["e"])
    except (ValueError, LookupError, TypeError):
        return  # torn, or not one of ours
    if kind == "stopped" and past.stopped is None:
        past.stopped = epoch
    if not past.speakers:
        return
    speaker = past.speakers[-1]
    if kind == "start":
        speaker.starts.append(epoch)
    elif kind == "end":
        speaker.ended = True
    elif kind == "done":
        speaker.done = True


def program(child: bool) -> str:
    """A short name of the program that runs: the same in all its processes and when run again."""
    from zlib import crc32

    words = [str(word) for word in getattr(sys, "argv", [])]
    if words[:1] in (["-c"], ["-m"]) and not child:
        words += getattr(sys, "orig_argv", [])  # the text itself; Python 3.8 does not tell
    told = [word for word in words if not word.startswith(RANKS)]
    return f"{crc32(chr(0).join(told).encode('utf-8', 'surrogatepass')):08x}"


def _alive(pid: int) -> bool:
    """Whether that process is there and is not this one, which may have replaced itself."""
    if pid == os.getpid() or pid <= 0:
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(LINE).rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
