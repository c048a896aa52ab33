"""Future of a call that runs as a job."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from stoker import wire
from stoker.api.calls import result_files
from stoker.api.calls.result_files import Outcome, Paths
from stoker.api.calls.watcher import watcher_of
from stoker.api.daemon_client import DaemonClient, connect
from stoker.api.errors import JobFailed
from stoker.api.jobs import Job
from stoker.client.errors import NotFound, StokerError

if TYPE_CHECKING:
    from stoker.api.client import Client

T = TypeVar("T")
LAST_LINES = 20
STATES_WITH_RESULT = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
"""Final states in which a result file is that of the last attempt."""


class Future(concurrent.futures.Future[T]):
    """A submitted call. The job does not depend on this process."""

    def __init__(self, daemon_client: DaemonClient) -> None:
        super().__init__()
        self._daemon_client = daemon_client
        self._view: dict[str, Any] = {}
        self._paths: Paths | None = None
        self._outcome: Outcome | None = None
        self._read_lock = threading.Lock()
        self._update_lock = threading.RLock()

    @classmethod
    def of(cls, job_id: int | str | Job, client: Client | None = None) -> Future[Any]:
        """Return the future of a call by its job id, from any process."""
        daemon_client = client.daemon_client if client is not None else connect()
        label = job_id.label if isinstance(job_id, Job) else str(job_id)
        views = daemon_client.jobs([label], limit=2)["jobs"]
        if len(views) != 1:
            raise NotFound(f"{label} is several calls. Name one of them: {label}_0, {label}_1, …")
        future: Future[Any] = cls(daemon_client)
        future.on_view(views[0])
        if not future.done():
            watcher_of(daemon_client).add([(int(views[0]["id"]), future)])
        return future

    # -- the job --------------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        """The label of its job: `42`, or `42_3` in an array."""
        return str(self._require_view()["label"])

    @property
    def id(self) -> int:
        """The id of its job; each task of an array has its own."""
        return int(self._require_view()["id"])

    @property
    def paths(self) -> Paths:
        """The paths of its files."""
        if self._paths is None:
            view = self._require_view()
            self._paths = result_files.call_paths(view if "command" in view else self._refresh())
        return self._paths

    @property
    def state(self) -> str:
        """The state of its job now: `PENDING`, `RUNNING`, `COMPLETED`, …"""
        return str(self._refresh()["state"])

    @property
    def job(self) -> Job:
        """Its job, as of now."""
        return Job.of(self._refresh())

    def stdout(self) -> str | None:
        """Return the output of its last attempt so far; None before it has started."""
        return self._log("out")

    def stderr(self) -> str | None:
        """Return its stderr; None if it is merged with stdout (`stderr_to_stdout`)."""
        return self._log("err") if self._refresh().get("error_log") else None

    def __repr__(self) -> str:
        label = self._view.get("label")
        if label is None:
            return "<stoker.Future, not submitted yet>"
        state = "CANCELLED" if self.cancelled() else self._view.get("state", "PENDING")
        return f"<stoker.Future of job {label}, {state}>"

    # -- the result -----------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> T:
        """Wait for the call to end; return its value or raise its exception."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                error = None  # breaks the reference cycle of exception and frame
        outcome = self._outcome
        assert outcome is not None
        value: T = outcome.value
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call to end; return its exception, None if it succeeded."""
        error = super().exception(timeout)
        if error is not None and not isinstance(error, _UnreadError):
            return error
        with self._read_lock:
            if self._outcome is None:
                self._outcome = self._read_outcome()
            return self._outcome.error

    def running(self) -> bool:
        """Return True while its job runs."""
        return not self.done() and self._view.get("state") in {"RUNNING", "COMPLETING"}

    def cancel(self) -> bool:
        """Cancel the job, even if it runs; return False if it has ended."""
        if self.cancelled():
            return True
        if self.done():
            return False
        reply = self._daemon_client.act("cancel", [self.job_id])
        if not reply["done"]:
            return False
        self.mark_cancelled()
        return self.cancelled()

    # -- called by watcher and executor ---------------------------------------------------

    def update_view(self, view: dict[str, Any]) -> None:
        """Set the view, unless a final one is known: a late reply must not replace it."""
        with self._update_lock:
            if self._view.get("state") not in wire.FINISHED:
                self._view = view

    def on_started(self) -> None:
        """Its job has started."""
        self.update_view({**self._view, "state": "RUNNING"})

    def on_view(self, view: dict[str, Any]) -> None:
        """Update the job; complete the future if the job has ended."""
        self.update_view(view)
        if view["state"] not in wire.FINISHED:
            return
        if view["state"] == "CANCELLED":
            self.mark_cancelled()
            return
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            # The result is read on first access, not by the watcher's thread.
            if view["state"] == "COMPLETED":
                super().set_result(None)  # type: ignore[arg-type]
            else:
                super().set_exception(_UnreadError())

    def on_failed(self, error: BaseException) -> None:
        """Complete the future with an error."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            super().set_exception(error)

    def mark_cancelled(self) -> None:
        """Complete the future as cancelled; may be called more than once."""
        with self._update_lock:
            if not self.cancelled() and super().cancel():
                self.set_running_or_notify_cancel()

    # -- private ---------------------------------------------------------------------------

    def _require_view(self) -> dict[str, Any]:
        if not self._view:
            raise StokerError("The call belongs to an open batch(), so it has no job id yet.")
        return self._view

    def _refresh(self) -> dict[str, Any]:
        """Return the current view of its job; of a finished job, the known one."""
        view = self._require_view()
        if "command" not in view or not self.done() or self.cancelled():
            view = self._daemon_client.jobs([f"{view['id']}-{view['id']}"])["jobs"][0]
            self.update_view(view)
        return view

    def _read_outcome(self) -> Outcome:
        view = self._view
        if view["state"] in STATES_WITH_RESULT:
            outcome = result_files.read_outcome(self.paths.result_pickle, str(view["label"]))
            if outcome is not None:
                return outcome
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
            return None  # the log or the daemon is unavailable

    def _log(self, stream: str, tail: int | None = None) -> str | None:
        if self._require_view().get("state") == "PENDING" and not self._refresh().get("started_at"):
            return None
        pieces = self._daemon_client.log(self.job_id, stream=stream, tail=tail)
        return b"".join(pieces).decode("utf-8", "replace")


class _UnreadError(Exception):
    """Placeholder for an exception until its file is read."""
