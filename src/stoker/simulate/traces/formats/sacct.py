"""Slurm accounting: the output of `sacct -P` with its header."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import NamedTuple

from stoker.core.model.units import BadValue, parse_duration, parse_memory
from stoker.simulate.traces import field_parsers
from stoker.simulate.traces.errors import TraceError, invalid_line
from stoker.simulate.traces.field_parsers import BadCell, Memo, missing, parse_cell
from stoker.simulate.traces.files import count_jobs, open_text, skipped_notes, sorted_workload
from stoker.simulate.workload import TraceJob, Workload

COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -P -S 2026-01-01 -E now -o "
    "JobID,User,Partition,Submit,Start,End,Elapsed,Timelimit,State,ReqTRES,AllocTRES,JobName"
)
"""Command that writes a file with all columns."""

_UNFINISHED = (
    "PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "CONFIGURING", "COMPLETING",
)  # fmt: skip
_NEVER = "never started"
_NOT_OVER = "not ended"
_NO_TIME = "the run time is zero"
_NOTHING = "no GPU and no core allocated"
_GPU = re.compile(r"gres/gpu(?::([^=:]+))?")

Places = Mapping[str, int]


def is_header(line: str) -> bool:
    """Return True if a line is the header of this format."""
    names = _names(line)
    return "|" in line and "submit" in names and not {"jobid", "jobidraw"}.isdisjoint(names)


def read(path: Path) -> Workload:
    """Read the jobs that have started and ended, without their steps."""
    with open_text(path) as file:
        places = _places(path, file.readline())
        reader = _Reader(places)
        jobs: list[TraceJob] = []
        line, row = 1, [""]
        rows = _rows(file, places)
        try:
            for line, row in rows:  # noqa: B007 - used in error messages
                job = reader.job(row)
                if job is not None:
                    jobs.append(job)
        except BadCell as error:
            raise invalid_line(path, line, error) from None
        except IndexError:
            why = f"expected {len(places)} cells as in the header, found {len(row)}"
            raise invalid_line(path, line, why) from None
    notes = skipped_notes(reader.counts)
    cores_only = sum(not job.gpus for job in jobs)
    if cores_only:
        notes.append(f"{count_jobs(cores_only, 'requests')} cores only.")
    return sorted_workload(path, jobs, notes)


def _names(line: str) -> list[str]:
    return [name.strip().lower() for name in line.strip().removesuffix("|").split("|")]


def _places(path: Path, line: str) -> Places:
    names = _names(line)
    places = {name: index for index, name in enumerate(names)}
    if "submit" not in places:
        absent = "Submit"
    elif places.keys().isdisjoint({"elapsed", "elapsedraw"}) and not {"start", "end"} <= set(names):
        absent = "Elapsed"
    elif places.keys().isdisjoint({"alloctres", "reqtres"}):
        absent = "AllocTRES"
    else:
        return places
    raise TraceError(f"{path}, line 1: column {absent} is missing; export it with: {COMMAND}")


def _rows(file: Iterator[str], places: Places) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of whole jobs."""
    width, name = len(places), places.get("jobname")
    id = places.get("jobid", places.get("jobidraw", 0))
    for number, line in enumerate(file, 2):
        row = line.rstrip("\r\n").split("|")
        if len(row) > width and row[-1] == "":
            row.pop()  # sacct -p ends each line with a bar
        more = len(row) - width
        if more > 0 and name is not None:  # a bar in the job's name
            row[name : name + more + 1] = ["|".join(row[name : name + more + 1])]
        if row == [""] or (len(row) > id and "." in row[id]):
            continue
        yield number, row


class Tres(NamedTuple):
    """TRES (trackable resources) of one job."""

    gpus: float
    models: tuple[str, ...]
    cpus: float
    ram: int


class _Reader:
    """Parses rows; equal cells of a column are parsed once."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.counts: Counter[str] = Counter()
        self._tres = Memo(_tres)
        self._seconds = Memo(field_parsers.seconds)
        self._limits = Memo(_duration)
        self._raw_limits = Memo(_minutes)

    def job(self, row: list[str]) -> TraceJob | None:
        """Return a job; None, and a count, if it cannot be replayed."""
        places = self.places

        def cell(name: str) -> str:
            index = places.get(name)
            return "" if index is None else row[index]

        if "start" in places and missing(cell("start")):
            self.counts[_NEVER] += 1
            return None
        if cell("state").partition(" ")[0] in _UNFINISHED or (
            "end" in places and missing(cell("end"))
        ):
            self.counts[_NOT_OVER] += 1
            return None
        seconds = self._elapsed(cell)
        if not seconds:
            self.counts[_NO_TIME] += 1
            return None
        requested, allocated = self._tres[cell("reqtres")], self._tres[cell("alloctres")]
        tres = allocated or requested
        if tres is None or not (tres.gpus or tres.cpus):
            self.counts[_NOTHING] += 1
            return None
        return TraceJob(
            submit_time=parse_cell("Submit", cell("submit"), field_parsers.moment),
            duration=seconds,
            gpus=tres.gpus,
            user=intern(cell("user")),
            name=intern(cell("jobname")),
            queue=intern(cell("partition")),
            cpus=tres.cpus,
            ram=tres.ram,
            time_limit=self._limit(cell("timelimitraw"), cell("timelimit")),
            gpu_models=(requested or tres).models,  # the allocated model is not a requirement
        )

    def _elapsed(self, cell: Callable[[str], str]) -> float:
        for name, title in (("elapsedraw", "ElapsedRaw"), ("elapsed", "Elapsed")):
            text = cell(name)
            if text and not missing(text):
                return parse_cell(title, text, self._seconds.__getitem__)
        start = parse_cell("Start", cell("start"), field_parsers.moment)
        end = parse_cell("End", cell("end"), field_parsers.moment)
        if end < start:
            raise BadCell(f"the job ends ({cell('end')}) before it starts ({cell('start')})")
        return parse_cell("End - Start", str(end - start), field_parsers.seconds)

    def _limit(self, minutes: str, duration: str) -> int | None:
        if _has_limit(minutes):
            return parse_cell("TimelimitRaw", minutes, self._raw_limits.__getitem__)
        if _has_limit(duration):
            return parse_cell("Timelimit", duration, self._limits.__getitem__)
        return None


def _has_limit(text: str) -> bool:
    return not missing(text) and text.lower() not in field_parsers.UNLIMITED


def _minutes(text: str) -> int | None:
    return field_parsers.limit_of(field_parsers.parse_number(text) * 60)


def _duration(text: str) -> int | None:
    try:
        return parse_duration(text) or None
    except BadValue:
        raise BadCell("a duration such as 1-00:00:00") from None


def _tres(text: str) -> Tres | None:
    """Parse `cpu=8,gres/gpu=2,mem=64G`; None if empty."""
    if not text:
        return None
    pairs = (part.partition("=") for part in text.split(",") if part)
    amounts = {name: value for name, _, value in pairs}
    gpus, models = _gpus(amounts)
    return Tres(gpus, models, _number(amounts, "cpu"), _ram(amounts))


def _gpus(tres: Mapping[str, str]) -> tuple[float, tuple[str, ...]]:
    """Return the number of GPUs and their models; Slurm lists typed GPUs twice."""
    total, of_models, models = 0.0, 0.0, []
    for name in tres:
        match = _GPU.fullmatch(name)
        if match is None:
            continue
        if match[1] is None:
            total = _number(tres, name)
        else:
            of_models += _number(tres, name)
            models.append(intern(match[1]))
    return total or of_models, tuple(models)


def _number(tres: Mapping[str, str], name: str) -> float:
    text = tres.get(name, "")
    return parse_cell(name, text, field_parsers.amount) if text else 0.0


def _ram(tres: Mapping[str, str]) -> int:
    text = tres.get("mem", "")
    try:
        return parse_memory(text) if text else 0
    except BadValue:
        raise BadCell(f"mem '{text[:40]}' is not a size such as 64G") from None
