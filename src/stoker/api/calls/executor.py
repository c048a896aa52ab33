"""Calls as jobs: the interface of concurrent.futures, with submitit's parameter names."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from stoker import wire
from stoker.api.arguments.options import submission
from stoker.api.calls import parameters, result_files
from stoker.api.calls.futures import Future
from stoker.api.calls.result_files import Call
from stoker.api.calls.watcher import id_ranges, watcher_of
from stoker.api.client import Client
from stoker.client.client import new_key
from stoker.client.errors import DaemonUnreachable, StokerError, UsageError

T = TypeVar("T")
P = ParamSpec("P")


class DelayedSubmission:
    """The call that resumes the work, returned by `checkpoint()` of a callable."""

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"DelayedSubmission({self.function!r}, *{self.args!r}, **{self.kwargs!r})"


class Executor(concurrent.futures.Executor):
    """Each call is one durable job in the queue, with its own GPUs.

    `Executor(gpus=1, time="2h").submit(train, lr=0.1).result()`. The parameters are those of a
    submission, and submitit's. `folder` contains the calls and their results.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        client: Client | None = None,
        **parameters: Any,
    ) -> None:
        self.client = client if client is not None else Client()
        self.folder = result_files.fixed_folder(folder) if folder is not None else None
        self.parameters: dict[str, object] = {}
        self._lock = threading.Lock()
        self._unfinished: set[Future[Any]] = set()
        self._batch: list[tuple[Call, Future[Any]]] | None = None
        self._is_shut_down = False
        self._node: str | None = None
        self.update_parameters(**parameters)

    def __repr__(self) -> str:
        return f"<stoker.Executor in {self.folder or result_files.default_folder()}>"

    def update_parameters(self, **given: Any) -> None:
        """Change the parameters of later calls; an unknown name raises an error with a list."""
        checked = parameters.check(given)
        parameters.build_settings({**self.parameters, **checked}, checkpoints=False)
        self.parameters.update(checked)

    # -- calls ----------------------------------------------------------------------------

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue one call; return its future."""
        self._check_open()
        call = Call(_callable(fn), args, kwargs)
        if self._batch is not None:
            future: Future[Any] = Future(self.client.daemon_client)
            self._batch.append((call, future))
        else:
            [future] = self._send([call])
        return cast("Future[T]", future)

    def map_array(self, fn: Callable[..., T], /, *iterables: Iterable[Any]) -> list[Future[T]]:
        """Queue a call per argument as one array; return their futures."""
        self._check_open()
        _callable(fn)
        calls = [Call(fn, args) for args in zip(*iterables, strict=False)]
        if self._batch is not None:
            return [self.submit(fn, *call.args) for call in calls]
        return self._send(calls) if calls else []

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Queue a call per argument as one array; yield results in order."""
        if self._batch is not None:
            raise UsageError("Inside batch(), use map_array(): there are no results to yield yet.")
        deadline = time.monotonic() + timeout if timeout is not None else None
        return self._results(self.map_array(fn, *iterables), deadline)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Collect the calls of a `with` block; submit them as one array at its end."""
        self._check_open()
        if self._batch is not None:
            raise UsageError("This executor is collecting a batch() already.")
        collected: list[tuple[Call, Future[Any]]] = []
        self._batch = collected
        try:
            yield
            self._batch = None
            if collected:
                self._send([call for call, _ in collected], [future for _, future in collected])
        except BaseException:
            for _, future in collected:
                future.mark_cancelled()  # it was never submitted
            raise
        finally:
            self._batch = None

    def future(self, job_id: int | str) -> Future[Any]:
        """Return the future of a call by its job id, from any process."""
        return Future.of(job_id, self.client)

    # -- shutdown -------------------------------------------------------------------------

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; wait for running ones, or cancel pending ones."""
        self._is_shut_down = True
        with self._lock:
            left = list(self._unfinished)
        if cancel_futures:
            self._cancel(left, only="waiting")
        if wait:
            concurrent.futures.wait(left)

    # -- private ---------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _send(
        self, calls: Sequence[Call], futures: Sequence[Future[Any]] = ()
    ) -> list[Future[Any]]:
        """Write calls to files and submit them, several as one array."""
        has_checkpoint = any(hasattr(call.function, "checkpoint") for call in calls)
        settings = parameters.build_settings(self.parameters, checkpoints=has_checkpoint)
        options = dict(settings.options)
        options.setdefault("name", job_name(calls[0].function))
        body = submission({})
        directory = str(options.get("chdir") or body["directory"])
        base = self.folder or result_files.default_folder()
        if len(calls) > 1:
            limit = f"%{settings.max_running}" if settings.max_running else ""
            options["array"] = f"0-{len(calls) - 1}{limit}"
        batch = result_files.write_calls(base, directory, new_key(), calls, settings)
        variables = cast("list[str]", options.get("env") or [])
        options["env"] = variables + [f"{key}={value}" for key, value in batch.variables.items()]
        try:
            if not settings.merge_stderr:
                options.setdefault("error", os.path.join(batch.folder, "%j.err"))
            if not batch.is_uploaded:
                options.setdefault("nodelist", self._this_node())
            reply = self.client.daemon_client.submit(
                {**body, "what": batch.what, "options": options}
            )
        except DaemonUnreachable:
            raise  # it may have been accepted before the connection broke
        except StokerError:
            result_files.remove_calls(batch)
            raise
        result = list(futures) or [Future(self.client.daemon_client) for _ in calls]
        self._bind(result, reply)
        return result

    def _bind(self, futures: Sequence[Future[Any]], reply: dict[str, Any]) -> None:
        first, array = int(reply["first"]), int(reply["count"]) > 1
        with self._lock:
            self._unfinished.update(futures)
        for index, future in enumerate(futures):
            label = f"{first}_{index}" if array else str(first)
            future.update_view({"id": first + index, "label": label, "state": "PENDING"})
            future.add_done_callback(self._on_done)
        watcher_of(self.client.daemon_client).add(
            (first + index, future) for index, future in enumerate(futures)
        )

    def _cancel(self, futures: Iterable[Future[Any]], **only: str) -> None:
        """Cancel calls in one request."""
        by_id = {future.id: future for future in futures if not future.done()}
        if by_id:
            reply = self.client.daemon_client.act("cancel", list(id_ranges(sorted(by_id))), **only)
            for job in reply["done"]:
                by_id[int(job["id"])].mark_cancelled()

    def _results(self, futures: Sequence[Future[T]], deadline: float | None) -> Iterator[T]:
        """Yield results in order; if the iterator is closed, cancel the remaining calls."""
        left = list(reversed(futures))
        try:
            while left:
                yield left.pop().result(None if deadline is None else deadline - time.monotonic())
        finally:
            with contextlib.suppress(StokerError):
                self._cancel(left)

    def _on_done(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._unfinished.discard(cast("Future[Any]", future))

    def _this_node(self) -> str:
        """Return the node with the files of the calls, the only one where they can run."""
        if self._node is None:
            path = self.client.daemon_client.path
            host = getattr(path, "host", "localhost")
            if not wire.is_loopback(host) and self.folder is None:
                raise UsageError(
                    f"The daemon is on {host}, which cannot see files of this machine. "
                    "Give the executor a folder= that both machines share."
                )
            self._node = str(self.client.daemon_client.daemon()["node"])
        return self._node


def job_name(function: Callable[..., Any]) -> str:
    """Return the name of a job that calls a function."""
    inner = getattr(function, "func", function)  # functools.partial
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "call" if name == "<lambda>" else str(name)


def _callable(function: Callable[P, T]) -> Callable[P, T]:
    if not callable(function):
        raise UsageError(f"A call needs a function, not {function!r}.")
    return function
