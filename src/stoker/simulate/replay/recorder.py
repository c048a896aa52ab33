"""What is written down while a workload is played: ends, use, the queue, who was where."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.cluster import NodeFacts, Placement
from stoker.core.request import GPU
from stoker.simulate.replay.results import JobResult, RunCost, RunResult, Segment
from stoker.simulate.workload import TraceJob, Workload

MOST_POINTS = 4000
"""Of a curve over time; when there are more, every other one is dropped."""


class StepSeries:
    """A quantity over time, thinned out as it becomes too long."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self.apart = 0.0
        """Points are at least so many seconds apart."""
        self.last: tuple[float, float] | None = None

    def note(self, at: float, value: float) -> None:
        """From this moment on it is so much."""
        if self.points and at - self.points[-1][0] < self.apart:
            self.last = (at, value)
            return
        self.last = None
        if self.points and self.points[-1][0] == at:
            self.points[-1] = (at, value)
            return
        self.points.append((at, value))
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]
            self.apart = (self.points[-1][0] - self.points[0][0]) / (MOST_POINTS / 2)

    def whole(self) -> list[tuple[float, float]]:
        """All of it, to its end."""
        return [*self.points, self.last] if self.last is not None else self.points


class RunRecorder:
    """One run, as it goes."""

    def __init__(self, nodes: list[NodeFacts], pieces: int) -> None:
        self.names = {each.name: number for number, each in enumerate(nodes)}
        self.gpus = sum(len(each.types.get(GPU, ())) for each in nodes)
        self.first = {
            (each.name, card.name): at
            for each in nodes
            for at, card in enumerate(each.types.get(GPU, ()))
        } if pieces else {}  # fmt: skip
        self.most = pieces
        self.results: list[JobResult] = []
        self.open: dict[int, JobResult] = {}
        self.since: dict[int, float] = {}
        self.pieces: list[Segment] = []
        self.held = 0.0
        self.shared: dict[tuple[str, str], int] = {}
        """How many share each GPU."""
        self.use, self.queue = StepSeries(), StepSeries()
        self.ended = 0

    def begun(self, id: int, load: TraceJob, at: float, placement: Placement) -> None:
        """An attempt holds GPUs from now on."""
        if id not in self.open:
            self.open[id] = JobResult(
                job=id - 1, at=load.at, gpus=load.gpus, begin=at, end=at, ran=0.0, service=0.0,
                user=load.user, queue=load.queue,
            )  # fmt: skip
        self.since[id] = at
        self.held += placement.gpu_amount / 1000 - self._with_others(placement, +1)

    def over(
        self, id: int, load: TraceJob, at: float, placement: Placement | None, ended: bool,
        resized: bool = False,
    ) -> None:  # fmt: skip
        """An attempt is over, and perhaps the job."""
        result, since = self.open[id], self.since.pop(id)
        gpus = placement.gpu_amount / 1000 if placement is not None else 0.0
        result.ran += at - since
        result.service += (at - since) * gpus
        self.held -= gpus
        if placement is not None:
            self.held += self._with_others(placement, -1)
        if placement is not None and len(self.pieces) < self.most:
            self._draw(id, since, at, placement)
        if ended:
            result.end = at
            self.results.append(self.open.pop(id))
            self.ended += 1
        elif resized:
            result.resizes += 1
        else:
            result.preemptions += 1

    def _with_others(self, placement: Placement, step: int) -> int:
        """How many of its GPUs are held by others as well, when it comes or has gone."""
        found = 0
        for part in placement.parts:
            for take in part.takes:
                if take.shares:
                    gpu = (part.node, take.device)
                    before = self.shared.get(gpu, 0)
                    self.shared[gpu] = before + step
                    found += min(before, before + step) > 0
        return found

    def _draw(self, id: int, begin: float, end: float, placement: Placement) -> None:
        for part in placement.parts:
            takes = [take for take in part.takes if take.type == GPU]
            if takes:
                first = min(self.first[part.node, take.device] for take in takes)
                gpus = sum(1.0 if take.shares else take.amount / 1000 for take in takes)
                self.pieces.append(Segment(id - 1, self.names[part.node], first, gpus, begin, end))

    def note(self, at: float, waiting: int) -> None:
        """A turn is over."""
        self.use.note(at, self.held)
        self.queue.note(at, waiting)

    def told(
        self,
        policy: str,
        parameters: dict[str, float],
        workload: Workload,
        spent: Sequence[float],
        unfinished: int,
    ) -> RunResult:
        """The whole story."""
        spent = sorted(spent)
        cost = RunCost(
            events=len(spent),
            seconds=sum(spent),
            median=spent[len(spent) // 2] if spent else 0.0,
            p99=spent[int(len(spent) * 0.99)] if spent else 0.0,
        )
        return RunResult(
            policy=policy,
            parameters=parameters,
            workload=workload.title,
            gpus=self.gpus,
            machines=list(self.names),
            results=sorted(self.results, key=lambda each: each.job),
            unfinished=unfinished,
            in_use=self.use.whole(),
            queued=[(at, int(value)) for at, value in self.queue.whole()],
            pieces=self.pieces,
            cost=cost,
            notes=workload.notes,
        )
