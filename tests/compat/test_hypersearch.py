"""simple_hypersearch: what is printed, in which order, and what is refused."""

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.compat.registry import run_compat_command
from stoker.compat.simple_hypersearch import WRITE_BYTES

COMMAND = [sys.executable, "-m", "stoker", "compat", "simple_hypersearch"]
GUIDE = ["python3 train_dnn.py --lr {lr} --batch_size {bs}",
         "-p", "lr", "0.001", "0.0005", "0.0001", "-p", "bs", "32", "64", "128"]  # fmt: skip
GUIDES_NINE = {
    f"python3 train_dnn.py --lr {lr} --batch_size {bs}"
    for lr in ("0.001", "0.0005", "0.0001")
    for bs in (32, 64, 128)
}
NINE = ["{a}{b}", "-p", "a", "1", "2", "3", "-p", "b", "x", "y", "z"]
HEAVY = {"argparse", "collections", "dataclasses", "hashlib", "json", "random", "re", "typing"}

Captured = pytest.CaptureFixture[str]


class Hypersearch:
    """The command, as a function: lines printed, or the message it was refused with."""

    def __init__(self, capfd: Captured) -> None:
        self.capfd = capfd

    def __call__(self, *argv: str) -> list[str]:
        code = run_compat_command("simple_hypersearch", list(argv))
        out, err = self.capfd.readouterr()
        assert (code, err) == (0, "")
        return out.splitlines()

    def refuses(self, *argv: str) -> str:
        code = run_compat_command("simple_hypersearch", list(argv))
        out, err = self.capfd.readouterr()
        assert (code, out) == (2, "")
        assert err.startswith("simple_hypersearch: ")
        assert err.count("\n") == 1
        return err.removeprefix("simple_hypersearch: ")


@pytest.fixture
def hypersearch(capfd: Captured) -> Hypersearch:
    return Hypersearch(capfd)


# -------------------------------------------------------------------------- row by row


def test_hyp_01_usage(hypersearch: Hypersearch) -> None:
    for word in ("-h", "--help"):
        text = "\n".join(hypersearch(word))
        for promised in ("PATTERN", "-p, --parameter", "--sampling-mode", "--n-samples", "--seed",
                         "shuffled_grid", "grid", "python3 train.py"):  # fmt: skip
            assert promised in text
        assert all(len(line) <= 100 for line in text.splitlines())
    argv = ["{a}", "--parameter", "a", "1", "--seed", "1", "--n-samples", "1"]
    assert hypersearch(*argv, "--sampling-mode", "shuffled_grid") == ["1"]
    assert hypersearch("--seed=1", "--n-samples=1", "--samp", "grid", "{a}", "-p", "a", "1") == [
        "1"
    ]


def test_hyp_02_the_whole_product_is_shuffled(hypersearch: Hypersearch) -> None:
    found = hypersearch(*GUIDE)
    assert len(found) == 9
    assert set(found) == GUIDES_NINE
    orders = {tuple(hypersearch(*NINE)) for _ in range(8)}
    assert len(orders) > 1  # one in 9! to the power of 7 that all are the same


def test_hyp_03_grid_is_in_order_and_the_last_parameter_changes_fastest(
    hypersearch: Hypersearch,
) -> None:
    argv = ["{a}{b}", "--sampling-mode", "grid", "-p", "a", "1", "2", "-p", "b", "x", "y"]
    assert hypersearch(*argv) == ["1x", "1y", "2x", "2y"]
    swapped = ["{a}{b}", "--sampling-mode", "grid", "-p", "b", "x", "y", "-p", "a", "1", "2"]
    assert hypersearch(*swapped) == ["1x", "2x", "1y", "2y"]


def test_hyp_04_n_samples_is_a_sample_without_replacement(hypersearch: Hypersearch) -> None:
    assert len(set(hypersearch(*NINE, "--n-samples", "5"))) == 5
    assert len(set(hypersearch(*NINE, "--n-samples", "100"))) == 9
    assert hypersearch(*NINE, "--n-samples", "0") == []
    for bad in ("-1", "x", "1.5", ""):
        assert "--n-samples takes a whole number" in hypersearch.refuses(*NINE, "--n-samples", bad)


def test_hyp_05_of_a_grid_the_first_ones(hypersearch: Hypersearch) -> None:
    assert hypersearch(*NINE, "--sampling-mode", "grid", "--n-samples", "2") == ["1x", "1y"]


def test_hyp_06_the_same_seed_gives_the_same_order(hypersearch: Hypersearch) -> None:
    first = "python3 train_dnn.py --lr 0.0005 --batch_size 128"
    assert hypersearch(*GUIDE, "--seed", "1")[0] == first
    assert hypersearch(*NINE, "--seed", "0") == [
        "3y",
        "2z",
        "1y",
        "2x",
        "2y",
        "1z",
        "1x",
        "3z",
        "3x",
    ]
    assert hypersearch(*NINE, "--seed", "1") == [
        "2z",
        "3x",
        "3y",
        "2y",
        "2x",
        "1x",
        "3z",
        "1y",
        "1z",
    ]
    assert hypersearch(*NINE, "--seed", "7") == [
        "1y",
        "3x",
        "3y",
        "2y",
        "1x",
        "3z",
        "2x",
        "1z",
        "2z",
    ]
    assert hypersearch(*NINE, "--seed", "7", "--n-samples", "2") == ["1y", "3x"]
    assert "--seed takes a whole number, not 'x'" in hypersearch.refuses(*NINE, "--seed", "x")


def test_hyp_07_braces_are_doubled_and_formats_work(hypersearch: Hypersearch) -> None:
    assert hypersearch("awk '{{print $1}}' {a:>5}|", "-p", "a", "1") == ["awk '{print $1}'     1|"]
    assert hypersearch("{{{a}}} ${{HOME}} {a!r:<6}|", "-p", "a", "x y") == ["{x y} ${HOME} 'x y' |"]
    refused = hypersearch.refuses("awk '{print $1}' {a}", "-p", "a", "1")
    assert "{print $1}" in refused
    assert "belong to the command: {{print $1}}" in refused
    assert "belong to the command: {{if (x) {{print}}}}" in hypersearch.refuses(
        "{if (x) {print}}{a}", "-p", "a", "1"
    )
    assert "belong to the command: {{}}" in hypersearch.refuses(
        "find -exec rm {} + {a}", "-p", "a", "1"
    )


def test_hyp_08_a_parameter_that_is_missing_is_named(hypersearch: Hypersearch) -> None:
    refused = hypersearch.refuses("{x}", "-p", "lr", "1")
    assert "there is no parameter x" in refused
    assert "-p x VALUE" in refused


def test_hyp_09_without_parameters(hypersearch: Hypersearch) -> None:
    assert "There is no parameter" in hypersearch.refuses("echo")
    assert "There is no pattern" in hypersearch.refuses()


def test_hyp_10_a_parameter_that_is_not_used_would_print_duplicates(
    hypersearch: Hypersearch,
) -> None:
    refused = hypersearch.refuses("echo {a}", "-p", "a", "1", "-p", "b", "x", "y")
    assert "does not use the parameter b" in refused


def test_hyp_11_a_name_is_given_once(hypersearch: Hypersearch) -> None:
    assert "a is given twice" in hypersearch.refuses("{a}", "-p", "a", "1", "2", "-p", "a", "3")
    assert "needs a name" in hypersearch.refuses("{a}", "-p", "", "3")


def test_hyp_12_a_parameter_has_values(hypersearch: Hypersearch) -> None:
    assert "a has no values" in hypersearch.refuses("echo {a}", "-p", "a")
    assert "a has no values" in hypersearch.refuses("echo {a}{b}", "-p", "a", "-p", "b", "1")
    assert "needs a name and values" in hypersearch.refuses("echo {a}", "-p")
    assert "'1' twice" in hypersearch.refuses("echo {a}", "-p", "a", "1", "2", "1")


def test_hyp_13_values_go_in_as_they_are(hypersearch: Hypersearch) -> None:
    (line,) = hypersearch("printf '%s\\n' {a}", "-p", "a", "x y")
    assert subprocess.check_output(["sh", "-c", line], text=True) == "x\ny\n"
    odd = ["$(x)", "'", '"', "{a}", "{0}", "}", "%s", "é", " ", "", "\t", "a\\b"]
    assert hypersearch("{a}|", "--sampling-mode", "grid", "-p", "a", *odd) == [f"{v}|" for v in odd]


def test_hyp_14_negative_learning_rates(hypersearch: Hypersearch) -> None:
    numbers = ["-1e-3", "1e-3", "-1", "-.5", "-inf", "-1,1", "-"]
    assert hypersearch("{a}", "--sampling-mode", "grid", "-p", "a", *numbers) == numbers
    assert hypersearch("{a}", "-p", "a", "-1e-3", "--seed", "-1") == ["-1e-3"]
    refused = hypersearch.refuses("{a}", "-p", "a", "--fast", "--slow")
    assert "no option --fast" in refused
    assert "' --fast'" in refused
    assert hypersearch("x {a}", "-p", "a", " --fast") == ["x  --fast"]


def test_hyp_15_the_pattern_may_stand_behind_two_dashes(hypersearch: Hypersearch) -> None:
    assert set(hypersearch("-p", "a", "1", "2", "--", "echo {a}")) == {"echo 1", "echo 2"}
    assert hypersearch("-p", "a", "1", "--seed", "1", "echo {a}") == ["echo 1"]
    refused = hypersearch.refuses("-p", "a", "1", "2", "echo {a}")
    assert "'echo {a}' was read as a value of a" in refused
    assert "write -- before it" in refused
    assert "in quotes" in hypersearch.refuses("python", "x.py", "{a}", "-p", "a", "1")
    assert "in quotes" in hypersearch.refuses("python", "--lr", "{a}", "-p", "a", "1")
    assert "--sampling-mode or --seed" in hypersearch.refuses("{a}", "--s", "1", "-p", "a", "1")
    assert "--seed needs a value" in hypersearch.refuses("{a}", "-p", "a", "1", "--seed")


def test_hyp_16_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    values = [str(number) for number in range(3000)]
    process = subprocess.Popen(
        [*COMMAND, "{a}{b}", "-p", "a", *values, "-p", "b", *values],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.readline().strip().isdigit()
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


# ------------------------------------------------------------------------------ output


def test_what_is_written_at_once_are_whole_lines() -> None:
    """A packet socket keeps every write apart."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    values = [str(number) for number in range(1000)]
    argv = ["x {a} " + "é" * 50, "--sampling-mode", "grid", "-p", "a", *values, "y" * 9000]
    with ours, subprocess.Popen([*COMMAND, *argv], stdout=theirs) as process:
        theirs.close()
        pieces = list(iter(lambda: ours.recv(1 << 20), b""))
    assert process.returncode == 0
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert all(len(piece) <= WRITE_BYTES or piece.count(b"\n") == 1 for piece in pieces)
    assert len(pieces) < 60
    assert b"".join(pieces).decode().splitlines() == [
        f"x {value} {'é' * 50}" for value in [*values, "y" * 9000]
    ]


def test_two_that_append_to_one_queue_file_do_not_tear_lines(tmp_path: Path) -> None:
    queue = tmp_path / "gpu.queue"
    numbers = [str(number) for number in range(100)]
    with contextlib.ExitStack() as stack:
        for who in "ab":
            file = stack.enter_context(queue.open("ab"))
            argv = [f"{who} {{x}} {{y}} {who}", "-p", "x", *numbers, "-p", "y", *numbers]
            stack.enter_context(subprocess.Popen([*COMMAND, *argv], stdout=file))
    lines = queue.read_text().splitlines()
    assert sorted(lines) == sorted(
        f"{who} {x} {y} {who}" for who in "ab" for x in numbers for y in numbers
    )


def test_bytes_that_are_no_text_go_through() -> None:
    argv = [os.fsencode(word) for word in COMMAND]
    done = subprocess.run([*argv, b"x {a}", b"-p", b"a", b"\xff"], stdout=-1, check=True)
    assert done.stdout == b"x \xff\n"


def test_a_closed_stdout_is_a_message() -> None:
    line = '"$@" >&-'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND, "{a}", "-p", "a", "1"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("simple_hypersearch: stdout is closed")


def test_a_full_disk_is_a_message() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "{a}", "-p", "a", "1"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 7
    assert "No space left" in done.stderr


def test_one_command_is_one_line(hypersearch: Hypersearch) -> None:
    assert "line break" in hypersearch.refuses("echo\n{a}", "-p", "a", "1")
    assert "line break" in hypersearch.refuses("echo {a\n}", "-p", "a", "1")
    assert "line break" in hypersearch.refuses("echo {a}", "-p", "a", "1\n2")


@pytest.mark.parametrize(
    "argv",
    [("echo {a}\\", "-p", "a", "1"), ("{a}", "-p", "a", "1", "2\\"),
     ("\\{a}", "-p", "a", "1", ""), ("{b}{a:.1}", "-p", "a", "", "x", "-p", "b", "\\")],
)  # fmt: skip
def test_a_command_that_would_swallow_the_next_line(
    hypersearch: Hypersearch, argv: tuple[str, ...]
) -> None:
    assert "backslash" in hypersearch.refuses(*argv)


@pytest.mark.parametrize(
    "argv",
    [("{a}", "-p", "a", "x", " "), ("# {a}", "-p", "a", "1"), ("{a} #{b}", "-p", "a", "", "-p",
     "b", "1"), ("{a}{b}", "-p", "a", "", "x", "-p", "b", "y", " #z")],
)  # fmt: skip
def test_a_command_that_would_be_passed_over(
    hypersearch: Hypersearch, argv: tuple[str, ...]
) -> None:
    assert "such lines are skipped" in hypersearch.refuses(*argv)


def test_a_remark_behind_a_command_is_fine(hypersearch: Hypersearch) -> None:
    assert hypersearch("{a}ls #{b}", "-p", "a", "", "-p", "b", "") == ["ls #"]


def test_a_backslash_elsewhere_is_fine(hypersearch: Hypersearch) -> None:
    assert hypersearch("{b}\\x{a}", "-p", "a", "1", "-p", "b", "\\") == ["\\\\x1"]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("{a.__class__}", "use the whole value: {a}"),
        ("{a[0]}", "use the whole value: {a}"),
        ("{a:d}", "{a:>8} works"),
        ("{a:>{a}}", "{a:>8} works"),
        ("{a:>99999999999}", "{a:>8} works"),
        ("{a!x}", "a conversion is !r, !s or !a"),
        ("{a!}", "a conversion is !r, !s or !a"),
        ("{a} {", "a { without its }"),
        ("{a} {x", "a { without its }"),
        ("{a}}", "a } without its {"),
        ("{0}{a}", "{{0}}"),
    ],
)
def test_what_a_pattern_may_not_have(hypersearch: Hypersearch, pattern: str, said: str) -> None:
    assert said in hypersearch.refuses(pattern, "-p", "a", "1")


def test_a_name_may_have_a_dot_in_it(hypersearch: Hypersearch) -> None:
    assert hypersearch("{model.lr}", "-p", "model.lr", "1") == ["1"]


def test_other_modes_and_options_do_not_exist(hypersearch: Hypersearch) -> None:
    assert "not 'random'" in hypersearch.refuses(*NINE, "--sampling-mode", "random")
    assert "simple_hypersearch --help" in hypersearch.refuses("--json")


# ----------------------------------------------------------------------- the exact order


@pytest.mark.parametrize(
    ("shape", "seed", "count", "digest"),
    [
        ((2,), 0, None, "82c1315e6c757f33"),
        ((2,), 1, None, "5d90ef7fc0d040fd"),
        ((5, 7), 0, None, "11709c7cc0efec96"),
        ((5, 7), 1, None, "dc46c417f854852f"),
        ((5, 7), 42, None, "d7971ca5ad3d02e9"),
        ((5, 7), -7, None, "e4385a6f872bfb1b"),
        ((5, 7), 2**70, None, "c7bb0febfdecbadc"),
        ((7, 11, 13), 0, None, "f171e3a99122c28a"),
        ((7, 11, 13), 1, None, "cab20e148fb9d95f"),
        ((7, 11, 13), 42, None, "4157369d09203a6a"),
        ((7, 11, 13), -7, None, "e10b1952d30e1032"),
        ((7, 11, 13), 2**70, None, "3b8ff1a0ef6aa9ad"),
        ((7, 11, 13), 1, 10, "231745a51ec7ce81"),
        ((4, 4, 4, 4, 4, 4), 0, None, "05e8a7602fd2228b"),
        ((4, 4, 4, 4, 4, 4), 42, None, "5d2773c79070d3b8"),
        ((4, 4, 4, 4, 4, 4), 2**70, None, "90df00c793b9e8a8"),
        ((100, 100, 100), 7, None, "d75df3a5c3fd52c9"),
    ],
)
def test_the_order_is_that_of_version_0_1_4(
    capfd: Captured, shape: tuple[int, ...], seed: int, count: int | None, digest: str
) -> None:
    """The digests are of what simple-gpu-scheduler 0.1.4 prints on CPython 3.11."""
    argv = [" ".join(f"{{p{i}}}" for i in range(len(shape))), f"--seed={seed}"]
    if count is not None:
        argv += ["--n-samples", str(count)]
    for i, size in enumerate(shape):
        argv += ["-p", f"p{i}", *map(str, range(size))]
    assert run_compat_command("simple_hypersearch", argv) == 0
    assert hashlib.sha256(capfd.readouterr().out.encode()).hexdigest()[:16] == digest


def test_it_starts_in_a_blink() -> None:
    code = (
        "import sys; bare = set(sys.modules)\n"
        "from stoker.compat.registry import run_compat_command\n"
        "argv = ['{a}', '--seed', '1', '-p', 'a', '1', '2']\n"
        "run_compat_command('simple_hypersearch', argv)\n"
        "sys.stderr.write(' '.join(set(sys.modules) - bare))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert not set(done.stderr.split()) & HEAVY
