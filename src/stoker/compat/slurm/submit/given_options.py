"""The options of an sbatch, srun or salloc command line, one by one."""

from __future__ import annotations

from stoker.cli.options.directives import WITHOUT_EFFECT
from stoker.cli.options.job import JOB, SUBMIT

IGNORED_SWITCHES = frozenset({
    "--contiguous", "--get-user-env", "--ignore-pbs", "--no-kill", "-k", "--overcommit", "-O",
    "--oversubscribe", "-s", "--reboot", "--spread-job", "--use-min-nodes", "--usage",
})  # fmt: skip
"""Options without effect that take no value as a word of its own."""
STEP_SWITCHES = frozenset({
    "--unbuffered", "-u", "--label", "-l", "--overlap", "--exact", "--quiet", "-Q",
    "--kill-on-bad-exit", "-K", "--preserve-env", "-E", "--disable-status",
})  # fmt: skip
"""Switches of srun that only its step needs."""
STEP_VALUES = frozenset({
    "--cpu-bind", "--mpi", "--wait", "-W", "--gpu-bind", "--mem-bind", "--input", "-i", "--output",
    "-o", "--error", "-e", "--open-mode", "--threads", "-T", "--task-prolog", "--task-epilog",
    "--ntasks-per-core", "--ntasks-per-socket", "--distribution", "-m", "--hint",
})  # fmt: skip
"""Options of srun with a value that only its step needs."""


class GivenOption:
    """One option: its name, its value if it has one, and the words that it was given as."""

    def __init__(self, name: str, value: str | None, words: list[str]) -> None:
        self.name, self.value, self.words = name, value, words

    @property
    def is_ignored(self) -> bool:
        """Whether it has no effect."""
        return self.name in WITHOUT_EFFECT


def split_options(argv: list[str], *, is_step: bool = False) -> tuple[list[GivenOption], list[str]]:
    """Return the options, and the words of the command after them."""
    options: list[GivenOption] = []
    remaining = list(reversed(argv))
    while remaining:
        word = remaining.pop()
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            remaining.append(word)
            break
        words = [word]
        value: str | None
        if word.startswith("--"):
            name, equals, text = word.partition("=")
            value = text if equals else None
        else:
            name, value = word[:2], word[2:] or None
        if value is None and remaining and _takes_value(name, is_step):
            value = remaining.pop()
            words.append(value)
        options.append(GivenOption(name, value, words))
    return options, list(reversed(remaining))


def _takes_value(name: str, is_step: bool) -> bool:
    if is_step and (name in STEP_VALUES or name in STEP_SWITCHES):
        return name in STEP_VALUES
    for option in (*JOB, *SUBMIT):
        if name in option.names:
            return option.value is not None and not option.value.startswith("[")
    return name in WITHOUT_EFFECT - IGNORED_SWITCHES


def join_words(options: list[GivenOption], command: list[str]) -> list[str]:
    """Return the command line of options and a command."""
    words = [word for option in options for word in option.words]
    return [*words, "--", *command] if command else words
