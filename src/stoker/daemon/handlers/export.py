"""GET /export: the jobs that wait, as submissions to another daemon (`stoker system adopt`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from stoker.core.model.dependency import DependencyStatus
from stoker.core.model.job import Job, JobState
from stoker.core.model.spec import Spec, default_name
from stoker.core.model.sweep import WAITING, Sweep
from stoker.core.model.units import BadValue
from stoker.core.options.render import render_options, timestamp
from stoker.core.options.submit import Options, ParseContext, parse_options
from stoker.core.state.eligibility import dependency_target
from stoker.core.state.state import State
from stoker.daemon.context import RequestContext, reply_only
from stoker.daemon.submission.environment import build_environment
from stoker.daemon.submission.training import keep_user_settings, limit_to_queue
from stoker.daemon.sweeps.stored import load_sweep
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema.export import ExportedClause, ExportedJobs, ExportReply, KeptJob


class CannotMove(Exception):
    """A job must end where it is; the message says why."""


def export_jobs(
    context: RequestContext, unheld: bool, state: State, now: Instant
) -> CommandResult:  # fmt: skip
    """Return all held jobs that can be submitted elsewhere, in an order of their dependencies.

    With `unheld`, also jobs that are not held, which may start at any moment.
    """
    if context.is_system:
        raise CommandRejected("The jobs of this daemon cannot be moved elsewhere.", "usage")
    return reply_only(_Export(context, state, now).reply(unheld))


class _Export:
    def __init__(self, context: RequestContext, state: State, now: Instant) -> None:
        self.context, self.state, self.now = context, state, now
        self.bodies: dict[str, dict[str, Any] | CannotMove] = {}
        """Submissions by spec, or why there is none."""
        self.needed: set[int] = set()
        """Jobs that sweeps which stay depend on."""

    def reply(self, unheld: bool) -> ExportReply:
        """Return the jobs to move in order, and those that stay."""
        kept: dict[int, KeptJob] = {}
        waiting = []
        sweeps = list(self._sweeps(kept, unheld))
        for job in sorted(self.state.jobs.values(), key=lambda job: (-job.priority, job.id)):
            if job.finished or job.array in self.state.sweeps:
                continue
            try:
                self._check(job)
                if job.held or unheld:
                    waiting.append(job)
                else:
                    self._keep(job, kept, "it is not held")
            except CannotMove as error:
                self._keep(job, kept, str(error), is_running=job.state is not JobState.PENDING)
        ordered = self._in_order(waiting, kept)
        return ExportReply(jobs=[*self._units(ordered), *sweeps], kept=list(kept.values()))

    def _sweeps(self, kept: dict[int, KeptJob], unheld: bool) -> Iterable[ExportedJobs]:
        """Yield sweeps of which no trial has started; note the others, and what they need."""
        dependencies = (self.state.spec(job).dependency for job in self.state.jobs.values()
                        if not job.finished)  # fmt: skip
        wanted = {id for each in dependencies if each is not None for id in each.jobs()}
        for sweep in self.state.sweeps.values():
            if not sweep.is_open:
                continue
            trials = [job for job in self.state.jobs.values() if job.array == sweep.id]
            has_begun = any(n for status, n in sweep.counts.items() if status != WAITING)
            stored = load_sweep(self.context, sweep)
            why = "it is not held"
            if has_begun or any(job.attempt or job.past for job in trials):
                why = "it has begun, and ends here"
            elif stored.spec.dependency is not None:
                why = "it depends on other jobs"
            elif not wanted.isdisjoint([sweep.id, *(job.id for job in trials)]):
                why = "a job depends on it"
            elif sweep.held or unheld:
                try:
                    body = self._body(replace(stored.spec, source=None))
                except CannotMove as error:
                    why = str(error)
                else:
                    yield self._sweep(sweep, stored.definition, body)
                    continue
            kept[sweep.id] = KeptJob(id=sweep.id, label=str(sweep.id), why=why)
            if stored.spec.dependency is not None:
                self.needed |= stored.spec.dependency.jobs()

    def _sweep(
        self, sweep: Sweep, definition: dict[str, Any], body: dict[str, Any]
    ) -> ExportedJobs:  # fmt: skip
        options = {**body["options"], "hold": True, "priority": str(sweep.priority)}
        if not sweep.priority:
            del options["priority"]
        definition = {**definition, "max_running": sweep.max_running}
        return ExportedJobs(
            ids=[sweep.id], unheld=[] if sweep.held else [sweep.id], label=str(sweep.id),
            sweep=True,
            submission={**body, "options": options, "definition": definition, "new": True},
        )  # fmt: skip

    @staticmethod
    def _keep(
        job: Job, kept: dict[int, KeptJob], why: str, *, is_running: bool = False
    ) -> None:  # fmt: skip
        kept[job.id] = KeptJob(id=job.id, label=job.label, why=why, is_running=is_running)

    def _check(self, job: Job) -> None:
        spec = self.state.spec(job)
        if job.state is not JobState.PENDING:
            raise CannotMove("it runs, and ends here")
        if job.attempt or job.past:
            raise CannotMove("it has run before, and continues here")
        if spec.feed or spec.pty:
            raise CannotMove("it belongs to a command that waits for it")
        if spec.dependency is not None and spec.dependency.is_by_member:
            raise CannotMove("its members depend on those of another array")
        body = self.bodies.get(job.spec)
        if body is None:
            try:
                body = self._body(spec)
            except CannotMove as error:
                body = error
            self.bodies[job.spec] = body
        if isinstance(body, CannotMove):
            raise body

    def _in_order(self, waiting: list[Job], kept: dict[int, KeptJob]) -> list[Job]:
        """Return jobs after those that they depend on; jobs of one dependency stay together."""
        depends_on = {
            id: {other for clause in self._clauses(self.state.jobs[id]) for other in clause.jobs}
            for id in [*(job.id for job in waiting), *kept]
            if id in self.state.jobs
        }
        ordered: dict[int, Job] = {}
        while waiting:
            needed = {other for id in kept for other in depends_on.get(id, ())} | self.needed
            staying = [job for job in waiting
                       if job.id in needed or depends_on[job.id] & kept.keys()]  # fmt: skip
            for job in staying:
                self._keep(job, kept, "a job that stays depends on it, or it on that job")
                ordered.pop(job.id, None)
            if staying:
                waiting = [job for job in [*ordered.values(), *waiting] if job.id not in kept]
                ordered.clear()
                continue
            ready = [job for job in waiting if depends_on[job.id] <= ordered.keys()]
            if not ready:
                for job in waiting:
                    self._keep(job, kept, "its dependency cannot be met, or is on a sweep")
                waiting = [*ordered.values()]
                ordered.clear()
                continue
            ordered |= {job.id: job for job in ready}
            waiting = [job for job in waiting if job.id not in ordered]
        return list(ordered.values())

    def _clauses(self, job: Job) -> list[ExportedClause]:
        """Return what of a job's dependency is still open."""
        dependency = self.state.spec(job).dependency
        if dependency is None or job.delay_over:
            return []
        target, now = partial(dependency_target, self.state), self.now.wall
        if dependency.status(target, now)[0] is DependencyStatus.MET:
            return []
        clauses = []
        for clause in dependency.clauses:
            alone = replace(dependency, clauses=(clause,))
            status, open_jobs, _ = alone.status(target, now)
            if status is not DependencyStatus.MET:
                jobs = open_jobs or list(clause.jobs)
                clauses.append(ExportedClause(kind=clause.kind, jobs=jobs, delay=clause.delay))
        return clauses

    def _units(self, jobs: list[Job]) -> Iterable[ExportedJobs]:
        """Yield one submission for the members of an array, for equal lines, for any other job."""

        def key(job: Job) -> tuple[Any, ...]:
            is_line = job.array is None and isinstance(job.command, str)
            alone = None if is_line or job.array is not None else job.id
            return job.spec, job.array, job.priority, job.begin_at, _given_name(job), alone

        for (hash, array, *_), group in groupby(jobs, key):
            members = sorted(group, key=lambda job: (job.index or 0, job.id))
            first, spec = members[0], self.state.spec(members[0])
            body = self.bodies[hash]
            assert isinstance(body, dict)
            options = {**body["options"], "hold": True}
            if name := _given_name(first):
                options["name"] = name
            queue = self.state.record.queues.get(spec.queue)
            if first.priority != (queue.priority if queue else 0):
                options["priority"] = str(first.priority)
            if first.begin_at is not None and first.begin_at > self.now.wall:
                options["begin"] = timestamp(first.begin_at)
            if array is not None:
                limit = f"%{spec.array_limit}" if spec.array_limit else ""
                options["array"] = ",".join(str(job.index) for job in members) + limit
            dependency = spec.dependency
            yield ExportedJobs(
                ids=[job.id for job in members],
                unheld=[job.id for job in members if not job.held],
                label=str(array) if array is not None else first.label,
                submission={**body, "options": options, "what": self._what(spec, members)},
                clauses=self._clauses(first),
                any=dependency is not None and dependency.any,
            )

    def _what(self, spec: Spec, jobs: list[Job]) -> dict[str, Any]:
        command = jobs[0].command
        if spec.script is not None:
            text = self.context.store.blob(spec.script)
            assert text is not None
            return {
                "script": text.decode(), "script_name": spec.script_name, "args": list(spec.args),
            }  # fmt: skip
        if isinstance(command, tuple):
            return {"argv": list(command)}
        if len(jobs) == 1 or jobs[0].array is not None:
            return {"line": command}
        return {"lines": [job.command for job in jobs]}

    def _body(self, spec: Spec) -> dict[str, Any]:
        """Return the submission of a spec, or raise if it would become another one."""
        stored = self.context.store.secret(spec.environment)
        if stored is None:
            raise CannotMove("its environment is lost")
        entries = (entry.partition(b"=") for entry in stored.split(b"\0") if entry)
        try:
            variables = {name.decode(): value.decode() for name, _, value in entries}
            options = render_options(spec, variables)
            is_equal = self._reparsed(spec, options, variables, stored) == _comparable(spec)
        except (BadValue, UnicodeDecodeError):
            is_equal = False
        if not is_equal:
            raise CannotMove("its options cannot be submitted again; submit it by hand")
        return {
            "directory": spec.directory, "shell": spec.shell, "umask": spec.umask,
            "environment": variables, "options": options,
        }  # fmt: skip

    def _reparsed(
        self, spec: Spec, options: Options, variables: dict[str, str], stored: bytes
    ) -> Spec:
        """Return the spec that the options make."""
        none = ParseContext(self.now.wall, lambda _: [], lambda _: [])
        parsed = parse_options(options, none)
        environment = build_environment(variables, parsed)
        keep_user_settings(parsed, environment)
        if environment != stored:
            raise BadValue("another environment")
        fields = {key: value for key, value in parsed.fields.items() if value is not None}
        same = {
            key: getattr(spec, key)
            for key in ("kind", "user", "directory", "shell", "environment", "umask", "script",
                        "script_name", "args", "uid", "fill", "dependency", "array_limit",
                        "array_size", "array_range")
        }  # fmt: skip
        made = replace(Spec(request=parsed.request, name=spec.name, **same), **fields)
        return _comparable(
            limit_to_queue(self.state, made, self.context.limits_of(spec, self.state))
        )


def _given_name(job: Job) -> str | None:
    """Return the name of a job, None if it is that of its command."""
    return None if job.name == default_name(job.command) else job.name


def _comparable(spec: Spec) -> Spec:
    """Return a spec without what a daemon adds for its own node."""
    if spec.container is None:
        return spec
    mounts = tuple(replace(mount, expected=False) for mount in spec.container.mounts)
    return replace(spec, container=replace(spec.container, mounts=mounts))
