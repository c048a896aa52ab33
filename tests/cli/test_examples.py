"""Every example in the documentation and in the help is accepted by the parser it is for."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from stoker.cli.options import Option, parse
from stoker.cli.options.directives import read_directives
from stoker.cli.options.job import JOB, SUBMIT, job_options
from stoker.cli.verbs import ALIASES, MODULES, OTHER_TOOLS, VERBS
from stoker.client.errors import UsageError
from stoker.core.model import units
from stoker.core.options import submit as options
from stoker.main import _resolve_verb

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
OWN_PARSER = {"feed", "sweep", "compat", "simulate", "what-if", "policy", "nodes", "daemon", "db"}
"""Verbs that read words in their own way; of these only the verb itself is checked."""


def joined(block: str) -> str:
    """A block without line breaks that a shell would not see."""
    return re.sub(r"\\\n\s*", " ", block)


def commands(text: str) -> list[str]:
    """The lines of code blocks that call stoker."""
    found = []
    for block in BLOCK.findall(text):
        lines = [line.strip().removeprefix("$ ") for line in joined(block).splitlines()]
        found += [line for line in lines if line.startswith("stoker ") and "…" not in line]
    return found


EXAMPLES = [
    pytest.param(line, id=f"{page.name}:{line[:60]}")
    for page in PAGES
    for line in commands(page.read_text())
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_commands_of_the_documentation_can_be_typed(line: str) -> None:
    words = shlex.split(line, comments=True)
    for sign in ("<", "|", "&&", ">", ";"):
        if sign in words:
            words = words[: words.index(sign)]
    if len(words) == 1:
        return
    verb = ALIASES.get(words[1], words[1])
    if verb.startswith("-"):
        return
    assert verb in VERBS or verb == "help", f"{line!r} has no verb of stoker"
    if verb == "help" or verb in OWN_PARSER:
        return
    job = verb in ("submit", "run")
    known = (*JOB, *SUBMIT) if job else import_module(MODULES[verb]).OPTIONS
    args = parse(known, words[2:], command=job, verb=verb)
    if job or verb == "edit":
        values = {key: value for key, value in job_options(args).items() if key != "dependency"}
        options.parse_options(values, options.ParseContext(1.8e9, lambda _: [1], lambda _: []))


READERS = {
    "--begin": lambda text: units.parse_time(text, 1.8e9),
    "--delay": lambda text: units.parse_time(text, 1.8e9),
    "--deadline": lambda text: units.parse_time(text, 1.8e9),
    "--time": units.parse_duration, "--expect": units.parse_duration,
    "--mem": units.parse_memory, "--array": options.parse_array,
}  # fmt: skip


@pytest.mark.parametrize("option", JOB, ids=lambda option: option.names[-1])
def test_examples_in_the_help_are_accepted(option: Option) -> None:
    reader = next((READERS[name] for name in option.names if name in READERS), None)
    if reader is None:
        return
    _, colon, listed = option.text.partition(": ")
    for example in listed.split(", ") if colon else ():
        reader(example.partition(" (")[0].strip("'"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_of_the_documentation_are_read(page: Path) -> None:
    for block in BLOCK.findall(page.read_text()):
        if "#SBATCH" in block or "#STOKER" in block:
            read_directives(block)


@pytest.mark.parametrize("word", OTHER_TOOLS)
def test_verbs_of_other_tools_are_answered_with_ours(word: str) -> None:
    with pytest.raises(UsageError) as error:
        _resolve_verb(word)
    answer = error.value.message.partition("Use: stoker ")[2].split()
    assert answer[0] in VERBS
    if len(answer) > 1:
        known = import_module(MODULES[answer[0]]).OPTIONS
        assert any(answer[1] in each.names for each in known)


@pytest.mark.parametrize("name", options.WITHOUT_EFFECT)
def test_the_help_marks_options_without_effect(name: str) -> None:
    (option,) = (each for each in JOB if each.key == name)
    assert option.text.startswith("accepted without effect")


@pytest.mark.parametrize("verb", ["daemon", "nodes"])
def test_an_unknown_action_is_rejected_with_the_known_ones(verb: str) -> None:
    with pytest.raises(UsageError, match=r"There is no action 'nosuch'.* Use "):
        import_module(MODULES[verb]).main(["nosuch"])
