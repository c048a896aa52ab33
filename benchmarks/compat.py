"""Compat commands compared with the original tools, in one run."""

from typing import Any

from benchmarks.lab import Broken
from benchmarks.peers import Peer
from benchmarks.peers.simple_gpu_scheduler import SimpleGpuScheduler
from benchmarks.peers.stoker_compat import StokerCompat
from benchmarks.report import median, table, verdict
from benchmarks.settings import Settings
from benchmarks.throughput import once, rehearse, say

COMMANDS = ("true", "sleep 0.01")
MAX_RATIO = 1.2
"""Allowed cost of the compat command, as a multiple of the original."""


def measure(settings: Settings) -> dict[str, Any]:
    """Measure both alternately for each command; return all samples."""
    peers: list[Peer] = [SimpleGpuScheduler(), StokerCompat()]
    absent: dict[str, str] = {}
    for peer in peers:
        say(f"preparing {peer.name}")
        why = peer.prepare(settings.cache) or rehearse(peer, settings)
        if why:
            absent[peer.name] = why
    samples: dict[str, dict[str, list[float]]] = {}
    for command in COMMANDS if not absent else ():
        samples[command] = {peer.name: [] for peer in peers}
        for number in range(settings.rounds):
            for peer in peers if number % 2 else reversed(peers):
                try:
                    seconds = once(peer, settings, command, settings.jobs)
                except Broken as error:
                    absent[peer.name] = str(error)
                    break
                samples[command][peer.name].append(seconds)
                say(f"{command}, round {number + 1}: {peer.name} {seconds:.2f} s")
    report(peers, samples, absent, settings)
    return {"jobs": settings.jobs, "slots": 4, "seconds": samples, "missing": absent}


def report(
    peers: list[Peer],
    samples: dict[str, dict[str, list[float]]],
    absent: dict[str, str],
    settings: Settings,
) -> None:
    """Print the table."""
    rows = []
    for command, taken in samples.items() if not absent else ():
        original, compat = (taken[peer.name] for peer in peers)
        ratio = median(compat) / median(original)
        rows.append(
            [
                f"{settings.jobs} × {command}",
                f"{median(original):.2f}",
                f"{median(compat):.2f}",
                f"{ratio:.2f}",
                f"≤ {MAX_RATIO} {verdict(ratio, MAX_RATIO)}",
            ]
        )
    print(f"\nCompat commands: simple_gpu_scheduler on 4 GPUs, {settings.rounds} rounds\n")
    print(table(["", "original, median s", "stoker, median s", "×", "promise"], rows))
    for name, why in absent.items():
        print(f"missing: {name}: {why}")
