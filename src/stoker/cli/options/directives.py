"""Options inside a script: its `#STOKER` and `#SBATCH` lines, before the first command."""

from __future__ import annotations

from stoker.cli.options import COMMON, Args, parse
from stoker.cli.options.job import JOB, SUBMIT
from stoker.client.errors import UsageError

MAX_BYTES = 32 * 1024
_NAMES = frozenset(name for option in (*JOB, *SUBMIT, *COMMON) for name in option.names)
WITHOUT_EFFECT = frozenset({
    "--bb", "--bbf", "--cluster-constraint", "--clusters", "-M", "--container", "--contiguous",
    "--core-spec", "-S", "--cores-per-socket", "--cpu-freq", "--cpus-per-gpu", "--delay-boot",
    "--distribution", "-m", "--export-file", "--extra-node-info", "-B", "--get-user-env",
    "--gid", "--gpu-bind", "--gpu-freq", "--gpus-per-socket", "--gres-flags", "--hint",
    "--ignore-pbs", "--input", "-i", "--kill-on-invalid-dep", "--licenses", "-L", "--mcs-label",
    "--mem-bind", "--mincpus", "--network", "--no-kill", "-k", "--nodefile", "-F",
    "--ntasks-per-core", "--ntasks-per-gpu", "--ntasks-per-socket", "--open-mode",
    "--overcommit", "-O", "--oversubscribe", "-s", "--power", "--prefer", "--profile",
    "--propagate", "--reboot", "--reservation", "--sockets-per-node", "--spread-job",
    "--switches", "--thread-spec", "--threads-per-core", "--time-min", "--tmp", "--tres-bind",
    "--tres-per-task", "--uid", "--usage", "--use-min-nodes", "--wait-all-nodes", "--wckey",
})  # fmt: skip
"""Options of sbatch that are valid in a script and change nothing here."""


def read(text: str, *, strict: bool = False) -> tuple[Args, list[str]]:
    """Return a script's own options, and its #SBATCH options that have no effect here.

    A script with #SBATCH lines asks for SLURM_* variables by having them.
    """
    ours, slurm = _words(text)
    known, ignored = _sift(slurm)
    if ignored and strict:
        raise UsageError(f"#SBATCH options without effect: {' '.join(ignored)}.")
    merged = parse((*JOB, *SUBMIT), known)
    if merged.words:
        raise UsageError(f"In a #SBATCH line: {merged.words[0]!r} is not an option.")
    if slurm:
        merged.values["slurm_env"] = True
    try:
        own = parse((*JOB, *SUBMIT), ours)
    except UsageError as error:
        raise UsageError(f"In a #STOKER line: {error.message}") from None
    if own.words:
        raise UsageError(f"In a #STOKER line: {own.words[0]!r} is not an option.")
    return Args({**merged.values, **own.values}, []), ignored


def _words(text: str) -> tuple[list[str], list[str]]:
    """Collect the words of #STOKER lines and of #SBATCH lines, up to the first command."""
    found: dict[str, list[str]] = {"#STOKER": [], "#SBATCH": []}
    for raw in text[:MAX_BYTES].splitlines():
        line = raw.strip()
        if line and not line.startswith("#"):
            break
        mark, _, rest = line.partition(" ")
        mark, tab, more = mark.partition("\t")
        if mark in found:
            found[mark] += _split(more + " " + rest if tab else rest)
    return found["#STOKER"], found["#SBATCH"]


def _split(text: str) -> list[str]:
    """Split as a shell would; a word that starts with # begins a comment."""
    if any(char in text for char in "'\"\\"):
        from shlex import split

        try:
            return split(text, comments=True)
        except ValueError as error:
            raise UsageError(f"A directive cannot be read ({error}): {text}") from None
    words = text.split()
    ends = [i for i, word in enumerate(words) if word.startswith("#")]
    return words[: ends[0]] if ends else words


def _sift(words: list[str]) -> tuple[list[str], list[str]]:
    """Divide the words of #SBATCH lines into options that are used here and names that are not."""
    used: list[str] = []
    ignored: list[str] = []
    skipping = False
    for word in words:
        if word.startswith("-"):
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            skipping = name not in _NAMES
            if skipping:
                if name not in WITHOUT_EFFECT:
                    raise _unknown(name)
                ignored.append(name)
        if not skipping:
            used.append(word)
    return used, ignored


def _unknown(name: str) -> UsageError:
    from stoker.cli.options.suggest import nearest

    guess = nearest(name, sorted(_NAMES | WITHOUT_EFFECT))
    hint = f" Did you mean {guess}?" if guess else " See: stoker help submit"
    return UsageError(f"In a #SBATCH line: there is no option {name}.{hint}")
