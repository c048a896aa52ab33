"""A machine looked at with nothing but a shell: what measure.sh writes, and how it is read."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker.executors.agent.session
from e2e.daemon_fixture import state_of, until
from stoker.core.units import THOUSAND
from stoker.executors.linux.procfs import read_stat
from stoker.probes import host
from stoker.probes.gpu_samples import UNKNOWN_ATTEMPT, build_samples, parse_token
from stoker.probes.remote_facts import BadReport, ProcessOwner, RemoteFacts, parse

PLACE = Path(stoker.executors.agent.session.__file__).parent
FACTS = (PLACE / "measure.sh").read_text()
AGENT = (PLACE / "agent.sh").read_text()
SHELLS = [
    pytest.param(shell, id=shell[0], marks=pytest.mark.skipif(
        shutil.which(shell[0]) is None, reason=f"no {shell[0]} here"))
    for shell in (["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"])
]  # fmt: skip

GPUS = """\
0, GPU-a, NVIDIA A100-SXM4-80GB, 81920, 400, 7, 40, 61.25
1, GPU-b, Tesla, the second, [N/A], [Not Supported], [N/A], [N/A], [N/A]
"""
WHOLE = f"""\
boot 11-22
home /home/me
connection 10.0.0.1 50000 10.0.0.2 22
cores 24
tool bash
tool tar
MemTotal:       32768000 kB
MemAvailable:   16384000 kB
cpu  100 20 30 800 50 1 2 3 90 9
load 1.50 1.00 0.50 1/900 4242
disk //server/a share 1000000 200 2048000 30% /home
{"".join(f"gpu {row}" + chr(10) for row in GPUS.splitlines())}apps
app GPU-a, 77, 300
app GPU-a, 78, [N/A]
app GPU-a, 79, 20
app MIG-unknown, 80, 20
owner 77 70 me abc.7.1 python train.py --lr 1
owner 78 71 alice - /usr/bin/python x
owner 80 - - -
end
"""


def function(name: str) -> str:
    """The text of one function of the agent."""
    match = re.search(rf"^{name}\(\) \{{(?: .*\}}$|\n(?:.*\n)*?\}}$)", AGENT, re.MULTILINE)
    assert match, name
    return match[0]


class Machine:
    """A directory that plays the remote home, and a PATH whose nvidia-smi we write."""

    def __init__(self, place: Path, shell: list[str]) -> None:
        self.shell, self.bin, self.here = shell, place / "bin", place / "home" / ".stoker"
        self.run = self.here / "run" / "node"
        self.run.mkdir(parents=True)
        self.bin.mkdir()

    def driver(self, gpus: str, apps: str = "", code: int = 0, first: str = "") -> None:
        """An nvidia-smi that says this."""
        (self.bin / "gpus").write_text(gpus)
        (self.bin / "apps").write_text(apps)
        text = f"""#!/bin/sh
{first}
case $* in
    *--query-gpu=*) cat '{self.bin}/gpus'; exit {code} ;;
    *--query-compute-apps=*) cat '{self.bin}/apps'; exit {code} ;;
esac
"""
        (self.bin / "nvidia-smi").write_text(text)
        (self.bin / "nvidia-smi").chmod(0o755)

    def does(self, *lines: str, **env: str) -> list[str]:
        """What the agent tells while it does this."""
        text = "\n".join(
            (
                "exec 9>&1 8>&2 2>/dev/null; set -f; NONCE=nonce; BOOT=boot-id",
                f"BASE='{self.here}'; RUN='{self.run}'",
                function("notify"), function("read_start_time"), FACTS, *lines,
            )
        )  # fmt: skip
        done = subprocess.run(
            [*self.shell, "-c", text], capture_output=True, text=True, errors="surrogateescape",
            timeout=60, check=False,
            env={"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.here.parent), **env},
        )  # fmt: skip
        return done.stdout.splitlines()

    def measured(self, **env: str) -> RemoteFacts:
        """A look at it."""
        *facts, last = self.does("measure", "wait", **env)
        assert last == "nonce - reading-end"
        lines = [fact.removeprefix("nonce - reading ") for fact in facts]
        return parse("\n".join(lines).encode(errors="surrogateescape"))


@pytest.fixture(params=SHELLS)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of an attempt, with a line break and a blank in its words."""
    environment = {"PATH": os.environ["PATH"], "A": "b\nc", "STOKER_TOKEN": "abc.7.1"}
    words = ["sh", "-c", "read x", "a word", "two\nlines", "x" * 300]
    started = subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, start_new_session=True
    )
    yield started
    started.kill()
    started.communicate()


def test_a_machine_without_gpus_says_what_it_has(machine: Machine) -> None:
    look = machine.measured(SSH_CONNECTION="10.0.0.1 5000 fe80::2%eth0 22", OMP_NUM_THREADS="1")
    assert look.complete
    assert (look.boot, look.home) == ("boot-id", str(machine.here.parent))
    assert look.cores == host.cores()
    assert look.memory_total == host.memory_mib()
    assert 0 < look.memory_available <= look.memory_total
    assert 0 < look.jiffies[0] < look.jiffies[1]
    assert look.tools >= {"tar"}
    assert look.disk_free > 0
    assert (look.client, look.address) == ("10.0.0.1", "fe80::2%eth0")
    if shutil.which("nvidia-smi") is None:
        assert (look.reading.facts, look.reading.error, look.hung) == ((), None, False)


def test_gpus_are_read_with_their_processes(
    machine: Machine, process: "subprocess.Popen[bytes]"
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    pid = process.pid
    machine.driver(GPUS, f"GPU-a, {pid}, 300\nGPU-b, {pid}, 5\nGPU-a, {dead.pid}, 9\n")
    look = machine.measured()
    assert [gpu.model for gpu in look.reading.facts] == [
        "NVIDIA A100-SXM4-80GB", "Tesla, the second",
    ]  # fmt: skip
    assert look.owners.keys() == {pid}  # and not the dead one
    owner = look.owners[pid]
    assert owner.user == host.user_name(os.getuid())
    assert (owner.token, owner.session) == ("abc.7.1", pid)
    assert owner.command.startswith("sh -c read x a word two lines xxx")
    assert len(owner.command) == 200
    sample = build_samples(look.reading, look.owner_lookup("abc", {}), look.identify)[
        "GPU-a"
    ].sample
    assert (sample.ours_memory, sample.strangers) == (300, ())
    assert not list(machine.run.glob("driver*"))


def test_a_driver_that_hangs_is_given_up_on_and_its_asker_ended(machine: Machine) -> None:
    machine.driver(GPUS, first="exec sleep 300")
    look = machine.measured(DRIVER_TIMEOUT="1")
    assert look.complete
    assert look.hung
    assert look.reading.error == "the GPU driver has not answered"
    pid, _ = (machine.run / "stuck").read_text().split()
    until(lambda: state_of(int(pid)) in "ZX")


def test_while_one_asker_is_stuck_the_driver_is_not_asked_again(machine: Machine) -> None:
    machine.driver(GPUS, first=f"touch '{machine.bin}/asked'")
    stat = read_stat(os.getpid())
    assert stat is not None
    (machine.run / "stuck").write_text(f"{os.getpid()} {stat.start_ticks}\n")
    assert machine.measured().hung
    assert not (machine.bin / "asked").exists()
    (machine.run / "stuck").write_text(f"{os.getpid()} {stat.start_ticks + 1}\n")
    assert len(machine.measured().reading.facts) == 2


def test_a_driver_that_refuses_is_quoted(machine: Machine) -> None:
    machine.driver("NVIDIA-SMI has failed.\n\n", "NVIDIA-SMI has failed.\n", code=9)
    look = machine.measured()
    assert (look.reading.error, look.hung, look.reading.facts) == (
        "NVIDIA-SMI has failed.", False, (),
    )  # fmt: skip
    machine.driver("No devices were found\n", "No devices were found\n", code=6)
    assert machine.measured().reading.error is None


def test_where_processes_cannot_be_listed_that_is_known(machine: Machine) -> None:
    machine.driver(GPUS, "[Not Supported]\n")
    assert not machine.measured().reading.use[0].processes_known
    machine.driver(GPUS)
    assert machine.measured().reading.use[0].processes_known


def test_nothing_is_measured_twice_at_once(machine: Machine) -> None:
    machine.driver(GPUS, first=f"until [ -e '{machine.bin}/go' ]; do sleep 0.05; done")
    told = machine.does("measure", "measure", f": >'{machine.bin}/go'", "wait", "measure", "wait")
    assert told.count("nonce - reading-end") == told.count("nonce - reading end") == 2


def test_the_loop_goes_on_while_the_driver_is_asked(machine: Machine) -> None:
    machine.driver(GPUS, first=f"until [ -e '{machine.bin}/go' ]; do sleep 0.05; done")
    told = machine.does("measure", "notify meanwhile", f": >'{machine.bin}/go'", "wait")
    assert told.index("nonce - meanwhile") < told.index("nonce - reading end")
    assert told[-1] == "nonce - reading-end"


def test_it_needs_no_disk(machine: Machine) -> None:
    shutil.rmtree(machine.run)
    machine.driver(GPUS)
    assert machine.measured().complete


# -- reading ----------------------------------------------------------------------------


def test_a_look_is_read() -> None:
    look = parse(WHOLE.encode())
    assert look.complete
    assert (look.boot, look.home, look.cores) == ("11-22", "/home/me", 24)
    assert look.tools == {"bash", "tar"}
    assert (look.memory_total, look.memory_available) == (32000, 16000)
    assert look.jiffies == (156, 1006)  # without the guests, who are counted in `user` already
    assert (look.load1, look.disk_free) == (1.5, 2000)
    assert (look.client, look.address) == ("10.0.0.1", "10.0.0.2")


def test_mls_53_figures_that_the_driver_does_not_know_are_none() -> None:
    first, second = parse(WHOLE.encode()).reading.facts
    assert (first.index, first.uuid, first.memory) == (0, "GPU-a", 81920)
    assert (second.model, second.memory) == ("Tesla, the second", None)
    first_use, second_use = parse(WHOLE.encode()).reading.use
    assert (first_use.memory_used, first_use.utilization, first_use.power) == (400, 7, 61.25)
    assert (second_use.memory_used, second_use.utilization, second_use.power) == (None, None, None)
    assert [(process.pid, process.memory) for process in first_use.processes] == [
        (77, 300), (78, None), (79, 20),
    ]  # fmt: skip


def test_processes_belong_to_jobs_by_token_or_session_and_dead_ones_to_none() -> None:
    look = parse(WHOLE.encode())
    seen = build_samples(look.reading, look.owner_lookup("abc", {}), look.identify)["GPU-a"]
    sample = seen.sample
    assert seen.shares == {(7, 1): 300}
    assert (sample.ours, sample.ours_memory) == (True, 300)
    assert [(s.pid, s.user, s.command) for s in sample.strangers] == [
        (78, "alice", "/usr/bin/python x")
    ]
    assert look.owner_lookup("abc", {})(77) == (7, 1)
    assert look.owner_lookup("other", {70: (8, 2)})(77) == (8, 2)
    assert look.owner_lookup("ab", {1: (8, 2)})(77) is None
    assert look.owner_lookup("abc", {71: (9, 0)})(78) == (9, 0)
    assert look.owners[80] == ProcessOwner()  # there, and hidden


def test_the_node_has_pools_and_gpus() -> None:
    facts = parse(WHOLE.encode()).node_facts("gpu1")
    assert facts.name == "gpu1"
    assert facts.types["cpu"][0].capacity == 24 * THOUSAND
    assert facts.types["mem"][0].capacity == 32000
    assert [(gpu.name, gpu.uuid) for gpu in facts.types["gpu"]] == [("0", "GPU-a"), ("1", "GPU-b")]
    assert "gpu" not in parse(b"cores 2\n").node_facts("plain").types


def test_without_the_available_memory_no_use_is_assumed() -> None:
    look = parse(b"MemTotal: 2048 kB\n")
    assert (look.memory_total, look.memory_available, look.complete) == (2, 2, False)


def test_no_command_line_reaches_a_terminal_as_it_is() -> None:
    look = parse(b"owner 5 5 eve - \x1b[2Jvim \xff\xfe\n")
    assert look.owners[5].command == "[2Jvim \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


LINES = st.lists(
    st.tuples(
        st.sampled_from([line.split(" ")[0].encode() for line in WHOLE.splitlines()]),
        st.sampled_from([b" ", b"", b" , ", b" -1 "]),
        st.binary(max_size=40) | st.text("0123456789-,. %", max_size=40).map(str.encode),
    ).map(b"".join),
    max_size=20,
).map(b"\n".join)


@given(st.binary(max_size=500) | LINES)
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    try:
        look = parse(text)
    except BadReport:
        return
    msgspec.json.encode(look.node_facts("any"))  # as the journal does
    build_samples(look.reading, look.owner_lookup("abc", {}), look.identify)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("cores 999999999999999", "999999999999999 cores"),
        ("MemTotal: 999999999999999 kB", "MiB of memory"),
        ("home relative", "home directory"),
        ("home /a\0b", "home directory"),
        (f"home /{'x' * 5000}", "home directory"),
        ("\n".join(f"gpu {n}, GPU-{n}, Tesla, 1, 0, 0, 0, 0" for n in range(257)), "256 GPUs"),
    ],
)
def test_what_no_node_has_is_refused(line: str, why: str) -> None:
    with pytest.raises(BadReport, match=why):
        parse(f"{line}\n{WHOLE}".encode())


def test_numbers_and_texts_from_a_node_are_bounded() -> None:
    text = WHOLE.replace("81920, 400", f"{'9' * 15}, {'9' * 15}").replace(
        "GPU-b", "GPU-" + "b" * 200
    )
    text = text.replace("abc.7.1", f"abc.{'9' * 5000}.1").replace("alice", "a" * 900)
    text = text.replace("A100-SXM4-80GB", "\x1b[2J\u202e" + "x" * 300)
    text = text.replace("MemTotal:       32768000", "MemTotal:       \u0663\u0663")
    look = parse(text.encode())
    assert [gpu.uuid for gpu in look.reading.facts] == ["GPU-a"]
    assert look.reading.facts[0].memory is None
    assert look.reading.use[0].memory_used is None
    assert len(look.reading.facts[0].model) == 100
    assert look.reading.facts[0].model.isprintable()
    assert look.memory_total == 0
    assert len(look.owners[78].user) == 100
    assert 77 not in look.owners or look.owner_lookup("abc", {})(77) == UNKNOWN_ATTEMPT


def test_two_gpus_with_one_index_are_one() -> None:
    look = parse(WHOLE.replace("1, GPU-b", "0, GPU-b").encode())
    assert [gpu.uuid for gpu in look.reading.facts] == ["GPU-a"]


def test_a_token_with_a_number_out_of_bounds_names_no_attempt() -> None:
    assert parse_token(f"abc.{'9' * 5000}.0", "abc") == UNKNOWN_ATTEMPT
    assert parse_token("abc.\u0663.0", "abc") == UNKNOWN_ATTEMPT
    assert parse_token("abc.7.1.", "abc") == (7, 1)


@given(st.integers(0, len(WHOLE)))
def test_a_look_cut_anywhere_is_known_to_be(length: int) -> None:
    assert parse(WHOLE[:length].encode()).complete == (length >= len(WHOLE) - 1)
