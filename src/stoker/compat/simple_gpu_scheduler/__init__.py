"""simple_gpu_scheduler: run the commands on stdin, each on a free GPU."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.compat.simple_gpu_scheduler.slots import Slot

HELP = """\
  simple_gpu_scheduler --gpus 0 1 2 < commands.txt
  tail -f -n 0 gpu.queue | simple_gpu_scheduler --gpus 0,1,2

Runs each line of stdin with $SHELL, with a free GPU in CUDA_VISIBLE_DEVICES: the one that was
named last, or the one that became free last. A line that ends in a backslash continues on the
next line; blank lines and lines that begin with # are skipped; `simple_gpu_submit` appends a
whole script to a queue file. The output of commands is shown line by line; `stoker` in another
terminal lists the running commands.

Options
  --gpus GPU ...   the GPUs: 0 1 2, or 0,1,2; several words with commas are groups, of which a
                   command gets all GPUs: --gpus 0,1 2,3
  -h, --help       show this help

^C and SIGTERM terminate running commands; SIGUSR1 lets them finish and starts no more.
Exit: 0 all succeeded, 1 some failed, 2 usage error, 130 after ^C, 143 after SIGTERM."""


def main(argv: list[str]) -> int:
    """Run the commands of stdin until it ends; return the exit code."""
    from stoker.compat.simple_gpu_scheduler.slots import parse_slots

    return _run(parse_slots(argv))


def _run(slots: list[Slot]) -> int:
    _open_standard_streams()
    from stoker.compat.simple_gpu_scheduler.outputs import OutputCopier
    from stoker.compat.simple_gpu_scheduler.work import SlotStream
    from stoker.feed.line_reader import LineReader
    from stoker.feed.run import run
    from stoker.feed.submit_environment import submit_environment
    from stoker.places import logs_dir

    outputs = OutputCopier(logs_dir())
    work = SlotStream(LineReader(_stdin(), joins_lines=True), slots, outputs)
    try:
        return run(work, submit_environment())
    finally:
        outputs.finish()


def _stdin() -> int:
    """Return the descriptor of stdin, if commands can be read from it."""
    import stat
    import sys

    from stoker.client.errors import UsageError

    if sys.stdin is None:
        raise UsageError("stdin is closed. Type: simple_gpu_scheduler --gpus 0 < commands.txt")
    if stat.S_ISDIR(os.fstat(0).st_mode):
        raise UsageError("stdin cannot be read: Is a directory.")
    if os.isatty(0):
        from stoker.cli import output

        output.say("simple_gpu_scheduler: type commands, one per line; ^D when done")
    return 0


def _open_standard_streams() -> None:
    """Open closed standard streams, so that no other file gets their numbers."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if fd > 2:
            os.close(fd)
            return
