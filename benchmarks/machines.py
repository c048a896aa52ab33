"""SSH nodes compared with a new ssh or scp connection for every step."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.delay import delayed_relay
from benchmarks.home import Home, program
from benchmarks.lab import REPOSITORY, Broken, fresh_directory, run
from benchmarks.report import median, table, verdict
from benchmarks.settings import Settings
from benchmarks.throughput import say

EXAMPLE = REPOSITORY / "examples/ssh-batch"
BATCH_LIMIT, RATE, ROUND_TRIPS, TREE_RATIO = 1.5, 100.0, 2.0, 1.3
DELAY = 0.05
"""Delay each way, in seconds, for counting round trips."""


def measure(settings: Settings) -> dict[str, Any]:
    """Run all parts on three SSH nodes in network namespaces of this host."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from ssh.ssh_cluster import SshCluster, why_no_lab  # type: ignore[import-not-found]

    why = why_no_lab()
    if why:
        return {"missing": {"stoker: machines": why}}
    results: dict[str, Any] = {}
    rows: list[list[str]] = []
    with (
        fresh_directory(settings.runs) as directory,
        contextlib.closing(SshCluster(directory)) as lab,
    ):
        for name, take in (
            ("batch", batches),
            ("queue", queue),
            ("round trips", round_trips),
            ("tree", large_directory),
        ):
            say(f"machines: {name}")
            results[name], found = take(lab, settings)
            rows += found
    print("\n" + table(["machines over SSH", "stoker", "fresh ssh", "ratio", "promise"], rows))
    return results


@contextlib.contextmanager
def ssh_home(lab: Any, settings: Settings, machines: str = "") -> Iterator[Home]:
    """Yield a home whose daemon can reach the nodes, with these nodes added."""
    with fresh_directory(settings.runs) as directory:
        found = Home(directory)
        found.environment |= lab.environment
        found.start(1)
        try:
            for name in machines:
                machine = getattr(lab, name)
                found.stoker("nodes", "add", name, machine.url, "--key", str(machine.key))
            yield found
        finally:
            found.stop()


def alternate(
    rounds: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Return the seconds of both, alternating the order."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            taken[which].append((ours, theirs)[which]())
    return taken


# -- the example batch --------------------------------------------------------------------


def batches(lab: Any, settings: Settings) -> tuple[dict[str, Any], list[list[str]]]:
    """Measure the example batch of four lines, from the command to the last result."""
    with ssh_home(lab, settings) as found:
        cold: list[float] = []

        def ours() -> float:
            work = _example(found.directory, lab)
            argv = [str(program("execute_batch")), "batch_script.sh",
                    "--machines", "machine.yaml", "machine2.yaml", "--no-gpu-required",
                    "--memory-required", "100"]  # fmt: skip
            done = run(argv, directory=work, env=found.environment, check=False)
            _expect(work)
            return done.seconds

        def theirs() -> float:
            return _plain_ssh_batch(_example(found.directory, lab), lab)

        taken = alternate(settings.rounds, ours, theirs)
        for _ in range(settings.rounds):
            found.stop()
            cold.append(ours())
    mine, fresh = median(taken[0]), median(taken[1])
    row = [
        ["example batch, daemon up, s", f"{mine:.2f}", f"{fresh:.2f}", f"{mine / fresh:.2f}",
         f"≤ {BATCH_LIMIT} s {verdict(mine, BATCH_LIMIT)}"],
        ["example batch, with its start, s", f"{median(cold):.2f}", f"{fresh:.2f}",
         f"{median(cold) / fresh:.2f}", f"≤ {BATCH_LIMIT} s {verdict(median(cold), BATCH_LIMIT)}"],
    ]  # fmt: skip
    return {"stoker": taken[0], "fresh ssh": taken[1], "with start": cold}, row


def _example(directory: Path, lab: Any) -> Path:
    """Copy the example with the test nodes in its machine files."""
    work = directory / f"batch{time.monotonic_ns()}"
    work.mkdir()
    for name in ("batch_script.sh", "local.sh"):
        (work / name).write_bytes((EXAMPLE / name).read_bytes())
    for name, machine in (("machine", lab.a), ("machine2", lab.b)):
        (work / f"{name}.yaml").write_text(
            f"username: {machine.user}\nip: {machine.address}\nport: {machine.port}\n"
            f"ssh_key_path: {machine.key}\n"
        )
    return work


def _expect(work: Path) -> None:
    results = work / "job_results"
    outs = sorted(results.glob("*.out"))
    if len(outs) != 4 or outs[0].read_text() != "one job\n":
        raise Broken(f"{len(outs)} results of four")


def _plain_ssh_batch(work: Path, lab: Any) -> float:
    """Run a batch with six connections per job: mkdir, copy, run, pack, copy back, remove."""
    options = ["-T", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", "-oLogLevel=ERROR",
               f"-oUserKnownHostsFile={lab.known_hosts}", "-i", str(lab.key)]  # fmt: skip
    environment = {**os.environ, **lab.environment}

    def ssh(machine: Any, line: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["ssh", *options, machine.url, line], env=environment, check=False,
                              capture_output=True, stdin=subprocess.DEVNULL)  # fmt: skip

    def scp(source: str, target: str, machine: Any) -> None:
        subprocess.run(["scp", "-q", *options[1:], f"-P{machine.port}", source, target],
                       env=environment, check=True, capture_output=True)  # fmt: skip

    def job(number: int, line: str) -> None:
        machine = (lab.a, lab.b)[number % 2]
        name, where = f"batch_script.sh.{number + 1}", f"{machine.user}@{machine.address}:"
        tar = work / f"{name}.tar"
        subprocess.run(["tar", "-cf", str(tar), "--exclude", "*.tar", "-C", str(work), "."],
                       check=False, capture_output=True)  # fmt: skip
        ssh(machine, f"mkdir -p job_data/{name}")
        scp(str(tar), f"{where}{name}.tar", machine)
        done = ssh(machine, f"cd job_data/{name} && tar -xf ~/{name}.tar && bash -ic"
                            f" {shlex.quote(line)}")  # fmt: skip
        (work / "job_results").mkdir(exist_ok=True)
        (work / "job_results" / f"{name}.out").write_bytes(done.stdout)
        ssh(machine, f"cd job_data/{name} && tar -cf ~/{name}.back.tar .")
        scp(f"{where}{name}.back.tar", str(work / f"{name}.back.tar"), machine)
        ssh(machine, f"rm -rf job_data/{name} {name}.tar {name}.back.tar")

    begin = time.perf_counter()
    probe = "top -n1 -b -i >/dev/null; lscpu >/dev/null"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda machine: ssh(machine, probe), (lab.a, lab.b)))
        lines = (work / "batch_script.sh").read_text().splitlines()
        list(pool.map(job, range(len(lines)), lines))
    return time.perf_counter() - begin


# -- many small jobs ----------------------------------------------------------------------


def queue(lab: Any, settings: Settings) -> tuple[dict[str, Any], list[list[str]]]:
    """Measure many `true` on three nodes, from the submission to the last end."""
    jobs = 100 if settings.quick else 500
    with ssh_home(lab, settings, "abc") as found:
        here = json.loads(found.stoker("nodes", "--json").output)["nodes"][0]["name"]
        work = found.directory / "work"
        work.mkdir()
        lines = work / "lines"
        lines.write_text("true\n" * jobs)

        def ours() -> float:
            begin = time.perf_counter()
            words = ("submit", "-D", str(work), "-x", here, "--each-line", str(lines))
            said = found.stoker(*words).output.strip()
            found.stoker("wait", said)
            return time.perf_counter() - begin

        def theirs() -> float:
            begin = time.perf_counter()
            machines = [lab.a, lab.b, lab.c]
            with ThreadPoolExecutor(6) as pool:
                some = jobs // 10  # a tenth of them, extrapolated
                ends = pool.map(lambda n: lab.ssh(machines[n % 3], "true").returncode, range(some))
                if any(ends):
                    raise Broken("a plain ssh failed")
            return (time.perf_counter() - begin) * 10

        taken = alternate(min(settings.rounds, 3), ours, theirs)
    rates = [jobs / median(each) for each in taken]
    row = [f"{jobs} × true on 3 machines, jobs/s", f"{rates[0]:.0f}", f"{rates[1]:.0f}",
           f"{rates[0] / rates[1]:.1f}", f"≥ {RATE:.0f} {verdict(RATE, rates[0])}"]  # fmt: skip
    return {"jobs": jobs, "stoker": taken[0], "fresh ssh": taken[1]}, [row]


# -- round trips --------------------------------------------------------------------------


def round_trips(lab: Any, settings: Settings) -> tuple[dict[str, Any], list[list[str]]]:
    """Measure the extra time per job on a connection with a known delay."""
    jobs = 10

    def seconds(address: str) -> float:
        with ssh_home(lab, settings) as found:
            found.stoker("nodes", "add", "far", address, "--key", str(lab.a.key))
            work = found.directory / "work"
            work.mkdir()
            lines = work / "lines"
            lines.write_text("true\n" * jobs)
            alone = ("-D", str(work), "-w", "far", "--exclusive")
            found.stoker("submit", *alone, "--wait", "true")
            begin = time.perf_counter()
            said = found.stoker("submit", *alone, "--each-line", str(lines))
            found.stoker("wait", said.output.strip())
            return (time.perf_counter() - begin) / jobs

    near = seconds(lab.a.url)
    with delayed_relay(lab.a.address, lab.a.port, DELAY) as port:
        far = seconds(f"ssh://{lab.a.user}@127.0.0.1:{port}")
    trips = (far - near) / (2 * DELAY)
    row = ["round trips per job", f"{trips:.1f}", "–", "–",
           f"≤ {ROUND_TRIPS:.0f} {verdict(trips, ROUND_TRIPS + 0.2)}"]  # fmt: skip
    return {"near": near, "far": far, "round trips": trips}, [row]


# -- a large directory --------------------------------------------------------------------


def large_directory(lab: Any, settings: Settings) -> tuple[dict[str, Any], list[list[str]]]:
    """Measure the upload of 2,000 files and 200 MB, compared with rsync."""
    from stoker.executors.agent.session.remote_shell import RemoteShell
    from stoker.executors.agent.transfer import snapshot as trees
    from stoker.executors.agent.transfer.tree_upload import send
    from stoker.executors.ssh.address import parse_address
    from stoker.executors.ssh.transport import SshTransport

    files, big = (200, 1) if settings.quick else (2000, 4)
    with fresh_directory(settings.runs) as directory:
        source = directory / "source"
        for number in range(files):
            path = source / f"d{number % 40}" / f"f{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(1500))
        for number in range(big):
            (source / f"big{number}").write_bytes(os.urandom(50 << 20))
        address = parse_address(lab.a.url, str(lab.a.key))
        control = str(directory / "control")
        os.environ["PATH"] = lab.environment["PATH"]
        master = subprocess.Popen(
            [*address.command(control, "-oControlMaster=yes", "-N")], stdin=subprocess.DEVNULL
        )
        try:
            _wait_for(Path(control))

            def ours() -> float:
                root = f"{lab.a.home_there}/ours{time.monotonic_ns()}"
                begin = time.perf_counter()
                found = trees.take_snapshot(str(source))
                send(RemoteShell(SshTransport(address, control), root, has_rsync=True), found)
                return time.perf_counter() - begin

            def theirs() -> float:
                known = f"-oUserKnownHostsFile={lab.known_hosts} -oStrictHostKeyChecking=accept-new"
                ssh = f"ssh -i {lab.key} -p {lab.a.port} {known}"
                target = f"{lab.a.user}@{lab.a.address}:theirs{time.monotonic_ns()}"
                begin = time.perf_counter()
                subprocess.run(["rsync", "-a", "-e", ssh, f"{source}/", target], check=True,
                               capture_output=True)  # fmt: skip
                return time.perf_counter() - begin

            taken = alternate(settings.rounds, ours, theirs)
        finally:
            master.kill()
            master.wait()
    mine, plain = median(taken[0]), median(taken[1])
    ratio = mine / plain
    row = [f"{files} files + {50 * big} MB, s (beside: rsync)", f"{mine:.2f}", f"{plain:.2f}",
           f"{ratio:.2f}", f"≤ {TREE_RATIO} {verdict(ratio, TREE_RATIO)}"]  # fmt: skip
    return {"stoker": taken[0], "rsync": taken[1]}, [row]


def _wait_for(path: Path) -> None:
    for _ in range(200):
        if path.exists():
            return
        time.sleep(0.05)
    raise Broken(f"{path.name} did not appear")
