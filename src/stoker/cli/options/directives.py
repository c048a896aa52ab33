"""Options in a script: its `#STOKER` and `#SBATCH` lines before the first command."""

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
    "--ntasks-per-core", "--ntasks-per-gpu", "--ntasks-per-socket",
    "--overcommit", "-O", "--oversubscribe", "-s", "--power", "--prefer", "--profile",
    "--propagate", "--reboot", "--reservation", "--sockets-per-node", "--spread-job",
    "--switches", "--thread-spec", "--threads-per-core", "--time-min", "--tmp", "--tres-bind",
    "--tres-per-task", "--uid", "--usage", "--use-min-nodes", "--wait-all-nodes", "--wckey",
})  # fmt: skip
"""Options of sbatch that are accepted without effect."""


def read_directives(text: str, *, strict: bool = False) -> tuple[Args, list[str]]:
    """Return the options in a script, and the names of #SBATCH options without effect.

    A script with #SBATCH lines also gets SLURM_* variables.
    """
    ours, slurm = _directive_words(text)
    known, ignored = _split_ignored(slurm)
    if ignored and strict:
        raise UsageError(f"#SBATCH options without effect: {' '.join(ignored)}.")
    sbatch = parse((*JOB, *SUBMIT), known)
    if sbatch.words:
        raise UsageError(f"In a #SBATCH line: {sbatch.words[0]!r} is not an option.")
    if slurm:
        sbatch.values["slurm_env"] = True
    try:
        stoker = parse((*JOB, *SUBMIT), ours)
    except UsageError as error:
        raise UsageError(f"In a #STOKER line: {error.message}") from None
    if stoker.words:
        raise UsageError(f"In a #STOKER line: {stoker.words[0]!r} is not an option.")
    return Args({**sbatch.values, **stoker.values}, []), ignored


def _directive_words(text: str) -> tuple[list[str], list[str]]:
    """Return the words of #STOKER and of #SBATCH lines before the first command."""
    words: dict[str, list[str]] = {"#STOKER": [], "#SBATCH": []}
    for raw in text[:MAX_BYTES].splitlines():
        line = raw.strip()
        if line and not line.startswith("#"):
            break
        mark, _, text_after = line.partition(" ")
        mark, tab, more = mark.partition("\t")
        if mark in words:
            words[mark] += _split(more + " " + text_after if tab else text_after)
    return words["#STOKER"], words["#SBATCH"]


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


def _split_ignored(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words of #SBATCH lines into options, and names of options without effect."""
    used: list[str] = []
    ignored: list[str] = []
    is_skipping = False
    for word in words:
        if word.startswith("-"):
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            is_skipping = name not in _NAMES
            if is_skipping:
                if name not in WITHOUT_EFFECT:
                    raise _unknown_option(name)
                ignored.append(name)
        if not is_skipping:
            used.append(word)
    return used, ignored


def _unknown_option(name: str) -> UsageError:
    from stoker.cli.options.suggest import closest_match

    guess = closest_match(name, sorted(_NAMES | WITHOUT_EFFECT))
    hint = f" Did you mean {guess}?" if guess else " See: stoker help submit"
    return UsageError(f"In a #SBATCH line: there is no option {name}.{hint}")
