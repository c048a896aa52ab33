"""Writes the golden journal of this version: `python tests/store/golden/write.py NAME`.

Run it once per release that changes an event, under a new name. A file that is there is
history: it is never written again.
"""

import sys
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from core.scenario import Scenario, gpus, node  # noqa: E402
from stoker.core import events as e  # noqa: E402
from stoker.core.cluster import (  # noqa: E402
    DeviceFacts,
    NodeFacts,
    Placement,
    PlacementMode,
    Take,
)
from stoker.core.dependency import Clause, Dependency  # noqa: E402
from stoker.core.estimate import Pace  # noqa: E402
from stoker.core.job import (  # noqa: E402
    Carry,
    Container,
    EarlySignal,
    Mount,
    Retry,
    Score,
    Source,
    Spec,
    Training,
)
from stoker.core.lifecycle import JobState  # noqa: E402
from stoker.core.request import Request  # noqa: E402
from stoker.core.sweep import Rule, Sweep, Trial  # noqa: E402
from stoker.store.codec import VERSION  # noqa: E402
from store.test_golden import outline  # noqa: E402


def life() -> Scenario:
    """A bit of everything: every kind of fact at least once."""
    story = Scenario(gpus=3)
    story.tell(e.DaemonStarted(at=1000.0, term=1, boot="boot-1", pid=42, version="0.1.0"))
    story.tell(e.IdsReserved(at=1000.0, next_id=100))
    story.tell(e.QueueDefined(at=1000.0, name="night", max_running=2, max_gpus=1500, priority=-1))
    story.tell(e.QueueDefined(at=1000.0, name="gone", strict=True, devices=("0",)))
    story.tell(e.QueueDeleted(at=1000.0, name="gone"))
    disks = (("hdd", "0", 32_000), ("hdd", "1", 64_000))
    story.tell(
        e.QueueDefined(at=1000.0, name="disks", resources=disks, max_waiting=9, max_job_gpus=2000)
    )
    story.tell(
        e.PolicyChosen(at=1000.0, queue="day", name="planner", parameters={"quantum": 1200.0})
    )
    story.tell(e.PolicyChosen(at=1000.0, queue="gone", name="fifo"))
    story.tell(e.PolicyChosen(at=1000.0, queue="gone"))
    story.submit(Request(named=(("hdd", 40_000),)), queue="disks", door="grass", fill=True)
    story.tell(e.RecordsCleared(at=1000.0, door="auto"))
    plain = story.submit(name="train", labels=("lr=0.1",), group="sweep")
    array = story.submit(gpus(0.5, memory=4000), count=3, array=True, array_limit=2, queue="night")
    limited = story.submit(
        limit=60, warning=EarlySignal(10, 20), retry=Retry(1, ("timeout",)), priority=3
    )
    late = story.submit(deadline_at=1030.0, held=True)
    behind = story.submit(
        dependency=Dependency((Clause("afterok", (plain,)), Clause("after", (array,), 600)))
    )
    begins = story.submit(begin_at=1010.0, held=True)
    moved = story.submit()
    story.run(limited, plain)
    story.wait(15)
    story.fact(e.JobReleased, begins)
    story.wait(1)
    story.fact(e.JobMoved, moved, priority=0, rank=5)
    spec = msgspec.structs.replace(story.state.spec(story.job(moved)), request=gpus(2))
    story.tell(e.SpecRecorded(at=story.now, hash="edited", spec=spec))
    story.fact(e.JobEdited, moved, spec="edited", name="big", priority=1)
    story.fact(e.JobHeld, moved)
    story.fact(e.JobPaused, plain, boot=story.now)
    story.wait(20)  # the deadline
    story.fact(e.JobResumed, plain, boot=story.now)
    story.fact(e.JobSignalled, plain, signal=10)
    story.tell(e.DevicesDrained(at=story.now, devices=(("box", "gpu", "2"),), reason="fan"))
    story.tell(e.DevicesUndrained(at=story.now, devices=(("box", "gpu", "2"),)))
    story.tell(e.DevicesDrained(at=story.now, devices=(("box", "gpu", "1"),), reason="noise"))
    story.tell(e.ForeignUseChanged(at=story.now, node="box", device="0", stranger="bob", memory=7))
    story.exited(plain, 0)
    story.wait(10)  # the warning
    story.wait(30)  # the limit
    story.exited(limited, None, signal=15, note="killed after its grace")
    story.plan()
    for job in [job for job in (array, array + 1) if story.job(job).holding]:
        story.started(job)
    story.about(e.AttemptLost, array, why="the machine restarted")
    story.about(e.StartCalledOff, array + 1, why="bob was first")
    story.plan()
    story.about(e.StartFailed, array + 1, why="no such directory")
    story.fact(e.JobCancelled, begins)
    story.fact(e.AttemptsFound, late, attempt=4)
    story.fact(e.JobRetried, late)
    story.tell(e.JobsSeen(at=story.now, jobs=(array,)))
    job, of = story.job(plain), story.state.spec(story.job(plain))
    story.tell(e.JobsForgotten(at=story.now, jobs=(array,)))
    story.fact(e.JobCancelled, behind)
    delegated(story)
    story.tell(e.JobsForgotten(at=story.now, jobs=(plain,)))
    story.tell(e.JobRecalled(at=story.now, job=msgspec.structs.replace(job), spec=of))
    story.tell(e.NodeJoined(at=story.now, facts=node(2)))
    machines(story)
    trainings(story)
    sweeps(story)
    restored(story)
    return story


def restored(story: Scenario) -> None:
    """Attempts that a restored journal did not know."""
    ended, runs = story.submit(held=True), story.submit(held=True)
    for job, attempt in ((ended, 1), (runs, 2)):
        placement = Placement("box", (Take("cpu", "cpu", 1000),))
        story.tell(
            e.AttemptRecovered(
                at=story.now, job=job, attempt=attempt, placement=placement, boot=story.now
            )
        )
        story.started(job)
    story.exited(ended, 0)


def machines(story: Scenario) -> None:
    """Machines over SSH, and attempts on several of them."""

    def part(kind: type[e.Event], job: int, number: int, **more: object) -> None:
        story.about(kind, job, part=number, **more)

    for name in ("ant", "bee", "gone"):
        added = e.NodeAdded(
            at=story.now, name=name, address=f"ssh://ada@{name}:22", key="/k", shared=name == "bee",
            configured=name == "ant",
        )  # fmt: skip
        story.tell(added)
        story.tell(e.NodeJoined(at=story.now, facts=node(2, name=name)))
        story.tell(e.NodeReached(at=story.now, node=name))
    story.tell(e.NodeRemoved(at=story.now, name="gone"))
    story.tell(e.NodeMeasured(at=story.now, node="bee", cpus=1500, memory=2000))
    story.tell(e.NodeClosed(at=story.now, node="bee", why="no space left on bee"))
    story.tell(e.NodeClosed(at=story.now, node="bee"))
    carry = Carry(send=("src",), bring=("out",), into="results", exclude=("*.pt",))
    wide = msgspec.structs.replace(gpus(1), machines=2, not_nodes=("box",))
    done, failed, lost, broken, silent = (
        story.submit(wide, priority=9 - n, if_unreachable=60, carry=carry, asked=("LR",))
        for n in range(5)
    )
    for job, kind, more in (
        (done, e.ProcessExited, {"code": 0}),
        (failed, e.ProcessExited, {"signal": 9, "memory": "host"}),
        (lost, e.AttemptLost, {"why": "the machine restarted"}),
        (broken, e.StartFailed, {"why": "no such directory"}),
    ):
        story.plan()
        part(e.ProcessStarted, job, 0, pid=11, boot=story.now)
        part(e.ProcessStarted, job, 1, pid=12, boot=story.now)
        part(kind, job, 1, **more)
        if job != lost:  # its other part goes on
            part(e.ProcessExited, job, 0, code=0)
    story.plan()
    story.tell(e.NodeUnreachable(at=story.now, node="bee", why="no route", boot=story.now))
    story.wait(60)  # the owner's patience
    alone = story.submit(
        msgspec.structs.replace(gpus(1), nodes=("ant",)), if_unreachable=30, priority=99
    )
    part(e.ProcessExited, silent, 0, signal=15)
    story.run(alone)
    story.tell(e.NodeUnreachable(at=story.now, node="ant", why="silent", boot=story.now))
    story.wait(30)
    story.tell(e.NodeReached(at=story.now, node="ant", ended=((alone, 0),)))
    started = {"term": 2, "boot": "boot-2", "pid": 43, "version": "0.1.0", "clock": 12.5}
    story.tell(e.DaemonStarted(at=story.now, **started))  # type: ignore[arg-type]


def trainings(story: Scenario) -> None:
    """Training jobs that are measured, stopped, run short of memory, and finish."""
    story.tell(e.NodeAdded(at=story.now, name="cow", address="ssh://cow"))
    story.tell(e.NodeJoined(at=story.now, facts=node(4, name="cow")))
    story.tell(e.NodeReached(at=story.now, node="cow"))

    def train(name: str, **more: object) -> int:
        ask = msgspec.structs.replace(gpus(1, memory=9000, beside=True, most=2000), nodes=("cow",))
        mounts = (Mount("/data", "/data", True, True), Mount("/me", "/custom"))
        said = Training(
            epochs=9, batch_size=64, set_size=5000, expected=600, snapshots="/s", distributed=True
        )
        fields = {
            "name": name, "training": said, "container": Container("img:1", mounts, ((80, 8080),)),
            "door": "run-scheduler", **more,
        }  # fmt: skip
        return story.submit(ask, priority=50, **fields)  # type: ignore[arg-type]

    stops, short, slow, steady = (
        train("stops"), train("short"), train("slow"), train("steady", steady=True),
    )  # fmt: skip
    story.run(stops, short, slow, steady)
    for job in (stops, short, slow, steady):
        story.about(e.TrainingBegan, job)
        story.about(e.MemoryMeasured, job, memory=4000)
        story.about(
            e.EpochsCounted, job, done=2, seconds=30.0, step=0.1, warmup=3.0, metrics={"loss": 0.5}
        )
    story.tell(
        e.KindMeasured(
            at=story.now, family="ada: known", paces=(Pace(1, "a100", 30.0, 0.1),),
            beside={"a100: ada: known": 0.8}, warmup=3.0,
        )
    )  # fmt: skip
    for why, gpus_ in (("job 9 needs room", None), ("with 2 GPUs it is done sooner", 2)):
        story.about(e.StopAsked, stops, why=why, boot=story.now, by=None, gpus=gpus_)
        if gpus_ is None:
            story.about(e.StopWithdrawn, stops)
    story.exited(stops, 75, stopped=True)
    story.exited(short, 1, memory="cuda")
    story.about(e.StopAsked, slow, why="job 9 needs room", boot=story.now, by=9)
    story.about(e.StopOverdue, slow)
    story.wait(1300)
    story.exited(slow, 0, uncaught=True)
    story.about(e.AttemptLost, steady, why="cow was removed", with_files=True)


def sweeps(story: Scenario) -> None:
    """A sweep whose trials are compared, stopped, retried, forgotten and recalled."""
    source = Source("log", "loss=(?P<loss>.*)", "loss")
    spec = Spec(
        kind="argv", user="ada", directory="/", shell="sh", environment="none", name="sweep",
        request=gpus(1), source=source,
    )  # fmt: skip
    story.tell(e.SpecRecorded(at=story.now, hash="trials", spec=spec))
    id = story.state.rest.next_id
    rule = Rule("halving", (1.0, 3.0, 9.0), eta=2.0, brackets=2, trials=2)
    sweep = Sweep(
        id=id, name="sweep", user="ada", identity="same", definition="asked", method="random",
        created_at=story.now, metric="loss", maximize=True, best_of=True, target=9.5, rule=rule,
        total=6, asks=True, max_running=3, priority=200,
    )  # fmt: skip
    story.tell(e.SweepDefined(at=story.now, sweep=sweep))
    trials = tuple((f'{{"lr":0.{n}}}', ("train", f"--lr=0.{n}")) for n in range(1, 5))
    story.tell(
        e.JobsSubmitted(
            at=story.now, first=id + 1, count=4, spec="trials", priority=200, sweep=id,
            trials=trials,
        )
    )  # fmt: skip
    story.run(id + 1, id + 2)
    for job, value in ((id + 1, 3.0), (id + 2, None)):
        story.about(e.TrialMeasured, job, value=value, step=1.0, rung=0)
    story.about(e.TrialStopped, id + 2)
    story.exited(id + 2, signal=15, code=None)
    story.about(e.TrialMeasured, id + 1, value=4.0, step=9.0, final=True)
    story.exited(id + 1, 0)
    story.tell(e.SweepChanged(at=story.now, sweep=id, held=True, max_running=1, priority=3))
    story.tell(e.SweepChanged(at=story.now, sweep=id, held=False, ended=True, note="no idea"))
    for job in (id + 3, id + 4):
        story.fact(e.JobCancelled, job, needless=job == id + 4)
    story.tell(e.TrialsForgotten(at=story.now, sweep=id))
    known = (Trial(id + 1, 0, trials[0][0], JobState.COMPLETED, Score(4.0, 9.0, (3.0,))),)
    story.tell(e.TrialsRecalled(at=story.now, sweep=id, trials=known))


def delegated(story: Scenario) -> None:
    """A cluster whose own scheduler starts attempts, and one that it refuses."""
    story.tell(
        e.NodeAdded(at=story.now, name="lab", executor="slurm", options={"partition": "gpu"})
    )
    cards = DeviceFacts("*a100", capacity=64_000, model="a100", memory=40_000)
    facts = NodeFacts("lab", {"gpu": (cards,)}, placement=PlacementMode.DELEGATED, max_in_flight=4)
    story.tell(e.NodeJoined(at=story.now, facts=facts))
    story.tell(e.NodeReached(at=story.now, node="lab"))
    there = msgspec.structs.replace(gpus(2), nodes=("lab",))
    ended, runs, waits, refused = (story.submit(there, priority=99) for _ in range(4))
    story.plan()
    for job in (ended, runs, waits, refused):
        story.about(e.AttemptQueued, job, external_id=f"47{job}")
    for job in (ended, runs):
        story.about(
            e.ProcessStarted, job, boot=story.now, external_id=f"47{job}", hosts=("n17",),
            devices=("0", "3"),
        )  # fmt: skip
    story.exited(ended, 0)
    story.about(e.StartCalledOff, refused, why="the partition is down", delay=30.0)


def main(name: str) -> None:
    journal, expected = HERE / f"{name}.jsonl", HERE / f"{name}.state.json"
    if journal.exists():
        raise SystemExit(f"{journal} is history; choose another name")
    story = life()
    lines = [
        msgspec.json.encode({"version": VERSION, "event": msgspec.to_builtins(event)})
        for event in story.journal
    ]
    journal.write_bytes(b"\n".join(lines) + b"\n")
    state = msgspec.json.encode(outline(story.state))
    expected.write_bytes(msgspec.json.format(state, indent=1) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
