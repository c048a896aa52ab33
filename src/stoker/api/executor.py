"""Calls as jobs: shaped like concurrent.futures, with the parameter names of submitit."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, Self, TypeVar, cast

from stoker import wire
from stoker.api import parameters
from stoker.api import result_files as folders
from stoker.api.client import Client
from stoker.api.errors import StokerError, Unreachable, UsageError
from stoker.api.futures import Future
from stoker.api.result_files import Call
from stoker.api.submit_context import submission
from stoker.api.watcher import ranges, watcher_of
from stoker.client.client import new_key

T = TypeVar("T")
P = ParamSpec("P")


class Executor(concurrent.futures.Executor):
    """Each call is one durable job in the queue, with GPUs of its own.

    `Executor(gpus=1, time="2h").submit(train, lr=0.1).result()`. The parameters are those of a
    submission, and submitit's. In `folder` lie the calls and what came of them.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        client: Client | None = None,
        **parameters: Any,
    ) -> None:
        self.client = client if client is not None else Client()
        self.folder = folders.fixed_part(folder) if folder is not None else None
        self.parameters: dict[str, object] = {}
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._batch: list[tuple[Call, Future[Any]]] | None = None
        self._shut = False
        self._node: str | None = None
        self.update_parameters(**parameters)

    def __repr__(self) -> str:
        return f"<stoker.Executor in {self.folder or folders.default_base()}>"

    def update_parameters(self, **given: Any) -> None:
        """Change what later calls ask for; a misspelt name is an error that lists them all."""
        checked = parameters.check(given)
        parameters.settled({**self.parameters, **checked}, checkpoints=False)
        self.parameters.update(checked)

    # -- calls ----------------------------------------------------------------------------

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue one call; return its future at once."""
        self._check_open()
        call = Call(_callable(fn), args, kwargs)
        if self._batch is not None:
            future: Future[Any] = Future(self.client.link)
            self._batch.append((call, future))
        else:
            [future] = self._send([call])
        return cast("Future[T]", future)

    def map_array(self, fn: Callable[..., T], /, *iterables: Iterable[Any]) -> list[Future[T]]:
        """Queue a call for each of the arguments, all as one array; return their futures."""
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
        """Queue a call for each of the arguments, all as one array; yield results in order."""
        if self._batch is not None:
            raise UsageError("Inside batch(), use map_array(): there are no results to yield yet.")
        until = time.monotonic() + timeout if timeout is not None else None
        return self._results(self.map_array(fn, *iterables), until)

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
                future.was_cancelled()  # nobody shall wait for what was never submitted
            raise
        finally:
            self._batch = None

    def future(self, job_id: int | str) -> Future[Any]:
        """Return the future of a call by the id of its job, from whichever process it was made."""
        return Future.of(job_id, self.client)

    # -- the end --------------------------------------------------------------------------

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for those there are, or cancel what has not started."""
        self._shut = True
        with self._lock:
            left = list(self._open)
        if cancel_futures:
            self._cancel(left, only="waiting")
        if wait:
            concurrent.futures.wait(left)

    def __enter__(self) -> Self:
        return self

    # -- how ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _send(
        self, calls: Sequence[Call], futures: Sequence[Future[Any]] = ()
    ) -> list[Future[Any]]:
        """Write calls down and submit them, several as one array."""
        can_stop = any(hasattr(call.function, "checkpoint") for call in calls)
        settings = parameters.settled(self.parameters, checkpoints=can_stop)
        options = dict(settings.options)
        options.setdefault("name", name_of(calls[0].function))
        body = submission({})
        directory = str(options.get("chdir") or body["directory"])
        base = self.folder or folders.default_base()
        if len(calls) > 1:
            limit = f"%{settings.at_once}" if settings.at_once else ""
            options["array"] = f"0-{len(calls) - 1}{limit}"
        batch = folders.write(base, directory, new_key(), calls, settings)
        own = cast("list[str]", options.get("env") or [])
        options["env"] = [*own, *(f"{name}={value}" for name, value in batch.variables.items())]
        try:
            if not settings.one_log:
                options.setdefault("error", os.path.join(batch.folder, "%j.err"))
            if not batch.travels:
                options.setdefault("nodelist", self._this_node())
            reply = self.client.link.submit({**body, "what": batch.what, "options": options})
        except Unreachable:
            raise  # it may have been accepted before the connection broke
        except StokerError:
            folders.remove(batch)
            raise
        made = list(futures) or [Future(self.client.link) for _ in calls]
        self._attach(made, reply)
        return made

    def _attach(self, futures: Sequence[Future[Any]], reply: dict[str, Any]) -> None:
        first, array = int(reply["first"]), int(reply["count"]) > 1
        with self._lock:
            self._open.update(futures)
        for index, future in enumerate(futures):
            label = f"{first}_{index}" if array else str(first)
            future.expects({"id": first + index, "label": label, "state": "PENDING"})
            future.add_done_callback(self._over)
        watcher_of(self.client.link).add(
            (first + index, future) for index, future in enumerate(futures)
        )

    def _cancel(self, futures: Iterable[Future[Any]], **only: str) -> None:
        """Cancel calls, in one request however many they are."""
        by_id = {future.id: future for future in futures if not future.done()}
        if by_id:
            reply = self.client.link.act("cancel", list(ranges(sorted(by_id))), **only)
            for each in reply["done"]:
                by_id[int(each["id"])].was_cancelled()

    def _results(self, futures: Sequence[Future[T]], until: float | None) -> Iterator[T]:
        """Yield results in order; what is not asked for any more is cancelled, as elsewhere."""
        left = list(reversed(futures))
        try:
            while left:
                yield left.pop().result(None if until is None else until - time.monotonic())
        finally:
            with contextlib.suppress(StokerError):
                self._cancel(left)

    def _over(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._open.discard(cast("Future[Any]", future))

    def _this_node(self) -> str:
        """Return the machine that the files of a call are on: it runs nowhere else."""
        if self._node is None:
            path = self.client.link.path
            host = getattr(path, "host", "localhost")
            if not wire.is_loopback(host) and self.folder is None:
                raise UsageError(
                    f"The daemon is on {host}, which cannot see files of this machine. "
                    "Give the executor a folder= that both machines share."
                )
            self._node = str(self.client.link.daemon()["node"])
        return self._node


def name_of(function: Callable[..., Any]) -> str:
    """Return what to call a job that calls this."""
    inner = getattr(function, "func", function)  # functools.partial
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "call" if name == "<lambda>" else str(name)


def _callable(function: Callable[P, T]) -> Callable[P, T]:
    if not callable(function):
        raise UsageError(f"A call needs a function, not {function!r}.")
    return function
