"""Measurements of a remote node by a shell: the output of measure.sh and its parser."""

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
from stoker.core.model.units import THOUSAND
from stoker.executors.linux.procfs import read_stat
from stoker.probes import host
from stoker.probes.gpu_samples import UNKNOWN_ATTEMPT, build_samples, parse_token
from stoker.probes.remote_facts import BadReport, ProcessOwner, RemoteFacts, parse

PLACE = Path(stoker.executors.agent.session.__file__).parent
MEASURE = (PLACE / "measure.sh").read_text()
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
    """Return the text of one function of the agent."""
    match = re.search(rf"^{name}\(\) \{{(?: .*\}}$|\n(?:.*\n)*?\}}$)", AGENT, re.MULTILINE)
    assert match, name
    return match[0]


class FakeHost:
    """A fake node: its home directory, a shell, and an nvidia-smi of the test."""

    def __init__(self, base: Path, shell: list[str]) -> None:
        self.shell, self.bin, self.root = shell, base / "bin", base / "home" / ".stoker"
        self.run = self.root / "run" / "node"
        self.run.mkdir(parents=True)
        self.bin.mkdir()

    def driver(
        self, gpus: str, apps: str = "", code: int = 0, first: str = "", health: str = ""
    ) -> None:
        """Write an nvidia-smi with this output; without `health` it is an old one."""
        (self.bin / "gpus").write_text(gpus)
        (self.bin / "health").write_text(health or 'Field "x" is not a valid field to query.\n')
        (self.bin / "apps").write_text(apps)
        text = f"""#!/bin/sh
{first}
case $* in
    *ecc.errors*) cat '{self.bin}/health'; exit {code if health else 2} ;;
    *--query-gpu=*) cat '{self.bin}/gpus'; exit {code} ;;
    *--query-compute-apps=*) cat '{self.bin}/apps'; exit {code} ;;
esac
"""
        (self.bin / "nvidia-smi").write_text(text)
        (self.bin / "nvidia-smi").chmod(0o755)

    def run_agent(self, *lines: str, **env: str) -> list[str]:
        """Run functions of the agent; return its notifications."""
        text = "\n".join(
            (
                "exec 9>&1 8>&2 2>/dev/null; set -f; NONCE=nonce; BOOT=boot-id",
                f"BASE='{self.root}'; RUN='{self.run}'",
                function("notify"), function("read_start_time"), MEASURE, *lines,
            )
        )  # fmt: skip
        done = subprocess.run(
            [*self.shell, "-c", text], capture_output=True, text=True, errors="surrogateescape",
            timeout=60, check=False,
            env={"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.root.parent), **env},
        )  # fmt: skip
        return done.stdout.splitlines()

    def measure(self, **env: str) -> RemoteFacts:
        """Return a parsed measurement."""
        *lines_sent, last = self.run_agent("measure", "wait", **env)
        assert last == "nonce - reading-end"
        lines = [line.removeprefix("nonce - reading ") for line in lines_sent]
        return parse("\n".join(lines).encode(errors="surrogateescape"))


@pytest.fixture(params=SHELLS)
def host_under_test(request: pytest.FixtureRequest, tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, request.param)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of an attempt, with a line break and a blank in its arguments."""
    environment = {"PATH": os.environ["PATH"], "A": "b\nc", "STOKER_TOKEN": "abc.7.1"}
    words = ["sh", "-c", "read x", "a word", "two\nlines", "x" * 300]
    started = subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, start_new_session=True
    )
    yield started
    started.kill()
    started.communicate()


def test_a_node_without_gpus_reports_its_resources(host_under_test: FakeHost) -> None:
    reading = host_under_test.measure(
        SSH_CONNECTION="10.0.0.1 5000 fe80::2%eth0 22", OMP_NUM_THREADS="1"
    )
    assert reading.complete
    assert (reading.boot, reading.home) == ("boot-id", str(host_under_test.root.parent))
    assert reading.cores == host.cores()
    assert reading.memory_total == host.memory_mib()
    assert 0 < reading.memory_available <= reading.memory_total
    assert 0 < reading.jiffies[0] < reading.jiffies[1]
    assert reading.tools >= {"tar"}
    assert reading.disk_free > 0
    assert (reading.client, reading.address) == ("10.0.0.1", "fe80::2%eth0")
    if shutil.which("nvidia-smi") is None:
        assert (reading.reading.facts, reading.reading.error, reading.hung) == ((), None, False)


def test_gpus_are_read_with_their_processes(
    host_under_test: FakeHost, process: "subprocess.Popen[bytes]"
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    pid = process.pid
    host_under_test.driver(GPUS, f"GPU-a, {pid}, 300\nGPU-b, {pid}, 5\nGPU-a, {dead.pid}, 9\n")
    reading = host_under_test.measure()
    assert [gpu.model for gpu in reading.reading.facts] == [
        "NVIDIA A100-SXM4-80GB", "Tesla, the second",
    ]  # fmt: skip
    assert reading.owners.keys() == {pid}  # without the dead one
    owner = reading.owners[pid]
    assert owner.user == host.user_name(os.getuid())
    assert (owner.token, owner.session) == ("abc.7.1", pid)
    assert owner.command.startswith("sh -c read x a word two lines xxx")
    assert len(owner.command) == 200
    sample = build_samples(reading.reading, reading.owner_lookup("abc", {}), reading.identify)[
        "GPU-a"
    ].sample
    assert (sample.ours_memory, sample.foreign_processes) == (300, ())
    assert not list(host_under_test.run.glob("driver*"))


def test_a_query_of_a_hanging_driver_times_out_and_is_killed(host_under_test: FakeHost) -> None:
    host_under_test.driver(GPUS, first="exec sleep 300")
    reading = host_under_test.measure(DRIVER_TIMEOUT="1")
    assert reading.complete
    assert reading.hung
    assert reading.reading.error == "the GPU driver has not answered"
    pid, _ = (host_under_test.run / "stuck").read_text().split()
    until(lambda: state_of(int(pid)) in "ZX")


def test_the_driver_is_not_queried_while_an_earlier_query_is_blocked(
    host_under_test: FakeHost,
) -> None:
    host_under_test.driver(GPUS, first=f"touch '{host_under_test.bin}/asked'")
    stat = read_stat(os.getpid())
    assert stat is not None
    (host_under_test.run / "stuck").write_text(f"{os.getpid()} {stat.start_ticks}\n")
    assert host_under_test.measure().hung
    assert not (host_under_test.bin / "asked").exists()
    (host_under_test.run / "stuck").write_text(f"{os.getpid()} {stat.start_ticks + 1}\n")
    assert len(host_under_test.measure().reading.facts) == 2


def test_an_error_of_the_driver_is_quoted(host_under_test: FakeHost) -> None:
    host_under_test.driver("NVIDIA-SMI has failed.\n\n", "NVIDIA-SMI has failed.\n", code=9)
    reading = host_under_test.measure()
    assert (reading.reading.error, reading.hung, reading.reading.facts) == (
        "NVIDIA-SMI has failed.", False, (),
    )  # fmt: skip
    host_under_test.driver("No devices were found\n", "No devices were found\n", code=6)
    assert host_under_test.measure().reading.error is None


def test_health_of_gpus_and_recent_faults_are_read(host_under_test: FakeHost) -> None:
    uptime = int(float(Path("/proc/uptime").read_text().split()[0]))
    log = host_under_test.bin / "dmesg"
    log.write_text(f"""#!/bin/sh
cat <<'EOF'
[{uptime - 90_000:5d}.1] NVRM: Xid (PCI:0000:01:00): 79, pid=7, GPU has fallen off the bus.
[{uptime - 50:5d}.123456] NVRM: Xid (PCI:0000:C1:00): 31, pid=7, name=python, a fault
[{uptime - 5:5d}.5] NVRM: Xid (PCI:0000:c1:00): 48, pid='<unknown>', DBE
[{uptime:5d}.5] usb 1-1: NVRM
EOF
""")
    log.chmod(0o755)
    host_under_test.driver(
        GPUS,
        health="""\
0, GPU-a, 00000000:01:00.0, 2, Not Active, NVIDIA A100, with, commas, 81920, 400, 7, 40, 61.25
1, GPU-b, 00000000:C1:00.0, [N/A], Active, Tesla, [N/A], [Not Supported], [N/A], [N/A], [N/A]
2, GPU-c, lost, lost, lost, Tesla, 1, 2, 3, 4, 5
3, GPU-d
""",
    )
    reading = host_under_test.measure().reading
    assert [gpu.model for gpu in reading.facts] == ["NVIDIA A100, with, commas", "Tesla", "Tesla"]
    # busybox prefers its own dmesg.
    xid = 48 if host_under_test.shell[0] != "busybox" else reading.use[1].xid
    assert [(use.ecc_errors, use.is_slowed, use.xid) for use in reading.use] == [
        (2, False, None), (None, True, xid), (None, None, None),
    ]  # fmt: skip
    assert reading.error == "3, GPU-d"
    assert reading.use[0].utilization == 7


def test_a_kernel_log_that_may_not_be_read_has_no_faults(host_under_test: FakeHost) -> None:
    log = host_under_test.bin / "dmesg"
    log.write_text("#!/bin/sh\necho 'dmesg: read kernel buffer failed' >&2\nexit 1\n")
    log.chmod(0o755)
    host_under_test.driver(GPUS)
    reading = host_under_test.measure()
    assert reading.complete
    assert [(use.xid, use.ecc_errors) for use in reading.reading.use] == [(None, None)] * 2


def test_a_driver_that_cannot_list_processes_is_recognised(host_under_test: FakeHost) -> None:
    host_under_test.driver(GPUS, "[Not Supported]\n")
    assert not host_under_test.measure().reading.use[0].processes_known
    host_under_test.driver(GPUS)
    assert host_under_test.measure().reading.use[0].processes_known


def test_only_one_measurement_runs_at_a_time(host_under_test: FakeHost) -> None:
    host_under_test.driver(
        GPUS, first=f"until [ -e '{host_under_test.bin}/go' ]; do sleep 0.05; done"
    )
    notifications = host_under_test.run_agent(
        "measure", "measure", f": >'{host_under_test.bin}/go'", "wait", "measure", "wait"
    )
    assert (
        notifications.count("nonce - reading-end")
        == notifications.count("nonce - reading end")
        == 2
    )


def test_the_agents_loop_continues_while_the_driver_is_queried(host_under_test: FakeHost) -> None:
    host_under_test.driver(
        GPUS, first=f"until [ -e '{host_under_test.bin}/go' ]; do sleep 0.05; done"
    )
    notifications = host_under_test.run_agent(
        "measure", "notify meanwhile", f": >'{host_under_test.bin}/go'", "wait"
    )
    assert notifications.index("nonce - meanwhile") < notifications.index("nonce - reading end")
    assert notifications[-1] == "nonce - reading-end"


def test_a_measurement_needs_no_disk(host_under_test: FakeHost) -> None:
    shutil.rmtree(host_under_test.run)
    host_under_test.driver(GPUS)
    assert host_under_test.measure().complete


# -- reading ----------------------------------------------------------------------------


def test_a_measurement_is_parsed() -> None:
    reading = parse(WHOLE.encode())
    assert reading.complete
    assert (reading.boot, reading.home, reading.cores) == ("11-22", "/home/me", 24)
    assert reading.tools == {"bash", "tar"}
    assert (reading.memory_total, reading.memory_available) == (32000, 16000)
    assert reading.jiffies == (156, 1006)  # without `guest`, which `user` includes
    assert (reading.load1, reading.disk_free) == (1.5, 2000)
    assert (reading.client, reading.address) == ("10.0.0.1", "10.0.0.2")


def test_mls_53_values_that_the_driver_does_not_know_are_none() -> None:
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
    reading = parse(WHOLE.encode())
    seen = build_samples(reading.reading, reading.owner_lookup("abc", {}), reading.identify)[
        "GPU-a"
    ]
    sample = seen.sample
    assert seen.shares == {(7, 1): 300}
    assert (sample.ours, sample.ours_memory) == (True, 300)
    assert [(s.pid, s.user, s.command) for s in sample.foreign_processes] == [
        (78, "alice", "/usr/bin/python x")
    ]
    assert reading.owner_lookup("abc", {})(77) == (7, 1)
    assert reading.owner_lookup("other", {70: (8, 2)})(77) == (8, 2)
    assert reading.owner_lookup("ab", {1: (8, 2)})(77) is None
    assert reading.owner_lookup("abc", {71: (9, 0)})(78) == (9, 0)
    assert reading.owners[80] == ProcessOwner()  # it exists and is hidden


def test_the_node_has_pools_and_gpus() -> None:
    facts = parse(WHOLE.encode()).node_facts("gpu1")
    assert facts.name == "gpu1"
    assert facts.types["cpu"][0].capacity == 24 * THOUSAND
    assert facts.types["mem"][0].capacity == 32000
    assert [(gpu.name, gpu.uuid) for gpu in facts.types["gpu"]] == [("0", "GPU-a"), ("1", "GPU-b")]
    assert "gpu" not in parse(b"cores 2\n").node_facts("plain").types


def test_without_the_available_memory_no_use_is_assumed() -> None:
    reading = parse(b"MemTotal: 2048 kB\n")
    assert (reading.memory_total, reading.memory_available, reading.complete) == (2, 2, False)


def test_control_characters_of_command_lines_are_replaced() -> None:
    reading = parse(b"owner 5 5 eve - \x1b[2Jvim \xff\xfe\n")
    assert reading.owners[5].command == "[2Jvim \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


LINES = st.lists(
    st.tuples(
        st.sampled_from([line.split(" ")[0].encode() for line in WHOLE.splitlines()]),
        st.sampled_from([b" ", b"", b" , ", b" -1 "]),
        st.binary(max_size=40) | st.text("0123456789-,. %", max_size=40).map(str.encode),
    ).map(b"".join),
    max_size=20,
).map(b"\n".join)


@given(st.binary(max_size=500) | LINES)
def test_any_bytes_are_parsed_or_rejected(text: bytes) -> None:
    try:
        reading = parse(text)
    except BadReport:
        return
    msgspec.json.encode(reading.node_facts("any"))  # as for the journal
    build_samples(reading.reading, reading.owner_lookup("abc", {}), reading.identify)


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
def test_impossible_values_are_rejected(line: str, why: str) -> None:
    with pytest.raises(BadReport, match=why):
        parse(f"{line}\n{WHOLE}".encode())


def test_numbers_and_texts_from_a_node_are_bounded() -> None:
    text = WHOLE.replace("81920, 400", f"{'9' * 15}, {'9' * 15}").replace(
        "GPU-b", "GPU-" + "b" * 200
    )
    text = text.replace("abc.7.1", f"abc.{'9' * 5000}.1").replace("alice", "a" * 900)
    text = text.replace("A100-SXM4-80GB", "\x1b[2J\u202e" + "x" * 300)
    text = text.replace("MemTotal:       32768000", "MemTotal:       \u0663\u0663")
    reading = parse(text.encode())
    assert [gpu.uuid for gpu in reading.reading.facts] == ["GPU-a"]
    assert reading.reading.facts[0].memory is None
    assert reading.reading.use[0].memory_used is None
    assert len(reading.reading.facts[0].model) == 100
    assert reading.reading.facts[0].model.isprintable()
    assert reading.memory_total == 0
    assert len(reading.owners[78].user) == 100
    assert 77 not in reading.owners or reading.owner_lookup("abc", {})(77) == UNKNOWN_ATTEMPT


def test_two_gpus_with_one_index_are_one() -> None:
    reading = parse(WHOLE.replace("1, GPU-b", "0, GPU-b").encode())
    assert [gpu.uuid for gpu in reading.reading.facts] == ["GPU-a"]


def test_a_token_with_a_number_out_of_bounds_names_no_attempt() -> None:
    assert parse_token(f"abc.{'9' * 5000}.0", "abc") == UNKNOWN_ATTEMPT
    assert parse_token("abc.\u0663.0", "abc") == UNKNOWN_ATTEMPT
    assert parse_token("abc.7.1.", "abc") == (7, 1)


@given(st.integers(0, len(WHOLE)))
def test_a_truncated_measurement_is_recognised(length: int) -> None:
    assert parse(WHOLE[:length].encode()).complete == (length >= len(WHOLE) - 1)


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [("GPU-a,GPU-b", ["GPU-a", "GPU-b"]), ("all", ["p-0", "p-1"]), ("GPU-a", ["GPU-a", "p-1"])],
)
def test_the_gpus_of_a_pilot_have_the_uuids_that_a_device_plugin_names(
    host_under_test: FakeHost, visible: str, uuids: list[str]
) -> None:
    lines = host_under_test.run_agent(
        "uname() { echo p; }", "print_unlisted_gpus >&9", PILOT_GPUS="0,1",
        NVIDIA_VISIBLE_DEVICES=visible,
    )  # fmt: skip
    assert [line.split(", ")[1] for line in lines] == uuids
