"""Short jobs on a Slurm cluster: stoker's pilots and handed-over jobs beside plain sbatch."""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lab import REPOSITORY, Broken, fresh_directory
from benchmarks.report import median, percentile, table, verdict
from benchmarks.settings import Settings
from benchmarks.slurm_peers import (
    GPUS_PER_NODE,
    PILOTS,
    Bed,
    Pilots,
    SbatchLoop,
    SlurmPeer,
    all_peers,
)
from benchmarks.throughput import say

NODES = ("n1", "n2", "n3", "n4")
SLOTS = len(NODES) * GPUS_PER_NODE
BATCH = 50
BATCH_KINDS = ("new pilot", "pilot that is there", "sbatch")
RATIO = "time per job / pilots"
MIN_BATCH_RATIO = 3.0
MAX_SLOT_SECONDS = 0.1
"""For each job of that batch, in each slot of a pilot that is there."""

# The device is the GPU of a node; a pilot is on a node of its own.
SLEEP = (
    "begin=$(date +%s.%N); sleep 1; "
    'echo "${{SLURMD_NODENAME-}}${{STOKER_PILOT-}}.$CUDA_VISIBLE_DEVICES $begin $(date +%s.%N)" '
    ">>{directory}/stamps"
)


def measure(settings: Settings) -> dict[str, Any]:
    """Run all parts on one cluster of this host, after one another."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from slurm.slurm_cluster import TOOLS, SlurmCluster  # type: ignore[import-not-found]

    peers = all_peers()
    absent = {peer.name: why for peer in peers if (why := peer.prepare(settings.cache))}
    lacking = [tool for tool in TOOLS if tool.startswith("/") and not Path(tool).exists()]
    if lacking:
        why = f"no {lacking[0]}; as root: apt-get install slurm-wlm"
        return {"missing": {peer.name: why for peer in peers}}
    with (
        fresh_directory(settings.runs) as directory,
        contextlib.closing(SlurmCluster(directory, nodes=NODES)) as cluster,
    ):
        part = _Measurement(settings, cluster, peers, absent)
        short = part.many("true", min(settings.jobs, 100 if settings.quick else 1000), 0.0)
        long = part.many(SLEEP, 40 if settings.quick else 200, 1.0)
        batch = part.batch(min(settings.rounds, 2))
    report(short, long, batch, absent)
    return {"true": short, "sleep 1": long, "batch": batch, "missing": absent}


class _Measurement:
    """The cluster and what could not be measured on it."""

    def __init__(
        self, settings: Settings, cluster: Any, peers: list[SlurmPeer], absent: dict[str, str]
    ) -> None:
        self.settings, self.cluster, self.peers, self.absent = settings, cluster, peers, absent

    @contextlib.contextmanager
    def opened(self, peer: SlurmPeer, nodes: int = len(NODES)) -> Iterator[Bed]:
        """Yield a fresh directory for a run of a peer; end its jobs afterwards."""
        with fresh_directory(self.settings.runs) as directory:
            self.cluster.set_home(directory)
            bed = Bed(self.cluster, directory)
            try:
                with peer.opened(bed, nodes):
                    yield bed
            finally:
                self.cluster.cancel_all()
                bed.wait()

    def many(self, command: str, jobs: int, seconds: float) -> dict[str, dict[str, Any]]:
        """Run a command many times on all nodes, by every peer; return what was measured."""
        found: dict[str, dict[str, Any]] = {}
        for peer in self.peers:
            if peer.name in self.absent:
                continue
            count = min(jobs, peer.max_jobs)
            try:
                with self.opened(peer) as bed:
                    taken = timed(peer, bed, command.format(directory=bed.directory), count)
                    stamps = bed.directory / "stamps"
                    gaps = gaps_of(stamps, count) if seconds else []
            except Broken as error:
                self.absent[peer.name] = str(error)
                continue
            overhead = (taken - seconds * count / SLOTS) * SLOTS / count
            found[peer.name] = {
                "jobs": count, "seconds": taken, "overhead": overhead, "gaps": gaps
            }  # fmt: skip
            say(f"slurm: {peer.name}: {count} jobs in {taken:.1f} s")
        return found

    def batch(self, rounds: int) -> dict[str, list[float]]:
        """Run a small batch in a new pilot, then again in it, and as sbatch jobs, in turn."""
        found: dict[str, list[float]] = {name: [] for name in BATCH_KINDS}
        pilots, plain = Pilots(), SbatchLoop()
        try:
            for _ in range(rounds):
                with self.opened(pilots, nodes=1) as bed:
                    for name in BATCH_KINDS[:2]:
                        found[name].append(timed(pilots, bed, "true", BATCH))
                with self.opened(plain) as bed:
                    found[BATCH_KINDS[2]].append(timed(plain, bed, "true", BATCH, NODES[0]))
        except Broken as error:
            self.absent["stoker: small batch"] = str(error)
        return found


def timed(peer: SlurmPeer, bed: Bed, command: str, jobs: int, node: str = "") -> float:
    """Return the seconds of a run."""
    begin = time.perf_counter()
    peer.run(bed, command, jobs, node)
    return time.perf_counter() - begin


def gaps_of(stamps: Path, jobs: int) -> list[float]:
    """Return the seconds between consecutive jobs of each GPU; overlaps are an error."""
    devices: dict[str, list[tuple[float, float]]] = {}
    lines = stamps.read_text(encoding="utf-8").splitlines() if stamps.exists() else []
    for line in lines:
        device, begin, end = line.split()
        devices.setdefault(device, []).append((float(begin), float(end)))
    if sum(map(len, devices.values())) != jobs or len(devices) > SLOTS:
        raise Broken(
            f"{stamps.name} does not have one line for each of {jobs} jobs on {SLOTS} GPUs"
        )
    gaps = []
    for runs in devices.values():
        runs.sort()
        gaps += [later[0] - earlier[1] for earlier, later in itertools.pairwise(runs)]
    if min(gaps, default=0.0) < 0:
        raise Broken("two jobs used one GPU at the same time")
    return gaps


def report(
    short: dict[str, dict[str, Any]],
    long: dict[str, dict[str, Any]],
    batch: dict[str, list[float]],
    absent: dict[str, str],
) -> None:
    """Print the tables."""
    rows = [
        [name, str(taken["jobs"]), f"{taken['seconds']:.1f}", f"{taken['overhead']:.3f}",
         ratio_of(taken, short)]
        for name, taken in short.items()
    ]  # fmt: skip
    print(f"\nSlurm: `true` on {len(NODES)} nodes with {GPUS_PER_NODE} GPUs each, one per job\n")
    print(table(["", "jobs", "s", "s per slot and job", RATIO], rows))
    rows = [
        [name, str(taken["jobs"]), f"{taken['seconds']:.1f}", f"{taken['overhead']:.2f}",
         f"{median(taken['gaps']):.2f}", f"{percentile(taken['gaps'], 95):.2f}",
         ratio_of(taken, long)]
        for name, taken in long.items()
    ]  # fmt: skip
    print("\n`sleep 1`; from the end of a job to the start of the next one on the same GPU\n")
    head = ["", "jobs", "s", "overhead per slot and job", "median gap", "p95 gap", RATIO]
    print(table(head, rows))
    if all(batch.values()):
        report_batch({name: median(taken) for name, taken in batch.items()})
    for name, why in absent.items():
        print(f"missing: {name}: {why}")


def ratio_of(taken: dict[str, Any], found: dict[str, dict[str, Any]]) -> str:
    """Return the time per job as a multiple of that in pilots."""
    if PILOTS not in found:
        return ""
    per_job = [each["seconds"] / each["jobs"] for each in (taken, found[PILOTS])]
    return f"{per_job[0] / per_job[1]:.1f}"


def report_batch(batch: dict[str, float]) -> None:
    """Print the small batch with its promises."""
    ratio = batch["sbatch"] / batch["new pilot"]
    slot = batch["pilot that is there"] * GPUS_PER_NODE / BATCH
    promises = {
        "new pilot": f"sbatch / new pilot: {ratio:.1f} ≥ {MIN_BATCH_RATIO:g} "
        f"{verdict(MIN_BATCH_RATIO, ratio)}",
        "pilot that is there": f"{slot:.3f} s per slot and job ≤ {MAX_SLOT_SECONDS:g} "
        f"{verdict(slot, MAX_SLOT_SECONDS)}",
    }
    rows = [[name, f"{taken:.1f}", promises.get(name, "")] for name, taken in batch.items()]
    print(f"\n{BATCH} × `true` on two GPUs of one node, with the commands, medians\n")
    print(table(["", "s", "promise"], rows))
