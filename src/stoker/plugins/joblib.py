"""A backend of joblib: the calls of Parallel run as jobs.

Call `register()`, then use `joblib.parallel_config(backend="stoker", gpus=1)`.
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
from stoker.api.arguments.options import as_options
from stoker.api.calls.executor import job_name
from stoker.plugins.slots import slot_count

JOBLIB_OPTIONS = frozenset({
    "context", "max_nbytes", "mmap_mode", "prefer", "require", "temp_folder", "verbose",
})  # fmt: skip
"""Options that Parallel passes to every backend, for local processes."""
Callback = Callable[["concurrent.futures.Future[Any]"], None]


class Batch(Protocol):
    """Calls that joblib runs together, one after the other."""

    items: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]

    def __call__(self) -> list[Any]:
        """Run the calls."""


def register() -> None:
    """Register the backend with joblib as `stoker`."""
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
        self._calls = BatchQueue(self._executor, None)

    # -- called by Parallel ---------------------------------------------------------------

    def configure(self, n_jobs: int = 1, parallel: object = None, **given: Any) -> int:
        """Prepare for one Parallel; return how many calls can run at a time."""
        if self.nesting_level:
            # A job that waits for jobs holds resources that they may need.
            raise FallbackToBackend(ThreadingBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        template = self._executor
        executor = Executor(template.folder, client=template.client, **template.parameters)
        executor.update_parameters(**{k: v for k, v in given.items() if k not in JOBLIB_OPTIONS})
        if self.inner_max_num_threads is not None:
            threads = [f"{name}={self.inner_max_num_threads}" for name in self.MAX_NUM_THREADS_VARS]
            variables = as_options({"env": executor.parameters.get("env")}).get("env", [])
            executor.update_parameters(env=threads + cast("list[str]", variables))
        self._calls = BatchQueue(executor, n_jobs if n_jobs > 0 else None)
        return self.effective_n_jobs(n_jobs)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many calls can run at a time; -1 means as many as fit."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        count = slot_count(self._calls.executor) + 1 + (n_jobs if n_jobs is not None else -1)
        return max(count, 2)  # with 1, joblib would run the calls in this process

    def submit(self, func: Batch, callback: Callback) -> None:
        """Queue a batch."""
        self._calls.add(func, callback)

    def retrieve_result_callback(self, out: concurrent.futures.Future[list[Any]]) -> list[Any]:
        """Return the results of a batch, or raise its exception."""
        if isinstance(out, Future) and out.cancelled():
            raise StokerError(f"Job {out.job_id} was cancelled.")
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel unfinished calls: one has failed, or Parallel was interrupted."""
        self._calls.abort()


class BatchQueue:
    """The batches of one Parallel; at most `limit` of them are in the queue."""

    def __init__(self, executor: Executor, limit: int | None) -> None:
        self.executor = executor
        self.limit = limit
        self._lock = threading.Lock()
        self._pending: deque[tuple[Batch, Callback]] = deque()
        self._unfinished: set[concurrent.futures.Future[Any]] = set()
        self._queued = 0
        """Number of batches in the queue or being submitted."""
        self._aborts = 0

    def add(self, batch: Batch, callback: Callback) -> None:
        """Submit a batch as soon as the limit allows."""
        self._pending.append((batch, callback))
        self._fill()

    def abort(self) -> None:
        """Cancel all batches."""
        with self._lock:
            self._aborts += 1
            waiting, self._pending = self._pending, deque()
            unfinished = [future for future in self._unfinished if not future.done()]
        for _, callback in waiting:
            callback(_failed_future(StokerError("Another call failed before this call started.")))
        if unfinished:
            with contextlib.suppress(StokerError):  # another error is reported already
                self.executor.client.cancel(unfinished)

    def _fill(self) -> None:
        while True:
            with self._lock:
                if not self._pending or (self.limit is not None and self._queued >= self.limit):
                    return
                batch, callback = self._pending.popleft()
                self._queued += 1
                aborts = self._aborts
            future = self._submit(batch)
            with self._lock:
                self._unfinished.add(future)
                too_late = aborts != self._aborts
            if too_late:
                with contextlib.suppress(StokerError):
                    future.cancel()
            future.add_done_callback(partial(self._on_done, callback))

    def _submit(self, batch: Batch) -> concurrent.futures.Future[Any]:
        try:
            return self.executor.submit(_remote_call(job_name(batch.items[0][0])), batch)
        except Exception as error:  # noqa: BLE001 - joblib would not see it in our thread
            return _failed_future(error)

    def _on_done(self, callback: Callback, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._unfinished.discard(future)
            self._queued -= 1
        callback(future)
        if not future.cancelled() and future.exception() is None:  # else Parallel aborts
            self._fill()


def _remote_call(name: str) -> Callable[[Batch], list[Any]]:
    """Return the function that runs a batch in a job, with this backend registered."""

    # A local function is pickled by value: a node needs stoker only if its calls use it.
    def run(batch: Batch) -> list[Any]:
        from joblib.parallel import register_parallel_backend

        def backend(**given: Any) -> ParallelBackendBase:
            from stoker.plugins.joblib import StokerBackend

            return StokerBackend(**given)

        register_parallel_backend("stoker", backend)
        return batch()

    run.__name__ = name
    return run


def _failed_future(error: Exception) -> concurrent.futures.Future[Any]:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_exception(error)
    return future
