"""The outcome of a call that runs as a job: a future of concurrent.futures, and more."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from stoker import wire
from stoker.api import daemon_client as links
from stoker.api import result_files as folders
from stoker.api.errors import JobFailed, NotFound, StokerError
from stoker.api.jobs import Job
from stoker.api.result_files import Outcome, Paths
from stoker.api.watcher import watcher_of

if TYPE_CHECKING:
    from stoker.api.client import Client

T = TypeVar("T")
LAST_LINES = 20
SPEAKS = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
"""Ends after which the outcome, if there is one, is that of the last attempt."""


class Future(concurrent.futures.Future[T]):
    """A call that was submitted. It needs this process only to be waited for."""

    def __init__(self, link: links.DaemonClient) -> None:
        super().__init__()
        self._link = link
        self._view: dict[str, Any] = {}
        self._paths: Paths | None = None
        self._outcome: Outcome | None = None
        self._reading = threading.Lock()
        self._telling = threading.RLock()

    @classmethod
    def of(cls, job_id: int | str | Job, client: Client | None = None) -> Future[Any]:
        """Return the future of a call by the id of its job, from whichever process."""
        link = client.link if client is not None else links.connect()
        label = job_id.label if isinstance(job_id, Job) else str(job_id)
        views = link.jobs([label], limit=2)["jobs"]
        if len(views) != 1:
            raise NotFound(f"{label} is several calls. Name one of them: {label}_0, {label}_1, …")
        future: Future[Any] = cls(link)
        future.stands(views[0])
        if not future.done():
            watcher_of(link).add([(int(views[0]["id"]), future)])
        return future

    # -- who it is ------------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        """The label of its job: `42`, or `42_3` in an array."""
        return str(self._known()["label"])

    @property
    def id(self) -> int:
        """The number of its job: also a member of an array has one of its own."""
        return int(self._known()["id"])

    @property
    def paths(self) -> Paths:
        """Where its files are."""
        if self._paths is None:
            view = self._known()
            self._paths = folders.paths_of(view if "command" in view else self._now())
        return self._paths

    @property
    def state(self) -> str:
        """The state of its job now: `PENDING`, `RUNNING`, `COMPLETED`, …"""
        return str(self._now()["state"])

    @property
    def job(self) -> Job:
        """Its job as it stands now."""
        return Job.of(self._now())

    def stdout(self) -> str | None:
        """Return what it has written so far, in its last attempt; None before there is a log."""
        return self._log("out")

    def stderr(self) -> str | None:
        """Return its stderr; None where that goes to the same place (`stderr_to_stdout`)."""
        return self._log("err") if self._now().get("error_log") else None

    def __repr__(self) -> str:
        label = self._view.get("label")
        if label is None:
            return "<stoker.Future, not submitted yet>"
        state = "CANCELLED" if self.cancelled() else self._view.get("state", "PENDING")
        return f"<stoker.Future of job {label}, {state}>"

    # -- what comes of it -----------------------------------------------------------------

    def result(self, timeout: float | None = None) -> T:
        """Return what the call returned, or raise what it raised, as soon as it has ended."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                error = None  # no circle of exception, frame and exception
        outcome = self._outcome
        assert outcome is not None
        value: T = outcome.value
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, as soon as it has ended; None when it went well."""
        broken = super().exception(timeout)
        if broken is not None and not isinstance(broken, _NotYetRead):
            return broken
        with self._reading:
            if self._outcome is None:
                self._outcome = self._read()
            return self._outcome.error

    def running(self) -> bool:
        """Whether its job runs at the moment."""
        return not self.done() and self._view.get("state") in {"RUNNING", "COMPLETING"}

    def cancel(self) -> bool:
        """Cancel the job, also when it runs; False when it is too late for that."""
        if self.cancelled():
            return True
        if self.done():
            return False
        reply = self._link.act("cancel", [self.job_id])
        if not reply["done"]:
            return False
        self.was_cancelled()
        return self.cancelled()

    # -- what the watcher and the executor say --------------------------------------------

    def expects(self, view: dict[str, Any]) -> None:
        """Take in which job it is; the watcher says the rest."""
        self._learn(view)

    def runs(self) -> None:
        """Its job has started."""
        self._learn({**self._view, "state": "RUNNING"})

    def stands(self, view: dict[str, Any]) -> None:
        """Take in how its job stands; wake up who waits for it when that is over."""
        self._learn(view)
        if view["state"] not in wire.FINISHED:
            return
        if view["state"] == "CANCELLED":
            self.was_cancelled()
            return
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            # What it left is read by whoever asks first, not by the thread that waits for all.
            if view["state"] == "COMPLETED":
                super().set_result(None)  # type: ignore[arg-type]
            else:
                super().set_exception(_NotYetRead())

    def breaks(self, error: BaseException) -> None:
        """Tell those who wait that nobody will ever know."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            super().set_exception(error)

    def was_cancelled(self) -> None:
        """Be cancelled, and tell those who wait; that must be done once."""
        with self._telling:
            if not self.cancelled() and super().cancel():
                self.set_running_or_notify_cancel()

    # -- how ------------------------------------------------------------------------------

    def _known(self) -> dict[str, Any]:
        if not self._view:
            raise StokerError("The call belongs to an open batch(), so it has no job id yet.")
        return self._view

    def _now(self) -> dict[str, Any]:
        """Return how its job stands; of one that has ended, without asking again."""
        view = self._known()
        if "command" not in view or not self.done() or self.cancelled():
            view = self._link.jobs([f"{view['id']}-{view['id']}"])["jobs"][0]
            self._learn(view)
        return view

    def _learn(self, view: dict[str, Any]) -> None:
        """Keep the newest word on the job: whoever asked before its end may come too late."""
        with self._telling:
            if self._view.get("state") not in wire.FINISHED:
                self._view = view

    def _read(self) -> Outcome:
        view = self._view
        if view["state"] in SPEAKS:
            found = folders.outcome(self.paths.result_pickle, str(view["label"]))
            if found is not None:
                return found
        return Outcome(error=self._failure(view))

    def _failure(self, view: Mapping[str, Any]) -> JobFailed:
        lines = tuple((self._last_lines() or "").splitlines()[-LAST_LINES:])
        cause = view.get("cause") or "cause unknown"
        if view["state"] == "COMPLETED":
            cause = f"it left no result in {self.paths.result_pickle}"
        message = f"Job {view['label']} ({view['name']}) {view['state']}: {cause}."
        if lines:
            message += " Its last lines:\n" + "\n".join(f"    {line}" for line in lines)
        return JobFailed(
            message,
            job_id=str(view["label"]),
            state=str(view["state"]),
            cause=view.get("cause"),
            job_exit_code=view.get("result"),
            lines=lines,
        )

    def _last_lines(self) -> str | None:
        stream = "err" if self._view.get("error_log") else "out"
        try:
            return self._log(stream, tail=LAST_LINES)
        except StokerError:
            return None  # the log is gone, or the daemon is

    def _log(self, stream: str, tail: int | None = None) -> str | None:
        if self._known().get("state") == "PENDING" and not self._now().get("started_at"):
            return None
        pieces = self._link.log(self.job_id, stream=stream, tail=tail)
        return b"".join(pieces).decode("utf-8", "replace")


class _NotYetRead(Exception):
    """Stands for an exception whose file nobody has opened yet."""
