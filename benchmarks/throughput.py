"""Many trivial commands on four slots: stoker, its peers and the floor, in turn."""

import sys
import time
from typing import Any

from benchmarks.lab import Broken, fresh_directory
from benchmarks.peers import Peer, Work, all_peers
from benchmarks.report import median, table, verdict
from benchmarks.settings import Settings

# What the two durable ways may cost, as a multiple of the floor.
PROMISES = {"stoker feed": 1.2, "stoker queue, daemon start included": 1.4}


def measure(settings: Settings) -> dict[str, Any]:
    """Median seconds per peer, rounds interleaved."""
    present: list[Peer] = []
    absent: dict[str, str] = {}
    for peer in all_peers():
        if present and not any(word in peer.name.lower() for word in settings.peers.split(",")):
            continue  # not asked for; the floor always takes part, it is the unit
        say(f"preparing {peer.name}")
        why = peer.prepare(settings.cache) or rehearse(peer, settings)
        if why:
            absent[peer.name] = why
        else:
            present.append(peer)

    samples: dict[str, list[float]] = {peer.name: [] for peer in present}
    for number in range(settings.rounds):
        turn = number % len(present) if present else 0
        # Nobody always runs first, or always after the same one.
        for peer in present[turn:] + present[:turn]:
            if peer.name in absent:
                continue
            try:
                samples[peer.name].append(once(peer, settings, "true", settings.jobs))
            except Broken as error:
                absent[peer.name] = str(error)
                continue
            say(f"round {number + 1}: {peer.name} {samples[peer.name][-1]:.2f} s")
    report(present, samples, absent, settings)
    return {"jobs": settings.jobs, "slots": 4, "seconds": samples, "missing": absent}


def rehearse(peer: Peer, settings: Settings) -> str | None:
    """Have a few jobs leave a trace, untimed: a peer that runs nothing must not look fast."""
    with fresh_directory(settings.runs) as directory:
        trace = directory / "trace"
        try:
            once(peer, settings, f"echo ran >> {trace}", 8)
        except Broken as error:
            return str(error)
        ran = trace.read_text(encoding="utf-8").count("ran") if trace.exists() else 0
        return None if ran == 8 else f"ran {ran} of 8 commands"


def once(peer: Peer, settings: Settings, command: str, jobs: int) -> float:
    """One timed run in a fresh directory, its work checked."""
    with fresh_directory(settings.runs) as directory:
        work = Work(directory, command, jobs)
        work.write()
        try:
            peer.set_up(work)
            began, begin = time.time(), time.perf_counter()
            peer.run(work)
            measured = time.perf_counter() - begin
            peer.check(work)
            return peer.seconds(work, began, measured)
        finally:
            peer.tear_down(work)


def report(
    present: list[Peer],
    samples: dict[str, list[float]],
    absent: dict[str, str],
    settings: Settings,
) -> None:
    """Print the table."""
    head = ["", "median s", "min s", "× floor", "promise", "log per job", "durable"]
    rows = []
    floor = median(samples[present[0].name]) if present and samples[present[0].name] else None
    for peer in sorted(present, key=lambda p: median(samples[p.name] or [float("inf")])):
        if peer.name in absent:
            continue
        seconds = samples[peer.name]
        ratio = median(seconds) / floor if floor else float("nan")
        limit = PROMISES.get(peer.name)
        rows.append(
            [
                peer.name,
                f"{median(seconds):.2f}",
                f"{min(seconds):.2f}",
                f"{ratio:.2f}",
                f"≤ {limit} {verdict(ratio, limit)}" if limit else "",
                "yes" if peer.keeps_logs else "no",
                peer.durable,
            ]
        )
    print(f"\nThroughput: {settings.jobs} × `true` on 4 slots, {settings.rounds} rounds\n")
    print(table(head, rows))
    for name, why in absent.items():
        print(f"missing: {name}: {why}")


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)
