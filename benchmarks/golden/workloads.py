"""Golden scenarios of random workloads, each for a kind of request that traces do not have."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

from msgspec.structs import replace

from benchmarks.golden.cluster import Arrival, JobBehaviour, SimulatedCluster
from stoker.core import events as e
from stoker.core.model.advance import AdvanceReservation
from stoker.core.model.dependency import Clause, Dependency
from stoker.core.model.limits import Limits, Subject, SubjectKind
from stoker.core.model.resources import DeviceFacts, GpuRequest, NodeFacts, ResourceRequest
from stoker.core.model.spec import EarlySignal, Retry, Spec, Training
from stoker.core.model.sweep import EarlyStoppingRule, Sweep
from stoker.store import codec

GPU = "gpu"
CYCLES_PER_RESTART = 100
GPU_MEMORY = 24_000
HOUR = 3600.0


def make_node(number: int, gpus: int, model: str = "a100", memory: int = GPU_MEMORY) -> NodeFacts:
    """Return a node with 8 cores and 64 GiB for each GPU."""
    devices = tuple(DeviceFacts(str(n), index=n, memory=memory, model=model) for n in range(gpus))
    cores, ram = DeviceFacts("pool", 8000 * gpus), DeviceFacts("pool", 65_536 * gpus)
    return NodeFacts(f"n{number}", {GPU: devices, "cpu": (cores,), "mem": (ram,)})


def gpu_request(gpus: float, **fields: Any) -> ResourceRequest:
    """Return a request of this many GPUs on one node."""
    return ResourceRequest(gpus=GpuRequest(round(gpus * 1000), **fields))


class WorkloadBuilder:
    """Collects arrivals in order of time."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.arrivals: list[Arrival] = []
        self.next_id = 1
        self.time = 0.0

    def advance(self, mean_seconds: float) -> None:
        """Let a random time pass."""
        self.time += self.random.expovariate(1 / mean_seconds)

    def add(self, *events: e.Event) -> None:
        """Add events at this time."""
        self.arrivals.append(Arrival(self.time, list(events)))

    def submit(
        self,
        request: ResourceRequest,
        behaviour: JobBehaviour,
        count: int = 1,
        priority: int = 0,
        begin_at: float | None = None,
        **fields: Any,
    ) -> int:
        """Submit one job, or an array of equal ones; return the first id."""
        first, self.next_id = self.next_id, self.next_id + count
        recorded, hash = self._spec(request, behaviour, fields)
        submitted = e.JobsSubmitted(
            at=self.time, first=first, count=count, spec=hash, lines=("train",) * count,
            indexes=tuple(range(count)) if count > 1 else None, priority=priority,
            begin_at=begin_at,
        )  # fmt: skip
        jobs = {first + n: behaviour for n in range(count)}
        self.arrivals.append(Arrival(self.time, [recorded, submitted], jobs))
        return first

    def sweep(
        self,
        request: ResourceRequest,
        trials: list[JobBehaviour],
        rule: EarlyStoppingRule,
        **fields: Any,
    ) -> int:
        """Submit a sweep with all of its trials; return its id."""
        id, first = self.next_id, self.next_id + 1
        self.next_id = first + len(trials)
        sweep = Sweep(
            id=id, name="sweep", user="ada", identity=str(id), definition=str(id), method="random",
            created_at=self.time, metric="loss", rule=rule, total=len(trials), **fields,
        )  # fmt: skip
        recorded, hash = self._spec(request, trials[0], {})
        parameters = tuple((f'{{"x":{n}}}', f"train {n}") for n in range(len(trials)))
        submitted = e.JobsSubmitted(
            at=self.time, first=first, count=len(trials), spec=hash, sweep=id, trials=parameters
        )
        jobs = {first + n: behaviour for n, behaviour in enumerate(trials)}
        events = [e.SweepDefined(at=self.time, sweep=sweep), recorded, submitted]
        self.arrivals.append(Arrival(self.time, events, jobs))
        return id

    def _spec(
        self, request: ResourceRequest, behaviour: JobBehaviour, fields: dict[str, Any]
    ) -> tuple[e.Event, str]:
        training = Training(epochs=behaviour.epochs) if behaviour.epochs else None
        common = {"user": "ada", "name": "train", "training": training}
        spec = Spec(
            kind="line", directory="/", shell="", environment="none", request=request,
            **{**common, **fields},
        )  # fmt: skip
        hash = sha256(codec.encode(spec)).hexdigest()[:16]
        return e.SpecRecorded(at=self.time, hash=hash, spec=spec), hash

    def choose_policy(self, name: str, queue: str = "*", **parameters: float) -> None:
        """Choose the policy of a queue."""
        self.add(e.PolicyChosen(at=self.time, queue=queue, name=name, parameters=parameters))

    def training(self, gpus: int = 1, mean_seconds: float = HOUR, **fields: Any) -> JobBehaviour:
        """Return a training job of random length."""
        seconds = round(mean_seconds * self.random.lognormvariate(-0.5, 1.0)) + 60.0
        return JobBehaviour(seconds, epochs=self.random.randint(5, 20), gpus=gpus, **fields)

    def gpus(self) -> int:
        """Return a random number of GPUs."""
        return self.random.choices((1, 2, 4, 8), (60, 20, 12, 8))[0]


Nodes = list[NodeFacts]


def queues(build: WorkloadBuilder) -> Nodes:
    """Three queues with limits, policies of their own, and one of strict order."""
    build.choose_policy("planner")
    build.choose_policy("backfill", queue="batch")
    build.choose_policy("fifo", queue="strict")
    build.add(
        e.QueueDefined(at=0.0, name="batch", max_gpus=8000, max_running=6),
        e.QueueDefined(at=0.0, name="strict", max_gpus=12_000, strict=True, priority=1),
        e.QueueDefined(at=0.0, name="default", max_gpus=24_000),
    )
    for _ in range(300):
        build.advance(250.0)
        queue, gpus = build.random.choice(("default", "batch", "strict")), build.gpus()
        limit = build.random.choice((HOUR, 4 * HOUR, 24 * HOUR)) if queue != "default" else None
        build.submit(
            gpu_request(gpus), build.training(gpus), queue=queue,
            limit=None if limit is None else int(limit), user=build.random.choice("abc"),
        )  # fmt: skip
    return [make_node(number, 8) for number in range(4)]


def priorities(build: WorkloadBuilder) -> Nodes:
    """Jobs of four priorities, some of which change while they are pending."""
    build.choose_policy("backfill")
    for _ in range(300):
        build.advance(250.0)
        gpus = build.gpus()
        job = build.submit(
            gpu_request(gpus), build.training(gpus), priority=build.random.choice((0, 0, 0, 1, 5)),
            non_preemptible=build.random.random() < 0.2,
        )  # fmt: skip
        if build.random.random() < 0.1:
            build.add(e.JobHeld(at=build.time, job=job))
            build.advance(600.0)
            build.add(e.JobReleased(at=build.time, job=job))
    return [make_node(number, 8) for number in range(3)]


def fair_share(build: WorkloadBuilder) -> Nodes:
    """Two users, one of which submits ten times as much, with a strong fair share."""
    build.choose_policy("planner", fair=2.0)
    build.choose_policy("fair", queue="shared")
    for _ in range(300):
        build.advance(300.0)
        user = "busy" if build.random.random() < 0.9 else "modest"
        gpus = build.gpus()
        build.submit(
            gpu_request(gpus), build.training(gpus), user=user, name=f"train {user}",
            queue=build.random.choice(("default", "shared")),
        )  # fmt: skip
    return [make_node(number, 8) for number in range(3)]


def limits(build: WorkloadBuilder) -> Nodes:
    """Users and a group with limits of their own, each user and a queue, some of which change."""
    build.choose_policy("planner")
    build.choose_policy("backfill", queue="batch")

    def limit(type: SubjectKind, name: str, id: int | None = None, **values: Any) -> None:
        subject = Subject(type, name, id)
        build.add(e.LimitsSet(at=build.time, subject=subject, limits=Limits(**values)))

    limit("user", "*", max_gpus=12_000, gpu_hours=150)
    limit("user", "a", 1, max_running=4, max_gpus=16_000)
    limit("queue", "batch", max_job_gpus=4000, gpu_memory=8 * GPU_MEMORY)
    for number in range(300):
        build.advance(300.0)
        if number == 100:
            for uid in (2, 3):
                build.add(e.GroupsRecorded(at=build.time, uid=uid, groups=(7,)))
            limit("group", "g", 7, max_gpus=14_000)
        elif number == 200:
            limit("user", "a", 1)
        gpus, uid = build.gpus(), build.random.choice((1, 2, 3))
        most = 8000 if build.random.random() < 0.2 else None
        queue = build.random.choice(("default", "batch"))
        build.submit(
            gpu_request(gpus, max_amount=most if gpus < 8 else None), build.training(gpus),
            user="-abc"[uid], uid=uid, queue=queue, priority=int(build.random.random() < 0.1),
            limit=int(24 * HOUR) if queue == "batch" else None,
        )  # fmt: skip
    limit("queue", "batch")
    return [make_node(number, 8) for number in range(4)]


def advance_reservations(policy: str) -> Callable[[WorkloadBuilder], Nodes]:
    """Return a workload in which GPUs and nodes are reserved again and again."""

    def workload(build: WorkloadBuilder) -> Nodes:
        build.choose_policy(policy)
        owner = (Subject("user", "c", 3),)
        for number in range(300):
            build.advance(300.0)
            chance = build.random
            if number % 20 == 0:
                node, begin = (
                    f"n{chance.randrange(4)}",
                    build.time + chance.choice((0.0, 3.0)) * HOUR,
                )
                whole = chance.random() < 0.3
                reservation = AdvanceReservation(
                    f"r{number}", begin, begin + chance.choice((1, 4)) * HOUR,
                    gpus=() if whole else tuple(f"{node}/{gpu}" for gpu in range(4)),
                    nodes=(node,) if whole else (), subjects=owner,
                )  # fmt: skip
                build.add(e.ReservationMade(at=build.time, reservation=reservation))
            gpus, uid = build.gpus(), chance.choice((1, 2, 3))
            limit = chance.choice((None, 1800, 7200, 43_200))
            behaviour = build.training(gpus) if chance.random() < 0.5 else None
            build.submit(
                gpu_request(gpus), behaviour or JobBehaviour(float(chance.randint(60, 10_000))),
                user="-abc"[uid], uid=uid, limit=limit, requeueable=chance.random() < 0.3,
            )  # fmt: skip
        return [make_node(number, 8) for number in range(4)]

    return workload


def gangs(build: WorkloadBuilder) -> Nodes:
    """Jobs on several nodes; some name models, nodes or GPUs, or want whole nodes."""
    build.choose_policy("planner")
    for _ in range(300):
        build.advance(400.0)
        gpus, kind = build.random.choice((1, 2, 4)), build.random.randrange(8)
        request = gpu_request(gpus)
        if kind < 3:
            machines = build.random.choice((2, 3))
            request, gpus = (
                ResourceRequest(gpus=GpuRequest(gpus * 1000), node_count=machines),
                gpus * machines,
            )
        elif kind == 3:
            request = gpu_request(gpus, model=build.random.choice(("a100", "v100")))
        elif kind == 4:
            request = ResourceRequest(
                gpus=GpuRequest(gpus * 1000), nodes=(f"n{build.random.randrange(6)}",)
            )
        elif kind == 5:
            request, gpus = gpu_request(2, required=("0", "1", "2")), 2
        elif kind == 6:
            request = ResourceRequest(
                gpus=GpuRequest(gpus * 1000), exclusive=True, not_nodes=("n0",)
            )
        build.submit(request, build.training(gpus), non_preemptible=build.random.random() < 0.3)
    return [make_node(number, 4, "a100" if number < 3 else "v100") for number in range(6)]


def sweeps(build: WorkloadBuilder) -> Nodes:
    """Sweeps with early stopping, beside other jobs."""
    build.choose_policy("planner")
    rungs = (1.0, 3.0, 9.0)
    rules = (
        EarlyStoppingRule("halving", rungs, eta=3.0),
        EarlyStoppingRule("halving", rungs, eta=2.0, brackets=3),
        EarlyStoppingRule("median", rungs, trials=3),
    )  # fmt: skip
    for number in range(9):
        build.advance(2 * HOUR)
        trials = [
            JobBehaviour(27 * 60.0, epochs=27, loss=build.random.uniform(0.1, 1.0), rungs=rungs)
            for _ in range(24)
        ]
        target = 0.2 if number % 2 else None
        build.sweep(gpu_request(1), trials, rules[number % 3], target=target, max_running=6)
        for _ in range(12):
            build.advance(300.0)
            gpus = build.gpus()
            build.submit(gpu_request(gpus), build.training(gpus))
    return [make_node(0, 8)]


def memory(build: WorkloadBuilder) -> Nodes:
    """Jobs that share GPUs by memory, use more than requested and run out of it."""
    build.choose_policy("planner")
    for _ in range(150):
        build.advance(300.0)
        requested = build.random.choice((4_000, 8_000, 12_000))
        used = int(requested * build.random.choice((0.5, 0.9, 1.0, 1.6, 2.2)))
        kind = build.random.random()
        request = gpu_request(1, memory=requested, shareable=True)
        behaviour = build.training(gpu_memory=min(used, GPU_MEMORY))
        if kind < 0.1:
            request, behaviour = gpu_request(0.5), build.training()
        elif kind < 0.25:
            memory_kind = build.random.choice(("host", "cuda"))
            behaviour = build.training(failures=1, failure_memory=memory_kind)
        build.submit(
            request, behaviour, name=f"family {build.random.randrange(12)}",
            retry=Retry(limit=2, on=("oom",)),
        )  # fmt: skip
    return [make_node(0, 4), make_node(1, 2, "h100", 2 * GPU_MEMORY)]


def elastic(policy: str) -> Callable[[WorkloadBuilder], Nodes]:
    """Return a workload of elastic jobs under a policy, with idle times in which they grow."""

    def workload(build: WorkloadBuilder) -> Nodes:
        build.choose_policy(policy)
        for number in range(150):
            build.advance(4 * HOUR if number % 15 == 0 else 500.0)
            least = build.random.choice((1, 1, 2))
            most = build.random.choice((4, 8)) * 1000 if build.random.random() < 0.7 else None
            build.submit(
                gpu_request(least, max_amount=most), build.training(least, 2 * HOUR),
                name=f"family {build.random.randrange(6)}",
                non_preemptible=build.random.random() < 0.2,
                priority=int(build.random.random() < 0.1),
            )  # fmt: skip
        return [make_node(number, 8) for number in range(2)]

    return workload


def non_preemptible(build: WorkloadBuilder) -> Nodes:
    """Half of the jobs are never preempted, some have limits; large ones wait behind small ones."""
    build.choose_policy("planner", patience=2 * HOUR, overdue=2.0)
    for _ in range(400):
        build.advance(150.0)
        gpus = build.random.choices((1, 2, 4, 8), (40, 25, 20, 15))[0]
        machines = 2 if gpus == 8 and build.random.random() < 0.3 else 1
        request = ResourceRequest(
            gpus=GpuRequest(gpus * 1000), cpus=gpus * 4000, node_count=machines
        )
        limit = 6 * 3600 if build.random.random() < 0.3 else None
        build.submit(
            request, build.training(gpus * machines), non_preemptible=build.random.random() < 0.5,
            limit=limit, name=f"family {build.random.randrange(20)}",
            user=build.random.choice("abc"),
        )  # fmt: skip
    return [make_node(number, 8) for number in range(4)]


def times(build: WorkloadBuilder) -> Nodes:
    """Begin times, dependencies, deadlines, time limits, retries, cancellations and arrays."""
    build.choose_policy("backfill")
    jobs: list[int] = []
    for _ in range(300):
        build.advance(300.0)
        gpus, kind, chance = build.gpus(), build.random.randrange(8), build.random
        fields: dict[str, Any] = {"limit": chance.choice((1800, 7200, 43_200))}
        behaviour = JobBehaviour(float(chance.randint(60, 10_000)))
        if kind == 0:
            fields["begin_at"] = build.time + chance.choice((600.0, HOUR))
        elif kind == 1 and jobs:
            clause = Clause(chance.choice(("afterok", "afterany", "afternotok")), (jobs[-1],))
            fields["dependency"] = Dependency((clause,))
        elif kind == 2 and jobs:
            fields["dependency"] = Dependency((Clause("after", (jobs[-1],), 600),))
        elif kind == 3:
            fields["deadline_at"] = build.time + 4 * HOUR
        elif kind == 4:
            fields["retry"] = Retry(limit=2)
            behaviour = JobBehaviour(behaviour.seconds, failures=chance.randint(1, 3))
        elif kind == 5:
            fields |= {"early_signal": EarlySignal(10, 120), "requeueable": chance.random() < 0.5}
        elif kind == 6:
            fields |= {"count": 6, "array_limit": 2}
            gpus = 1
        jobs.append(build.submit(gpu_request(gpus), behaviour, **fields))
        if kind == 7:
            build.advance(300.0)
            build.add(e.JobCancelled(at=build.time, job=jobs[-1]))
    return [make_node(number, 8) for number in range(2)]


def allocations(build: WorkloadBuilder) -> Nodes:
    """Nodes that join for a few hours beside one that stays, for jobs with and without limits."""
    build.choose_policy("planner")
    build.choose_policy("backfill", queue="batch")
    for number in range(1, 13):
        build.time = number * 1.5 * HOUR
        end = build.time + build.random.choice((2, 4, 8)) * HOUR
        facts = replace(make_node(number, 4), ends_at=end)
        build.add(e.NodeJoined(at=build.time, facts=facts))
        build.arrivals.append(Arrival(end, ended_nodes=(facts.name,)))
    build.time = 0.0
    for _ in range(250):
        build.advance(300.0)
        gpus, kind, chance = min(build.gpus(), 4), build.random.randrange(5), build.random
        fields: dict[str, Any] = {"queue": chance.choice(("default", "batch"))}
        behaviour = build.training(gpus)
        if kind > 1:
            behaviour = JobBehaviour(float(chance.randint(60, 10_000)))
            limit = chance.choice((None, 1800, 7200, 14_400))
            fields |= {"limit": limit, "requeueable": chance.random() < 0.5}
        if kind == 4:
            fields["early_signal"] = EarlySignal(10, 120)
        build.submit(gpu_request(gpus), behaviour, priority=int(kind == 2), **fields)
    return [make_node(0, 4)]


WORKLOADS: dict[str, Callable[[WorkloadBuilder], Nodes]] = {
    "queues": queues,
    "priorities": priorities,
    "fair share": fair_share,
    "limits": limits,
    "reservations": advance_reservations("planner"),
    "reservations, backfill": advance_reservations("backfill"),
    "reservations, conservative": advance_reservations("conservative"),
    "gangs": gangs,
    "sweeps": sweeps,
    "memory": memory,
    "elastic": elastic("planner"),
    "elastic without rounds": elastic("backfill"),
    "half non-preemptible": non_preemptible,
    "times": times,
    "allocations": allocations,
}


def simulate(
    title: str, cycles_per_restart: int = 0, max_arrivals: int | None = None
) -> SimulatedCluster:
    """Run a workload, or its first arrivals; return the cluster at its end."""
    build = WorkloadBuilder(title)
    nodes = WORKLOADS[title](build)
    cluster = SimulatedCluster(nodes, build.arrivals[:max_arrivals], cycles_per_restart)
    cluster.run()
    return cluster


@dataclass(frozen=True)
class WorkloadScenario:
    """One random workload."""

    title: str
    has_restarts: bool = False
    """Whether the state is read back from the store every 100 cycles."""

    @property
    def name(self) -> str:
        """Key of the scenario in the file of expected hashes."""
        return f"{self.title} / restarts" if self.has_restarts else self.title

    def run(self) -> dict[str, Any]:
        """Run the workload; return the hash of all events that the core made."""
        cluster = simulate(self.title, CYCLES_PER_RESTART if self.has_restarts else 0)
        return {**cluster.decisions.result(), "ended": cluster.ended_jobs}


WORKLOAD_SCENARIOS = tuple(
    WorkloadScenario(title, restarts) for title in WORKLOADS for restarts in (False, True)
)
