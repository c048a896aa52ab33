"""`stoker system adopt`: move the jobs that wait in a user's own queue to the system daemon.

A plan is on disk before anything is changed, and every step may be repeated: after a crash, the
next `adopt` goes on with it. A job is held here, submitted and held there, cancelled here, and
only then released there. So it never can start in both places, and is never in neither.
"""

from __future__ import annotations

import fcntl
import json
import os

from stoker import places, wire
from stoker.cli import output
from stoker.client import route
from stoker.client.client import Client, new_key
from stoker.client.errors import DaemonUnreachable, PermissionDenied, StokerError
from stoker.wire import JsonObject

IDS_PER_REQUEST = 1000


class Plan:
    """What is under way, in the state directory of the own daemon: it has environments."""

    def __init__(self) -> None:
        self.path = os.path.join(places.state_dir(), "adopt.json")
        self.held: list[str] = []
        """Selectors of jobs that are held for the move, not by their user."""
        self.jobs: list[JsonObject] | None = None
        """Submissions with their keys; None: they are not exported yet."""
        self.unwanted: list[str] = []
        """Selectors of copies that are to be cancelled, because their jobs stay here."""
        try:
            with open(self.path, encoding="utf-8") as file:
                content = json.load(file)
        except FileNotFoundError:
            return
        self.held, self.jobs, self.unwanted = (
            content[key] for key in ("held", "jobs", "unwanted")
        )  # fmt: skip

    def write(self) -> None:
        """Write it atomically and durably."""
        content = {"held": self.held, "jobs": self.jobs, "unwanted": self.unwanted}
        places.write_private(self.path, json.dumps(content))
        directory = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class Move:
    """One run of the command."""

    def __init__(self, own: Client, system: Client) -> None:
        self.own, self.system, self.plan = own, system, Plan()
        self.moved: dict[str, str] = {}
        """Labels here and there."""
        self.problems: list[str] = []

    def carry_out(self) -> None:
        """Go on with the plan of an interrupted run, or make one, and carry it out."""
        if self.plan.jobs is None:
            self._make_plan()
        copies = self._submit_copies()
        self._drop_unwanted(copies)
        for exported in self.plan.jobs or ():
            self._replace_by(exported, copies)
        _release(self.own, self.plan.held)
        os.unlink(self.plan.path)

    def _make_plan(self) -> None:
        waiting = self.own.export(unheld=True)["jobs"]
        free = [_selector(each, id) for each in waiting for id in each["unheld"]]
        self.plan.held = sorted({*self.plan.held, *free})
        self.plan.write()
        for part in _parts(self.plan.held):
            self.own.hold(part)
        jobs = self.own.export()["jobs"]
        self.plan.jobs = [{**each, "key": f"adopt-{new_key()}"} for each in jobs]
        self.plan.write()

    def _submit_copies(self) -> dict[int, int]:
        """Submit held copies of all jobs; return their ids by those here."""
        copies: dict[int, int] = {}
        for exported in self.plan.jobs or ():
            try:
                submission = {**_with_dependency(exported, copies), "key": exported["key"]}
                receipt = _submit(self.system, submission)
            except DaemonUnreachable:
                raise
            except StokerError as error:
                self.problems.append(f"{exported['label']} stays: {error.message}")
                continue
            copies |= {int(id): int(receipt["first"]) + i for i, id in enumerate(exported["ids"])}
            exported["there"] = receipt["label"]
        return copies

    def _drop_unwanted(self, copies: dict[int, int]) -> None:
        """Leave jobs here that were rejected there, with all that their dependencies join."""
        assert self.plan.jobs is not None
        wanted = self.plan.jobs
        while True:
            ids = {id for each in wanted if each.get("there") for id in each["ids"]}
            staying = {id for each in self.plan.jobs for id in each["ids"]} - ids
            needed = {
                id for each in self.plan.jobs if not staying.isdisjoint(each["ids"])
                for clause in each["clauses"] for id in clause["jobs"]
            }  # fmt: skip
            rest = [
                each for each in wanted
                if each.get("there") and needed.isdisjoint(each["ids"])
                and not any(id in staying for clause in each["clauses"] for id in clause["jobs"])
            ]  # fmt: skip
            if len(rest) == len(wanted):
                break
            for each in wanted:
                if each not in rest and each.pop("there", None):
                    self.problems.append(f"{each['label']} stays: a job that stays is joined to it")
            wanted = rest
        if len(wanted) < len(self.plan.jobs):
            kept = {id for each in wanted for id in each["ids"]}
            self.plan.unwanted += [
                _selector(each, copies[id])
                for each in self.plan.jobs for id in each["ids"] if id in copies and id not in kept
            ]  # fmt: skip
            self.plan.jobs = wanted
            # Before they are cancelled: a key that was used returns the cancelled copies again.
            self.plan.write()
        for part in _parts(self.plan.unwanted):
            self.system.cancel(part)

    def _replace_by(self, exported: JsonObject, copies: dict[int, int]) -> None:
        """Cancel jobs here, and let their copies start."""
        ids = [int(id) for id in exported["ids"]]
        sweep = bool(exported["sweep"])
        gone = _end_sweep(self.own, ids[0]) if sweep else _cancel_waiting(self.own, ids)
        if started := [_selector(exported, copies[id]) for id in ids if id not in gone]:
            for part in _parts(started):
                self.system.cancel(part)
            count = output.counted(len(started), "job")
            self.problems.append(f"{exported['label']}: {count} stayed, released by a command")
        held = set(self.plan.held)
        free = [id for id in ids if id in gone and _selector(exported, id) in held]
        _release(self.system, [_selector(exported, copies[id]) for id in free])
        if gone:
            self.moved[str(exported["label"])] = str(exported["there"])


def move_queue(*, dry_run: bool) -> int:
    """Move what can be moved; return the exit code."""
    path = places.system_socket()
    route.check_socket(path)
    system = Client(path)
    system.daemon()
    if not os.path.exists(places.install_path()):
        route.choose_system()
        return output.report({"moved": {}, "kept": [], "problems": []}, "stoker: no job to move")
    own = Client(places.socket_path(), autostart=True)
    if dry_run:
        return _show(own.export(unheld=True))
    own.daemon()  # it starts now, if it does not run; it makes the state directory
    with open(os.path.join(places.state_dir(), "adopt.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StokerError("Another stoker system adopt is running; wait for it.") from None
        move = Move(own, system)
        move.carry_out()
    kept = own.export()["kept"]
    route.choose_system()
    if all(job["is_running"] for job in kept):
        own.stop("drain")
    return _report(move, kept)


def _show(export: JsonObject) -> int:
    """Print which jobs would be moved."""
    kept = export["kept"]
    labels = [str(job["label"]) for job in export["jobs"]]
    if output.wants_json:
        return output.emit({"move": labels, "kept": kept})
    for label in labels:
        print(f"move  {label}")
    for job in kept:
        print(f"stay  {job['label']}: {job['why']}")
    output.say("stoker: nothing was changed")
    return wire.EXIT_OK


def _report(move: Move, kept: list[JsonObject]) -> int:
    code = wire.EXIT_FAILED if move.problems else wire.EXIT_OK
    if output.wants_json:
        output.emit({"moved": move.moved, "kept": kept, "problems": move.problems})
        return code
    for here, there in move.moved.items():
        output.say(f"stoker: {here} is now {there} of the system daemon")
    for problem in move.problems:
        output.say(f"stoker: {problem}")
    for job in kept:
        output.say(f"stoker: {job['label']} stays: {job['why']}")
    if kept:
        output.say("stoker: what stays is shown by: STOKER_MODE=own stoker queue")
    elif not move.moved:
        output.say("stoker: no job to move")
    return code


def _with_dependency(exported: JsonObject, copies: dict[int, int]) -> JsonObject:
    """Return the submission with a dependency on the copies of the jobs."""
    submission: JsonObject = exported["submission"]
    if not exported["clauses"]:
        return submission
    clauses = []
    for clause in exported["clauses"]:
        if any(id not in copies for id in clause["jobs"]):
            raise StokerError("it depends on a job that stays")
        delay = f"+{clause['delay'] // 60}" if clause["delay"] else ""
        jobs = ":".join(f"{copies[id]}-{copies[id]}{delay}" for id in clause["jobs"])
        clauses.append(f"{clause['kind']}:{jobs}")
    text = ("?" if exported["any"] else ",").join(clauses)
    return {**submission, "options": {**submission["options"], "dependency": text}}


def _submit(system: Client, submission: JsonObject) -> JsonObject:
    """Submit jobs or a sweep; with the usual priority if the user may not give theirs."""
    is_sweep = "definition" in submission
    try:
        reply = system.sweep(submission) if is_sweep else system.submit(submission)
    except PermissionDenied:
        options = dict(submission["options"])
        if options.pop("priority", None) is None:
            raise
        return _submit(system, {**submission, "options": options})
    return {**reply, "first": reply["sweep"]} if is_sweep else reply


def _end_sweep(own: Client, id: int) -> set[int]:
    """Cancel a sweep that has not begun; return its id if no trial can ever start here."""

    def has_begun() -> bool:
        return any(each["attempt"] or each["started_at"]
                   for each in own.get_sweep(str(id))["trials"])  # fmt: skip

    if not has_begun():
        own.cancel([str(id)])
    return set() if has_begun() else {id}


def _cancel_waiting(own: Client, ids: list[int]) -> set[int]:
    """Cancel those of the jobs that wait; return which can never start here again."""
    parts = _parts([f"{id}-{id}" for id in ids])
    for part in parts:
        own.act("cancel", part, only="waiting")
    return {
        int(job["id"])
        for part in parts
        for job in own.history(part, limit=len(part))["jobs"]
        if job["state"] == "CANCELLED" and not job["attempt"]
    }


def _selector(exported: JsonObject, id: int) -> str:
    """Return a selector of exactly this job (`5` would be all of array 5), or of this sweep."""
    return str(id) if exported["sweep"] else f"{id}-{id}"


def _release(client: Client, selectors: list[str]) -> None:
    for part in _parts(selectors):
        client.release(part)


def _parts(selectors: list[str]) -> list[list[str]]:
    starts = range(0, len(selectors), IDS_PER_REQUEST)
    return [selectors[start : start + IDS_PER_REQUEST] for start in starts]
