"""The rules of .stokerignore: those of git, and a comparison with git on random rules."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from stoker.executors.agent.transfer.ignore_rules import IgnoreRules


def not_excluded(rules: IgnoreRules, files: dict[str, str], ignore: dict[str, str]) -> set[str]:
    """Return the files that remain in a walk that does not enter excluded directories."""
    left = set()
    for path in files:
        here, parts = rules.enter("", ignore.get("")), path.split("/")
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            if here.excluded(part, depth < len(parts)):
                break
            here = here.enter(part, ignore.get(part))
        else:
            left.add(path)
    return left


@pytest.mark.parametrize(
    ("pattern", "path", "excluded"),
    [
        ("a.txt", "a.txt", True),
        ("a.txt", "deep/er/a.txt", True),
        ("a.txt", "a.txt/inside", True),
        ("a.txt", "aatxt", False),
        ("/a", "a", True),
        ("/a", "b/a", False),
        ("a/b", "a/b", True),
        ("a/b", "x/a/b", False),
        ("b/", "b/file", True),
        ("b/", "x/b/file", True),
        ("b/", "x/b", False),
        ("a/b/", "a/b/file", True),
        ("*.pt", "runs/best.pt", True),
        ("*.pt", ".pt", True),
        ("runs/*.pt", "runs/a/best.pt", False),
        ("?.py", "a.py", True),
        ("?.py", "é.py", True),
        ("?.py", "ab.py", False),
        ("a?b", "a/b", False),
        ("[a-c]1", "b1", True),
        ("[!a-c]1", "b1", False),
        ("[^a-c]1", "d1", True),
        ("x[!a]y", "x/y", False),
        ("[]-]", "]", True),
        ("[]-]", "-", True),
        ("[[:digit:]_]", "7", True),
        ("[[:digit:]_]", "_", True),
        ("[[:nothing:]]", "7", False),
        ("[ab", "[ab", False),
        ("[ab", "a", False),
        ("**/logs", "logs", True),
        ("**/logs", "a/b/logs", True),
        ("logs/**", "logs/a/b", True),
        ("logs/**", "more/logs", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "ab/z", False),
        ("a/**b", "a/x/b", False),
        ("**", "anything", True),
        ("# a", "# a", False),
        (r"\#a", "#a", True),
        (r"\!a", "!a", True),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("a ", "a", True),
        (r"a\ ", "a ", True),
        (r"a\ ", "a", False),
        ("a\t", "a", False),
        ("a\\", "a", False),
        ("a\r", "a", True),
        ("\ufeffa", "a", True),
        ("", "a", False),
        ("/", "a", False),
        ("a//", "a/b", False),
        ("*\n!keep", "keep", False),
        ("*\n!keep", "lose", True),
        ("keep\n!keep\nkeep", "keep", True),
        ("d/\n!d/keep", "d/keep", True),
        ("d/*\n!d/keep", "d/keep", False),
        ("with\\\nb", "b", True),
        ("a+(b).c", "a+(b).c", True),
    ],
)
def test_a_pattern_excludes_a_path(pattern: str, path: str, excluded: bool) -> None:
    assert (not_excluded(IgnoreRules(), {path: ""}, {"": pattern}) == set()) is excluded


def test_an_ignore_file_applies_below_its_directory_and_overrides_those_above() -> None:
    files = dict.fromkeys(("a.log", "sub/a.log", "sub/b.txt", "sub/x/c.txt", "other/c.txt"), "")
    ignore = {"": "*.log\n", "sub": "!a.log\n/b.txt\nx/c.txt\n"}
    assert not_excluded(IgnoreRules(), files, ignore) == {"sub/a.log", "other/c.txt"}


def test_fixed_rules_cannot_be_overridden_by_a_file() -> None:
    always = IgnoreRules.always(["job_results/", "*.pyc"])
    files = dict.fromkeys(("job_results/a", "a.pyc", "d/b.pyc", "a.py"), "")
    ignore = {"": "!job_results/\n!*.pyc\n", "d": "!b.pyc"}
    assert not_excluded(always, files, ignore) == {"a.py"}


def test_without_rules_nothing_is_excluded() -> None:
    rules = IgnoreRules()
    assert rules.enter("", None) is rules
    assert rules.enter("a", "# nothing\n\n") is rules
    assert not rules.excluded("a", is_dir=False)


PIECES = ["a", "b", "ab", "*", "**", "?", "/", "/", "[ab]", "[!a]", "[a-b", r"\a", r"\*", "!",
          "a*", "**/", "/**", " ", "\\ ", "-", "]", "[b-a]", "[]a]", "[[:alpha:]]", ".",
          "#"]  # fmt: skip


def random_pattern(chance: random.Random) -> str:
    head = chance.choice(["", "", "", "!", "/", "\\"])
    tail = chance.choice(["", "", "/", " "])
    return head + "".join(chance.choices(PIECES, k=chance.randint(1, 4))) + tail


@pytest.mark.needs("git")
@pytest.mark.parametrize("seed", range(6))
def test_git_agrees_on_random_trees_and_patterns(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        env.pop(name, None)  # a hook that runs the tests sets them

    def git(*words: str, input: str = "") -> str:
        return subprocess.run(
            ["git", *words], cwd=tmp_path, env=env, input=input, text=True,
            capture_output=True, check=False, timeout=30,
        ).stdout  # fmt: skip

    git("init", "-q", "-b", "main", "--template=")
    words = ["a", "b", "ab", "ba", "aa", "a*", "*", ".a", "a b", "-", "#", "!a", "aab", "]"]
    files: dict[str, str] = {}
    for _ in range(60):
        path = "/".join(chance.choices(words, k=chance.randint(1, 4)))
        whole = tmp_path / path
        if whole.exists() or any(parent.is_file() for parent in whole.parents):
            continue
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text("")
        files[path] = ""
    directories = sorted({parent for path in files for parent in parents_of(path)})
    for _ in range(40):
        ignore = {
            place: "\n".join(random_pattern(chance) for _ in range(chance.randint(1, 3)))
            for place in {"", *chance.sample(directories, min(2, len(directories)))}
        }
        for place, text in ignore.items():
            (tmp_path / place / ".gitignore").write_text(text)
        listed = git("ls-files", "-z", "--others", "--exclude-per-directory=.gitignore")
        theirs = {path for path in listed.split("\0") if path in files}
        assert not_excluded(IgnoreRules(), files, ignore) == theirs, ignore
        for place in ignore:
            (tmp_path / place / ".gitignore").unlink()


def parents_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]
