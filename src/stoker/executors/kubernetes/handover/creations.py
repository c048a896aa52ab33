"""Creations: sends the pods of attempts to the API server, and what they need.

A request that was not answered is sent again: the name of the pod makes a repetition harmless.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stoker.core.launch.launch import Launch
from stoker.core.launch.training_env import TRAINING_MARK
from stoker.executors.agent.start_command import variables
from stoker.executors.kubernetes.api.client import (
    CONFIG_MAPS,
    CONFLICT,
    FORBIDDEN,
    INVALID,
    NOT_FOUND,
    PODS,
    SERVICES,
    Reply,
)
from stoker.executors.kubernetes.handover.attempt import Creation, PodAttempt
from stoker.executors.kubernetes.handover.library import build_library
from stoker.executors.kubernetes.handover.pod_spec import (
    PodRequest,
    build_pod,
    build_service,
    build_tombstone,
)
from stoker.executors.kubernetes.handover.pod_template import LacksGpus, UnsupportedRequest
from stoker.executors.launch import training_library
from stoker.executors.port import SHORTAGE_SECONDS
from stoker.executors.reactor import Timer
from stoker.executors.report_tokens import ReportSource

if TYPE_CHECKING:
    from stoker.executors.kubernetes.handover.executor import HandoverExecutor

RETRY_SECONDS = 2.0
"""Before a request that was not answered is sent again."""
PORT_TRIES = 15
"""How often a service is created while the ports are those of an attempt that has just ended."""
MAX_DELAY_SECONDS = 3600.0
"""Longest delay of the next try of a job that was refused again and again."""
QUOTA = re.compile("exceeded quota|failed quota", re.IGNORECASE)


def _with_known_mounts(launch: Launch) -> Launch:
    """Note which optional directories exist here, so that a pod must have them."""
    box = launch.container
    if box is None:
        return launch
    mounts = (replace(mount, expected=os.path.exists(mount.source)) for mount in box.mounts)
    return replace(launch, container=replace(box, mounts=tuple(mounts)))


class Creations:
    """Creates the pods of one executor."""

    def __init__(self, executor: HandoverExecutor) -> None:
        self.executor = executor
        self.max_ahead: int | None = None
        """Attempts that may wait after a refusal, so that one is tried at a time; else None."""
        self._library: dict[str, Any] | None = None
        """The ConfigMap of the training library, once the server has it."""
        self._retries: deque[str] = deque()
        """Names of pods."""
        self._refusals: dict[int, int] = {}
        """How often each job was refused."""
        self._timer = Timer(executor.reactor, self._retry)

    def forget(self) -> None:
        """Assume nothing about what the server has."""
        self._library = None

    def create(self, attempt: PodAttempt) -> None:
        """Create the pod of an attempt, after what it needs."""
        launch = attempt.launch
        if launch is None or attempt.creation is not Creation.REQUESTED:
            return
        if self._library is not None or not self._needs_library(attempt):
            self._reserve(attempt)
            return
        home = os.path.dirname(os.path.dirname(launch.reports))
        library = build_library(training_library.provide(home))

        def on_reply(reply: Reply) -> None:
            if reply.succeeded or reply.status == CONFLICT:
                self._library = library
                self._reserve(attempt)
            elif reply.may_pass:
                self._try_again(attempt)
            else:
                self._refuse(attempt, f"the training library was refused: {reply.why}")

        self.executor.api.request("POST", CONFIG_MAPS, on_reply, library)

    def _reserve(self, attempt: PodAttempt) -> None:
        def on_done(error: str) -> None:
            if not error:
                self._create_pod(attempt)
            elif self.executor.has(attempt):
                self.executor.ends.cancel(attempt, error, SHORTAGE_SECONDS)

        self.executor.settings.reserve(on_done)

    @staticmethod
    def _needs_library(attempt: PodAttempt) -> bool:
        return attempt.launch is not None and TRAINING_MARK in attempt.launch.extra

    def _create_pod(self, attempt: PodAttempt) -> None:
        executor = self.executor
        if not executor.has(attempt) or attempt.creation is not Creation.REQUESTED:
            return
        try:
            pod = build_pod(self._request(attempt))
        except LacksGpus as error:
            executor.ends.lack(attempt, str(error))
            return
        except UnsupportedRequest as error:
            executor.ends.fail(attempt, str(error))
            return
        except KeyError as error:
            executor.ends.fail(attempt, f"cannot start: {error.args[0]}")
            return
        executor.api.request("POST", PODS, lambda reply: self._on_created(attempt, reply), pod)

    def _request(self, attempt: PodAttempt) -> PodRequest:
        executor, launch = self.executor, attempt.launch
        assert launch is not None
        script = executor.environment.blob(launch.script) if launch.script is not None else None
        if launch.script is not None and script is None:
            raise KeyError("the job's script is no longer stored; submit the job again")
        return PodRequest(
            attempt.identity, _with_known_mounts(launch), executor.template,
            variables(launch, executor.environment.secret), executor.environment.grace,
            script=os.fsdecode(script) if script is not None else None,
            library=self._library if self._needs_library(attempt) else None,
            barrier_seconds=attempt.barrier_seconds, products=executor.products or (),
            report_access=self._report_access(attempt),
        )  # fmt: skip

    def _report_access(self, attempt: PodAttempt) -> str:
        """Return how the pod reports over HTTP; the sender is in the training library."""
        if not self._needs_library(attempt):
            return ""
        return self.executor.settings.report_access(ReportSource(attempt.id, attempt.part or 0))

    def _on_created(self, attempt: PodAttempt, reply: Reply) -> None:
        executor = self.executor
        if reply.succeeded:
            self._refusals.pop(attempt.id.job, None)
            self._set_max_ahead(None)
        if not executor.has(attempt) or attempt.creation is not Creation.REQUESTED:
            return
        if reply.succeeded:
            executor.on_pod(reply.pod())
        elif reply.status == CONFLICT:  # an earlier request was taken
            attempt.creation = Creation.UNKNOWN
            executor.find(attempt)
        elif reply.may_pass:
            self._try_again(attempt)
        elif reply.status in (INVALID, 400):
            executor.ends.fail(attempt, f"Kubernetes refused its pod: {reply.why}")
        elif reply.status in (FORBIDDEN, NOT_FOUND, 401):
            self._refuse(attempt, f"Kubernetes refused its pod: {reply.why}")
        else:
            executor.ends.fail(attempt, f"Kubernetes refused its pod ({reply.status}): {reply.why}")

    def _refuse(self, attempt: PodAttempt, why: str) -> None:
        """Cancel a start that a quota or missing rights do not allow now.

        The job is tried later, and only one of all that wait at a time.
        """
        if not self.executor.has(attempt):
            return
        count = self._refusals[attempt.id.job] = self._refusals.get(attempt.id.job, 0) + 1
        delay = min(SHORTAGE_SECONDS * 2 ** (count - 1), MAX_DELAY_SECONDS)
        self.executor.ends.cancel(attempt, why, delay)
        self._set_max_ahead(self.executor.waiting_count + 1)

    def _set_max_ahead(self, max_ahead: int | None) -> None:
        if self.max_ahead != max_ahead:
            self.max_ahead = max_ahead
            self.executor.report_reading()

    def _try_again(self, attempt: PodAttempt) -> None:
        self._retries.append(attempt.identity.name)
        self._timer.request(RETRY_SECONDS)

    def _retry(self) -> None:
        retries, self._retries = self._retries, deque()
        for name in retries:
            attempt = self.executor.attempts.get(name)
            if attempt is not None:
                self.create(attempt)

    # -- ports --------------------------------------------------------------------------

    def publish_ports(self, attempt: PodAttempt, uid: str, tries: int = PORT_TRIES) -> None:
        """Create the service of an attempt that publishes ports."""
        if not attempt.ports or attempt.is_over:
            return
        service = build_service(attempt.identity, uid, attempt.ports)

        def again() -> None:
            self.publish_ports(attempt, uid, tries - 1)

        def on_reply(reply: Reply) -> None:
            if reply.succeeded or reply.status == CONFLICT or not self.executor.has(attempt):
                return
            if tries and (reply.may_pass or reply.status == INVALID):
                self.executor.reactor.call_later(RETRY_SECONDS, again)
            else:
                self.executor.ends.give_up(attempt, f"its ports were refused: {reply.why}")

        self.executor.api.request("POST", SERVICES, on_reply, service)

    # -- attempts of an earlier daemon ----------------------------------------------------

    def revoke(self, attempt: PodAttempt) -> None:
        """Occupy the name of a pod that was perhaps never created, so that it never will be."""
        executor = self.executor

        def on_reply(reply: Reply) -> None:
            if not executor.has(attempt):
                return
            if reply.succeeded:
                executor.on_pod(reply.pod())
            elif reply.status == CONFLICT:
                executor.find(attempt)
            else:
                executor.reactor.call_later(RETRY_SECONDS, again)

        def again() -> None:
            if executor.has(attempt):
                self.revoke(attempt)

        tombstone = build_tombstone(attempt.identity, executor.template.image)
        executor.api.request("POST", PODS, on_reply, tombstone)

    def close(self) -> None:
        """Create no more."""
        self._timer.cancel()
