"""Comments, docstrings and names use the plain words of docs/glossary.md."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "stoker"
SUITES = (
    "daemon",
    "e2e",
    "executors",
    "fakes",
    "http_api",
    "multiuser",
    "probes",
    "slurm",
    "ssh",
    "store",
)
"""Folders of tests that are checked; the others still have names of their own."""
CORE_PACKAGES = (
    "cluster", "elastic", "events", "explain", "handlers", "heterogeneous", "launch", "measurement",
    "model", "options", "placement", "planner", "policies", "preemption", "queue", "reservation",
    "running", "state", "structures.py",
)  # fmt: skip
"""Packages of the core that are checked."""

PHRASES = re.compile(
    r"\b(somebody|someone who|nobody|no one who|whoever|whom|anybody|everybody|anew|wish|wishes"
    r"|in vain|those who|one who|is told|are told|was told|been told|so many|makes? room"
    r"|making room|its like|for its sake|goes by|afar|strangers?|strays?|keepers?|fleet|errands?"
    r"|front door)\b",
    re.IGNORECASE,
)
"""Not in comments and docstrings."""
CORE_PHRASES = re.compile(
    r"\b(look(s|ed|ing)? at|hopes?|kept for|told|said|what is there|first in line|"
    r"stands (in|at|before|behind)|goes first|go first)\b",
    re.IGNORECASE,
)
"""Not in comments and docstrings of the core either."""

PARTS = frozenset({
    "adopt", "adoption", "afar", "anew", "asked", "bury", "couriers", "desk", "door", "doors",
    "ears", "errand", "errands", "fleet", "gauges", "glance", "heard", "hearing", "heed", "judge",
    "keeper", "keepers", "landing", "muster", "nobody", "obey", "poller", "reunion", "runaway",
    "shelf", "somebody", "stranger", "strangers", "stray", "strays", "ties", "told", "trails",
    "whoever", "whose", "wish", "wishes",
})  # fmt: skip
"""Not in names, neither alone nor between underscores or capitals."""

SCRIPT_NAMES = re.compile(
    r"\b(DEAF|ALOUD|QUIETLY|SEALED|FOUND_FIRST|DRIVER_PATIENCE|end_the_rest|nap|grown|said|told"
    r"|heard|hear|salvage|shelve|keeper|find_born|bury\w*|pass_on)\b"
)
"""Not as names in shell scripts."""

_LOWER, _TITLE = "|".join(sorted(PARTS)), "|".join(sorted(part.title() for part in PARTS))
ANY_PART = re.compile(rf"(?<![A-Za-z])(?i:{_LOWER})(?![a-z])|(?:{_TITLE})(?![a-z])")

EXEMPT = {
    "stranger": "stored name of a field of ForeignUseChanged",
    "door": "field of JobQuery, and a column of the store",
    "Afar": "class of tests/core",
}
"""Names that are stored, or defined by the core, and why they stay."""


def name_parts(name: str) -> set[str]:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(words.lower().split("_"))


def docstring_lines(source: str) -> set[int]:
    """Return the lines where a string that is a statement of its own begins."""
    return {
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def violations(source: str, phrases: re.Pattern[str] = PHRASES) -> Iterator[tuple[int, str]]:
    """Yield line and word of each forbidden word."""
    if not phrases.search(source) and not ANY_PART.search(source):
        return  # most files; tokenising all of them would take seconds
    docstrings = docstring_lines(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        is_docstring = token.type == tokenize.STRING and line in docstrings
        if token.type == tokenize.COMMENT or is_docstring:
            for match in phrases.finditer(token.string):
                yield line + token.string.count("\n", 0, match.start()), match[0]
        elif token.type == tokenize.NAME and token.string not in EXEMPT:
            for part in sorted(name_parts(token.string) & PARTS):
                yield line, f"{part} (in {token.string})" if part != token.string else part


def checked_files() -> list[Path]:
    """Return the files outside the core, and those of its packages that are renamed."""
    paths = ((path, path.relative_to(SOURCES).parts) for path in sorted(SOURCES.rglob("*.py")))
    return [path for path, parts in paths if parts[0] != "core" or parts[1] in CORE_PACKAGES]


def shell_scripts() -> list[Path]:
    """Return the scripts that run on nodes and in containers, and those of the build."""
    tools = (path for path in (SOURCES / "executors/slurm_tools").iterdir() if not path.suffix)
    build = (path for path in (ROOT / ".ci").iterdir() if path.is_file())
    return [*sorted(SOURCES.rglob("*.sh")), *sorted(tools), *sorted(build), ROOT / "Makefile"]


def script_violations(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and word of each forbidden word in comments and names of a shell script."""
    for number, line in enumerate(text.splitlines(), 1):
        code, mark, comment = line.partition("#")
        if mark and not code.strip():
            for match in PHRASES.finditer(comment):
                yield number, match[0]
        else:
            for match in SCRIPT_NAMES.finditer(line):
                yield number, match[0]


def assert_plain(found: list[str]) -> None:
    assert not found, "\n".join([*found, "see docs/glossary.md"])


def test_comments_docstrings_and_names_use_the_words_of_the_glossary() -> None:
    files = checked_files()
    assert len(files) > 300
    assert_plain([
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in files
        for line, word in violations(path.read_text("utf-8"))
    ])  # fmt: skip


@pytest.mark.parametrize("package", CORE_PACKAGES)
def test_the_core_uses_the_words_of_the_field(package: str) -> None:
    assert_plain([
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((SOURCES / "core" / package).rglob("*.py"))
        for line, word in violations(path.read_text("utf-8"), CORE_PHRASES)
    ])  # fmt: skip


@pytest.mark.parametrize("suite", SUITES)
def test_tests_use_the_words_of_the_glossary(suite: str) -> None:
    assert_plain([
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / "tests" / suite).rglob("*.py"))
        for line, word in violations(path.read_text("utf-8"))
    ])  # fmt: skip


def test_shell_scripts_use_the_words_of_the_glossary() -> None:
    scripts = shell_scripts()
    assert len(scripts) >= 9
    assert_plain([
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in scripts
        for line, word in script_violations(path.read_text("utf-8"))
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1  # nobody waits\n", [(1, "nobody")]),
        ('def f():\n    """First.\n\n    Then it makes room.\n    """\n', [(4, "makes room")]),
        ("job_keeper = 1\n", [(1, "keeper (in job_keeper)")]),
        ("class NodeFleet:\n    pass\n", [(1, "fleet (in NodeFleet)")]),
        ("print(spec.door)\n", []),
        ('print("nobody")\n', []),
    ],
)
def test_a_forbidden_word_is_reported_with_its_line(
    source: str, expected: list[tuple[int, str]]
) -> None:
    assert list(violations(source)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# nobody waits\n", [(1, "nobody")]),
        ("true\n    salvage $1\n", [(2, "salvage")]),
        ("echo $# of $1\n", []),
    ],
)
def test_a_forbidden_word_of_a_script_is_reported_with_its_line(
    text: str, expected: list[tuple[int, str]]
) -> None:
    assert list(script_violations(text)) == expected


def test_every_exempt_name_is_still_used() -> None:
    paths = [
        *checked_files(),
        *(path for suite in SUITES for path in (ROOT / "tests" / suite).rglob("*.py")),
    ]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8"))}
    assert EXEMPT.keys() <= words
