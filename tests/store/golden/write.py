"""Writes the golden journal of this version: `python tests/store/golden/write.py NAME`.

Run it once per release that changes an event, with a new name. An existing file is never
written again.
"""

import sys
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from core.scenario import Scenario, gpus, node  # noqa: E402
from stoker.core import events as e  # noqa: E402
from stoker.core.model.advance import AdvanceReservation  # noqa: E402
from stoker.core.model.alarm import Alarm  # noqa: E402
from stoker.core.model.dependency import Clause, Dependency  # noqa: E402
from stoker.core.model.job import JobState, Score  # noqa: E402
from stoker.core.model.limits import Limits, Subject  # noqa: E402
from stoker.core.model.notification import NotifyRule, parse_condition  # noqa: E402
from stoker.core.model.profile import EpochTime  # noqa: E402
from stoker.core.model.resources import (  # noqa: E402
    DeviceAllocation,
    DeviceFacts,
    NodeFacts,
    Placement,
    PlacementMode,
    ResourceRequest,
)
from stoker.core.model.spec import (  # noqa: E402
    Container,
    EarlySignal,
    FileTransfer,
    MetricsSource,
    Mount,
    Retry,
    Spec,
    Training,
)
from stoker.core.model.sweep import EarlyStoppingRule, Sweep, Trial  # noqa: E402
from stoker.store.codec import VERSION  # noqa: E402
from store.test_golden import outline  # noqa: E402


def life() -> Scenario:
    """Return a scenario with every kind of event at least once."""
    scenario = Scenario(gpus=3)
    scenario.tell(e.DaemonStarted(at=1000.0, term=1, boot="boot-1", pid=42, version="0.1.0"))
    scenario.tell(e.IdsReserved(at=1000.0, next_id=100))
    scenario.tell(
        e.QueueDefined(at=1000.0, name="night", max_running=2, max_gpus=1500, priority=-1)
    )
    scenario.tell(e.QueueDefined(at=1000.0, name="gone", strict=True, devices=("0",)))
    scenario.tell(e.QueueDeleted(at=1000.0, name="gone"))
    disks = (("hdd", "0", 32_000), ("hdd", "1", 64_000))
    scenario.tell(
        e.QueueDefined(at=1000.0, name="disks", resources=disks, max_waiting=9, max_job_gpus=2000)
    )
    scenario.tell(
        e.PolicyChosen(at=1000.0, queue="day", name="planner", parameters={"quantum": 1200.0})
    )
    scenario.tell(e.PolicyChosen(at=1000.0, queue="gone", name="fifo"))
    scenario.tell(e.PolicyChosen(at=1000.0, queue="gone"))
    scenario.submit(
        ResourceRequest(named=(("hdd", 40_000),)), queue="disks", client="grass", fill=True
    )
    scenario.tell(e.HistoryCleared(at=1000.0, client="auto"))
    plain = scenario.submit(name="train", labels=("lr=0.1",), group="sweep")
    array = scenario.submit(
        gpus(0.5, memory=4000), count=3, array=True, array_limit=2, queue="night"
    )
    limited = scenario.submit(
        limit=60, early_signal=EarlySignal(10, 20), retry=Retry(1, ("timeout",)), priority=3
    )
    late = scenario.submit(deadline_at=1030.0, held=True)
    behind = scenario.submit(
        dependency=Dependency((Clause("afterok", (plain,)), Clause("after", (array,), 600)))
    )
    begins = scenario.submit(begin_at=1010.0, held=True)
    moved = scenario.submit()
    scenario.run(limited, plain)
    scenario.wait(15)
    scenario.fact(e.JobReleased, begins)
    scenario.wait(1)
    scenario.fact(e.JobMoved, moved, priority=0, rank=5)
    spec = msgspec.structs.replace(scenario.state.spec(scenario.job(moved)), request=gpus(2))
    scenario.tell(e.SpecRecorded(at=scenario.now, hash="edited", spec=spec))
    scenario.fact(e.JobEdited, moved, spec="edited", name="big", priority=1)
    scenario.fact(e.JobHeld, moved)
    scenario.fact(e.JobPaused, plain, boot=scenario.now)
    scenario.wait(20)  # the deadline
    scenario.fact(e.JobResumed, plain, boot=scenario.now)
    scenario.fact(e.JobSignalled, plain, signal=10)
    scenario.tell(e.DevicesDrained(at=scenario.now, devices=(("box", "gpu", "2"),), reason="fan"))
    scenario.tell(e.DevicesUndrained(at=scenario.now, devices=(("box", "gpu", "2"),)))
    scenario.tell(e.DevicesDrained(at=scenario.now, devices=(("box", "gpu", "1"),), reason="noise"))
    scenario.tell(
        e.ForeignUseChanged(at=scenario.now, node="box", device="0", foreign_user="bob", memory=7)
    )
    scenario.exited(plain, 0)
    scenario.wait(10)  # the warning
    scenario.wait(30)  # the limit
    scenario.exited(limited, None, signal=15, note="killed after its grace")
    scenario.plan()
    for job in [job for job in (array, array + 1) if scenario.job(job).holding]:
        scenario.started(job)
    scenario.about(e.AttemptLost, array, why="the machine restarted")
    scenario.about(e.StartCancelled, array + 1, why="bob was first")
    scenario.plan()
    scenario.about(e.StartFailed, array + 1, why="no such directory")
    scenario.fact(e.JobCancelled, begins)
    scenario.fact(e.OrphanAttemptsFound, late, attempt=4)
    scenario.fact(e.JobRetried, late)
    scenario.tell(e.FailuresDismissed(at=scenario.now, jobs=(array,)))
    job, of = scenario.job(plain), scenario.state.spec(scenario.job(plain))
    scenario.tell(e.JobsUnloaded(at=scenario.now, jobs=(array,)))
    scenario.fact(e.JobCancelled, behind)
    delegated(scenario)
    scenario.tell(e.JobsUnloaded(at=scenario.now, jobs=(plain,)))
    scenario.tell(e.JobLoaded(at=scenario.now, job=msgspec.structs.replace(job), spec=of))
    scenario.tell(e.NodeJoined(at=scenario.now, facts=node(2)))
    machines(scenario)
    trainings(scenario)
    sweeps(scenario)
    alarms(scenario)
    users(scenario)
    limits(scenario)
    notify_rules(scenario)
    restored(scenario)
    return scenario


def restored(scenario: Scenario) -> None:
    """Add attempts that a restored journal did not have."""
    ended, runs = scenario.submit(held=True), scenario.submit(held=True)
    for job, attempt in ((ended, 1), (runs, 2)):
        placement = Placement("box", (DeviceAllocation("cpu", "cpu", 1000),))
        scenario.tell(
            e.AttemptRecovered(
                at=scenario.now, job=job, attempt=attempt, placement=placement, boot=scenario.now
            )
        )
        scenario.started(job)
    scenario.exited(ended, 0)


def machines(scenario: Scenario) -> None:
    """Add SSH nodes, and attempts on several of them."""

    def part(kind: type[e.Event], job: int, number: int, **more: object) -> None:
        scenario.about(kind, job, part=number, **more)

    for name in ("ant", "bee", "gone"):
        added = e.NodeAdded(
            at=scenario.now, name=name, address=f"ssh://ada@{name}:22", key="/k",
            shared=name == "bee", configured=name == "ant",
        )  # fmt: skip
        scenario.tell(added)
        scenario.tell(e.NodeJoined(at=scenario.now, facts=node(2, name=name)))
        scenario.tell(e.NodeReached(at=scenario.now, node=name))
    scenario.tell(e.NodeRemoved(at=scenario.now, name="gone"))
    scenario.tell(e.NodeLoadMeasured(at=scenario.now, node="bee", cpus=1500, memory=2000))
    scenario.tell(e.NodeCordoned(at=scenario.now, node="bee", why="no space left on bee"))
    scenario.tell(e.NodeCordoned(at=scenario.now, node="bee"))
    carry = FileTransfer(send=("src",), bring=("out",), into="results", exclude=("*.pt",))
    wide = msgspec.structs.replace(gpus(1), node_count=2, not_nodes=("box",))
    done, failed, lost, broken, silent = (
        scenario.submit(
            wide, priority=9 - n, if_unreachable=60, transfer=carry, exported_variables=("LR",)
        )
        for n in range(5)
    )
    for job, kind, more in (
        (done, e.ProcessExited, {"code": 0, "cpu_seconds": 2.5, "rss_peak": 900}),
        (failed, e.ProcessExited, {"signal": 9, "memory": "host"}),
        (lost, e.AttemptLost, {"why": "the machine restarted"}),
        (broken, e.StartFailed, {"why": "no such directory"}),
    ):
        scenario.plan()
        part(e.ProcessStarted, job, 0, pid=11, boot=scenario.now)
        part(e.ProcessStarted, job, 1, pid=12, boot=scenario.now)
        part(kind, job, 1, **more)
        if job != lost:  # its other part continues
            part(e.ProcessExited, job, 0, code=0)
    scenario.plan()
    scenario.tell(e.NodeUnreachable(at=scenario.now, node="bee", why="no route", boot=scenario.now))
    scenario.wait(60)  # the limit set by the owner
    alone = scenario.submit(
        msgspec.structs.replace(gpus(1), nodes=("ant",)), if_unreachable=30, priority=99
    )
    part(e.ProcessExited, silent, 0, signal=15)
    scenario.run(alone)
    scenario.tell(e.NodeUnreachable(at=scenario.now, node="ant", why="silent", boot=scenario.now))
    scenario.wait(30)
    scenario.tell(e.NodeReached(at=scenario.now, node="ant", ended=((alone, 0),)))
    started = {"term": 2, "boot": "boot-2", "pid": 43, "version": "0.1.0", "clock": 12.5}
    scenario.tell(e.DaemonStarted(at=scenario.now, **started))  # type: ignore[arg-type]


def trainings(scenario: Scenario) -> None:
    """Add training jobs that are measured, stopped, run out of memory, and finish."""
    scenario.tell(e.NodeAdded(at=scenario.now, name="cow", address="ssh://cow"))
    scenario.tell(e.NodeJoined(at=scenario.now, facts=node(4, name="cow")))
    scenario.tell(e.NodeReached(at=scenario.now, node="cow"))

    def train(name: str, **more: object) -> int:
        ask = msgspec.structs.replace(
            gpus(1, memory=9000, shareable=True, max_amount=2000), nodes=("cow",)
        )
        mounts = (Mount("/data", "/data", True, True), Mount("/me", "/custom"))
        said = Training(
            epochs=9, batch_size=64, set_size=5000, expected=600, snapshots="/s", distributed=True
        )
        fields = {
            "name": name, "training": said, "container": Container("img:1", mounts, ((80, 8080),)),
            "client": "run-scheduler", **more,
        }  # fmt: skip
        return scenario.submit(ask, priority=50, **fields)  # type: ignore[arg-type]

    stops, short, slow, steady = (
        train("stops"), train("short"), train("slow"), train("steady", non_preemptible=True),
    )  # fmt: skip
    scenario.run(stops, short, slow, steady)
    for job in (stops, short, slow, steady):
        scenario.about(e.TrainingBegan, job)
        scenario.about(e.MemoryMeasured, job, memory=4000)
        scenario.about(e.UsageMeasured, job, measured=20.0, busy=12.5, energy=4000.0)
        scenario.about(
            e.EpochsCounted, job, done=2, seconds=30.0, step=0.1, warmup=3.0, metrics={"loss": 0.5}
        )
    scenario.tell(
        e.ProfileImported(
            at=scenario.now, profile="ada: known", epoch_times=(EpochTime(1, "a100", 30.0, 0.1),),
            interference={"a100: ada: known": 0.8}, warmup=3.0,
        )
    )  # fmt: skip
    for why, gpus_ in (("job 9 needs room", None), ("with 2 GPUs it is done sooner", 2)):
        scenario.about(
            e.PreemptionRequested, stops, why=why, boot=scenario.now, by=None, gpus=gpus_
        )
        if gpus_ is None:
            scenario.about(e.PreemptionCancelled, stops)
    scenario.exited(stops, 75, stopped=True)
    scenario.exited(short, 1, memory="cuda")
    scenario.about(e.PreemptionRequested, slow, why="job 9 needs room", boot=scenario.now, by=9)
    scenario.about(e.PreemptionTimedOut, slow)
    scenario.wait(1300)
    scenario.exited(slow, 0, uncaught=True)
    scenario.about(e.AttemptLost, steady, why="cow was removed", with_files=True)


def sweeps(scenario: Scenario) -> None:
    """Add a sweep with trials that are compared, stopped, retried, unloaded and loaded."""
    source = MetricsSource("log", "loss=(?P<loss>.*)", "loss")
    spec = Spec(
        kind="argv", user="ada", directory="/", shell="sh", environment="none", name="sweep",
        request=gpus(1), source=source,
    )  # fmt: skip
    scenario.tell(e.SpecRecorded(at=scenario.now, hash="trials", spec=spec))
    id = scenario.state.record.next_id
    rule = EarlyStoppingRule("halving", (1.0, 3.0, 9.0), eta=2.0, brackets=2, trials=2)
    sweep = Sweep(
        id=id, name="sweep", user="ada", identity="same", definition="asked", method="random",
        created_at=scenario.now, metric="loss", maximize=True, best_of=True, target=9.5, rule=rule,
        total=6, asks=True, max_running=3, priority=200,
    )  # fmt: skip
    scenario.tell(e.SweepDefined(at=scenario.now, sweep=sweep))
    trials = tuple((f'{{"lr":0.{n}}}', ("train", f"--lr=0.{n}")) for n in range(1, 5))
    scenario.tell(
        e.JobsSubmitted(
            at=scenario.now, first=id + 1, count=4, spec="trials", priority=200, sweep=id,
            trials=trials,
        )
    )  # fmt: skip
    scenario.run(id + 1, id + 2)
    for job, value in ((id + 1, 3.0), (id + 2, None)):
        scenario.about(e.TrialMeasured, job, value=value, step=1.0, rung=0)
    scenario.about(e.TrialStopped, id + 2)
    scenario.exited(id + 2, signal=15, code=None)
    scenario.about(e.TrialMeasured, id + 1, value=4.0, step=9.0, final=True)
    scenario.exited(id + 1, 0)
    scenario.tell(e.SweepChanged(at=scenario.now, sweep=id, held=True, max_running=1, priority=3))
    scenario.tell(e.SweepChanged(at=scenario.now, sweep=id, held=False, ended=True, note="no idea"))
    for job in (id + 3, id + 4):
        scenario.fact(e.JobCancelled, job, needless=job == id + 4)
    scenario.tell(e.TrialsUnloaded(at=scenario.now, sweep=id))
    known = (Trial(id + 1, 0, trials[0][0], JobState.COMPLETED, Score(4.0, 9.0, (3.0,))),)
    scenario.tell(e.TrialsLoaded(at=scenario.now, sweep=id, trials=known))


def delegated(scenario: Scenario) -> None:
    """Add a cluster with its own scheduler, and an attempt that it rejects."""
    scenario.tell(
        e.NodeAdded(at=scenario.now, name="lab", executor="slurm", options={"partition": "gpu"})
    )
    cards = DeviceFacts("*a100", capacity=64_000, model="a100", memory=40_000)
    facts = NodeFacts("lab", {"gpu": (cards,)}, placement=PlacementMode.DELEGATED, max_in_flight=4)
    scenario.tell(e.NodeJoined(at=scenario.now, facts=facts))
    scenario.tell(e.NodeReached(at=scenario.now, node="lab"))
    there = msgspec.structs.replace(gpus(2), nodes=("lab",))
    ended, runs, waits, refused = (scenario.submit(there, priority=99) for _ in range(4))
    scenario.plan()
    for job in (ended, runs, waits, refused):
        scenario.about(e.AttemptQueued, job, external_id=f"47{job}")
    for job in (ended, runs):
        scenario.about(
            e.ProcessStarted, job, boot=scenario.now, external_id=f"47{job}", hosts=("n17",),
            devices=("0", "3"),
        )  # fmt: skip
    scenario.exited(ended, 0)
    scenario.about(e.StartCancelled, refused, why="the partition is down", delay=30.0)


def alarms(scenario: Scenario) -> None:
    """Raise alarms about attempts and a GPU; one is cleared, one is advice on an ended job."""
    scenario.tell(e.NodeJoined(at=scenario.now, facts=node(1, name="hall")))
    there = msgspec.structs.replace(gpus(0.5), nodes=("hall",))
    runs, ended = (
        scenario.submit(
            there, priority=99, alarms=(("gpu_idle", 0.0),), notify=(("lab", ("fail",)),)
        )
        for _ in range(2)
    )
    scenario.run(runs, ended)

    def alarm(kind: str, job: int | None, gpu: str | None = None) -> Alarm:
        return Alarm(kind=kind, since=scenario.now, text=kind, job=job, node="hall", gpu=gpu)

    found = [alarm("hung", runs), alarm("nan", runs), alarm("hot", None, "0")]
    for raised in (*found, alarm("over_requested", ended)):
        scenario.tell(e.AlarmRaised(at=scenario.now, alarm=raised))
    scenario.tell(e.AlarmCleared(at=scenario.now, alarm=found[1]))
    assert len(scenario.state.record.alarms) == 2
    scenario.exited(ended, 0)
    assert scenario.job(ended).advice == "over_requested"


def users(scenario: Scenario) -> None:
    """Have a user of a system daemon submit a job and a sweep, and change something."""
    scenario.submit(gpus(1), uid=1007, user="ana")
    sweep = Sweep(id=scenario.state.record.next_id, name="lr", user="ana", identity="i",
                  definition="d", method="grid", created_at=scenario.now, uid=1007)  # fmt: skip
    scenario.tell(e.SweepDefined(at=scenario.now, sweep=sweep))
    scenario.tell(e.HistoryCleared(at=scenario.now, client="grass", uid=1007))
    scenario.tell(
        e.Acted(at=scenario.now, uid=0, user="root", verb="POST /drain", jobs=((3, 5),), what="{}")
    )
    assert scenario.state.record.last_of(1007) == (sweep.id, 1)


def limits(scenario: Scenario) -> None:
    """Set limits, weights and reservations of a user, a group and a queue; end one reservation."""
    now = scenario.now
    ana, vision = Subject("user", "ana", 1007), Subject("group", "vision", 501)
    night = Subject("queue", "night")
    scenario.tell(e.GroupsRecorded(at=now, uid=1007, groups=(501, 1007), user="ana"))
    scenario.tell(
        e.LimitsSet(
            at=now, subject=ana, limits=Limits(max_gpus=2000, gpu_hours=40.0, gpu_memory=48_000),
            gpu_time={ana.key: {0: 3600.0}},
        )
    )  # fmt: skip
    few = Limits(max_running=3, max_pending=9, max_job_gpus=1000, max_time=3600)
    scenario.tell(e.LimitsSet(at=now, subject=vision, limits=few))
    scenario.tell(e.LimitsSet(at=now, subject=night, limits=few))
    scenario.tell(e.LimitsSet(at=now, subject=night))
    scenario.tell(e.ShareSet(at=now, subject=vision, weight=3.0))
    for name, cards, nodes in (("r1", ("box/0",), ()), ("r2", (), ("hall",))):
        reservation = AdvanceReservation(
            name, now + 1e6, now + 2e6, gpus=cards, nodes=nodes, subjects=(ana, night), user="ada",
            created=now,
        )  # fmt: skip
        scenario.tell(e.ReservationMade(at=now, reservation=reservation))
    scenario.tell(e.ReservationEnded(at=now, name="r2", cancelled=True))
    job = scenario.submit(gpus(1), uid=1007, user="ana", queue="night", limit=60, priority=99)
    assert scenario.state.limits.by_user
    assert list(scenario.state.record.limits) == ["user:1007", "group:501"]
    assert scenario.job(job).user == "ana"


def notify_rules(scenario: Scenario) -> None:
    """Add two rules of notifications, and remove one."""
    for id in (1, 2):
        condition, _ = parse_condition("gpu free")
        rule = NotifyRule(id=id, target="lab", when="gpu free", condition=condition, user="ana")
        scenario.tell(e.NotifyRuleAdded(at=scenario.now, rule=rule))
    scenario.tell(e.NotifyRuleRemoved(at=scenario.now, id=1))


def main(name: str) -> None:
    journal, expected = HERE / f"{name}.jsonl", HERE / f"{name}.state.json"
    if journal.exists():
        raise SystemExit(f"{journal} is history; choose another name")
    scenario = life()
    lines = [
        msgspec.json.encode({"version": VERSION, "event": msgspec.to_builtins(event)})
        for event in scenario.journal
    ]
    journal.write_bytes(b"\n".join(lines) + b"\n")
    state = msgspec.json.encode(outline(scenario.state))
    expected.write_bytes(msgspec.json.format(state, indent=1) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
