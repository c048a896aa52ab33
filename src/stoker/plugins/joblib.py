"""A backend of joblib: what Parallel calls runs as jobs in the queue.

`register()`, and from then on `joblib.parallel_config(backend="stoker", gpus=1)`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

from joblib.parallel import (
    FallbackToBackend,
    ParallelBackendBase,
    ThreadingBackend,
    register_parallel_backend,
)

from stoker.api import Client, Executor, Future, StokerError
from stoker.api.executor import name_of
from stoker.api.options import as_options
from stoker.plugins.slots import slots

JOBLIBS = frozenset({
    "context", "max_nbytes", "mmap_mode", "prefer", "require", "temp_folder", "verbose",
})  # fmt: skip
"""What Parallel tells every backend, for processes on this machine."""
Callback = Callable[["concurrent.futures.Future[Any]"], None]


class Batch(Protocol):
    """Calls that joblib wants to be done together, one after the other."""

    items: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]

    def __call__(self) -> list[Any]:
        """Do them."""


def register() -> None:
    """Make the backend known to joblib as `stoker`."""
    register_parallel_backend("stoker", StokerBackend)


class StokerBackend(ParallelBackendBase):  # type: ignore[misc]
    """Each batch of calls is a job; the keywords are those of a `stoker.Executor`."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        client: Client | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__(nesting_level, inner_max_num_threads)
        self._executor = Executor(folder, client=client, **parameters)
        self._calls = Calls(self._executor, None)

    # -- what Parallel calls --------------------------------------------------------------

    def configure(self, n_jobs: int = 1, parallel: object = None, **given: Any) -> int:
        """Get ready for one Parallel; return how many calls can run at a time."""
        if self.nesting_level:
            # A job that waits for jobs holds what those may need.
            raise FallbackToBackend(ThreadingBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        before = self._executor
        executor = Executor(before.folder, client=before.client, **before.parameters)
        executor.update_parameters(**{k: v for k, v in given.items() if k not in JOBLIBS})
        if self.inner_max_num_threads is not None:
            threads = [f"{name}={self.inner_max_num_threads}" for name in self.MAX_NUM_THREADS_VARS]
            own = as_options({"env": executor.parameters.get("env")}).get("env", [])
            executor.update_parameters(env=threads + cast("list[str]", own))
        self._calls = Calls(executor, n_jobs if n_jobs > 0 else None)
        return self.effective_n_jobs(n_jobs)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many calls can run at a time; -1 is as many as there is room for."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        room = slots(self._calls.executor) + 1 + (n_jobs if n_jobs is not None else -1)
        return max(room, 2)  # with 1, joblib would do the calls in this process, without a job

    def submit(self, func: Batch, callback: Callback) -> None:
        """Queue a batch."""
        self._calls.add(func, callback)

    def retrieve_result_callback(self, out: concurrent.futures.Future[list[Any]]) -> list[Any]:
        """Return what a batch returned, or raise what it raised."""
        if isinstance(out, Future) and out.cancelled():
            raise StokerError(f"Job {out.job_id} was cancelled.")
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel what is open: one call has failed, or nobody waits any more."""
        self._calls.abort()


class Calls:
    """The batches of one Parallel: no more in the queue at a time than it has workers."""

    def __init__(self, executor: Executor, limit: int | None) -> None:
        self.executor = executor
        self.limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Batch, Callback]] = deque()
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._busy = 0
        """How many are in the queue, or on the way there."""
        self._aborts = 0

    def add(self, batch: Batch, callback: Callback) -> None:
        """Queue a batch as soon as there is room for it."""
        self._waiting.append((batch, callback))
        self._fill()

    def abort(self) -> None:
        """Cancel them all."""
        with self._lock:
            self._aborts += 1
            waiting, self._waiting = self._waiting, deque()
            left = [future for future in self._open if not future.done()]
        for _, callback in waiting:
            callback(_failed(StokerError("Another call failed before this call started.")))
        if left:
            with contextlib.suppress(StokerError):  # there is another error to be told of
                self.executor.client.cancel(left)

    def _fill(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or (self.limit is not None and self._busy >= self.limit):
                    return
                batch, callback = self._waiting.popleft()
                self._busy += 1
                aborts = self._aborts
            future = self._sent(batch)
            with self._lock:
                self._open.add(future)
                too_late = aborts != self._aborts
            if too_late:
                with contextlib.suppress(StokerError):
                    future.cancel()
            future.add_done_callback(partial(self._over, callback))

    def _sent(self, batch: Batch) -> concurrent.futures.Future[Any]:
        try:
            return self.executor.submit(_in_job(name_of(batch.items[0][0])), batch)
        except Exception as error:  # noqa: BLE001 - in a thread of ours, joblib would not hear it
            return _failed(error)

    def _over(self, callback: Callback, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)
            self._busy -= 1
        callback(future)
        if not future.cancelled() and future.exception() is None:  # else Parallel aborts them all
            self._fill()


def _in_job(name: str) -> Callable[[Batch], list[Any]]:
    """Return what does a batch over there, where nobody has registered this backend."""

    # Made here, it travels by value: a machine need not have stoker unless its calls name it.
    def run(batch: Batch) -> list[Any]:
        from joblib.parallel import register_parallel_backend

        def backend(**given: Any) -> ParallelBackendBase:
            from stoker.plugins.joblib import StokerBackend

            return StokerBackend(**given)

        register_parallel_backend("stoker", backend)
        return batch()

    run.__name__ = name
    return run


def _failed(error: Exception) -> concurrent.futures.Future[Any]:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_exception(error)
    return future
