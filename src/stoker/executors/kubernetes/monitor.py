"""PilotMonitor: one kubectl get for all pilots of a cluster, and what is created and deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from stoker.executors.kubernetes.kubectl import Kubectl, KubectlError, PodState
from stoker.executors.linux.thread_pool import TransferPool
from stoker.executors.reactor import Reactor, Timer

MIN_CHANGING_SECONDS, MAX_CHANGING_SECONDS = 0.3, 10.0
"""Between polls while a pod is about to start or to end: a fifth of the time since the last change,
within these bounds."""
CHANGING_FRACTION = 0.2
STEADY_SECONDS, IDLE_SECONDS = 15.0, 60.0
"""Between polls while all pods run, and without pods. The end of a pod ends the connection to it,
which causes a poll at once."""
FAILED_SECONDS = 5.0
"""Between polls while the API server does not answer."""
RELEASE_GRACE_SECONDS = 5
"""The grace period of pods that are not needed any more: they have no jobs."""

OnCreated = Callable[[KubectlError | None], None]


class PodWatcher(Protocol):
    """Receives what the API says of one pod after every poll."""

    def on_pod(self, pod: PodState | None) -> None:
        """Handle the state of the pod; None if there is none."""


class PilotMonitor:
    """Knows the state of the pilots in one cluster, by their names."""

    def __init__(self, kubectl: Kubectl, selector: str, reactor: Reactor) -> None:
        """`selector` selects the pilots of this installation there by their labels."""
        self.kubectl, self.selector, self.reactor = kubectl, selector, reactor
        self.pool = TransferPool(reactor)
        self.timer = Timer(reactor, self._poll)
        self.pods: dict[str, PodState] = {}
        self.is_closed = False
        self._on_polled: Callable[[str | None], None] | None = None
        self._watchers: dict[str, PodWatcher] = {}
        self._changed_at = 0.0
        """Time of the last change that another one may follow soon."""
        self._polled_at = -MIN_CHANGING_SECONDS
        self._is_polling = self._is_retired = False

    def open(self, on_polled: Callable[[str | None], None]) -> None:
        """Poll from now on; call back after every poll, with the error if it failed."""
        self._on_polled, self._is_retired = on_polled, False
        self.poll_soon()

    def use(self, kubectl: Kubectl) -> None:
        """Reach the cluster like this from now on: its options were changed."""
        self.kubectl = kubectl
        self.poll_soon()

    def poll_soon(self) -> None:
        """Poll now, and often for a while: something is about to change."""
        self._changed_at = self.reactor.time()
        self.timer.request(max(self._polled_at + MIN_CHANGING_SECONDS - self._changed_at, 0.0))

    def watch(self, name: str, watcher: PodWatcher) -> None:
        """Report a pod to a watcher after every poll from now on."""
        self._watchers[name] = watcher
        self.poll_soon()

    def unwatch(self, name: str) -> None:
        """Forget a pod: if it exists after the next poll, it is deleted."""
        self._watchers.pop(name, None)
        self.poll_soon()

    def is_watched(self, name: str) -> bool:
        """Return whether a pod is a pilot that is in use."""
        return name in self._watchers

    def create(self, manifest: Mapping[str, Any], on_created: OnCreated) -> None:
        """Create a pod; call back with the error, or None."""

        def on_done(result: object) -> None:
            self.poll_soon()
            if isinstance(result, Exception) and not isinstance(result, KubectlError):
                on_created(KubectlError(f"kubectl was not called: {result}"))
                raise result
            on_created(result if isinstance(result, KubectlError) else None)

        self.pool.submit(lambda: self.kubectl.create(manifest), on_done)

    def _poll(self) -> None:
        if not self._is_polling and not self.is_closed:
            self._is_polling, self._polled_at = True, self.reactor.time()
            self.pool.submit(lambda: self.kubectl.pods(self.selector), self._on_pods)

    def _on_pods(self, result: list[PodState] | Exception) -> None:
        self._is_polling = False
        if self.is_closed:
            return
        if isinstance(result, Exception):
            if not isinstance(result, KubectlError):
                raise result
            self.timer.request(FAILED_SECONDS)
            self._report(str(result))
            return
        known, self.pods = self.pods, {pod.name: pod for pod in result}
        if known != self.pods:
            self._changed_at = self.reactor.time()
        for name, watcher in list(self._watchers.items()):
            watcher.on_pod(self.pods.get(name))
        self._delete_unwatched()
        if self._is_retired and not self._watchers and not self.pods:
            self.close()
            return
        self.timer.request(self._seconds_until_poll())
        self._report(None)

    def _report(self, error: str | None) -> None:
        if self._on_polled is not None:
            self._on_polled(error)

    def _seconds_until_poll(self) -> float:
        watched = [self.pods.get(name) for name in self._watchers]
        left = [pod for name, pod in self.pods.items() if name not in self._watchers]
        if left or any(pod is None or pod.is_changing for pod in watched):
            pause = (self.reactor.time() - self._changed_at) * CHANGING_FRACTION
            return min(max(pause, MIN_CHANGING_SECONDS), MAX_CHANGING_SECONDS)
        return STEADY_SECONDS if watched else IDLE_SECONDS

    def _delete_unwatched(self) -> None:
        """Delete pods that the journal does not know; what fails is done after the next poll."""
        names = [
            name
            for name, pod in self.pods.items()
            if name not in self._watchers and not pod.is_deleting
        ]
        if names:
            self.pool.submit(
                lambda: self.kubectl.delete_pods(names, RELEASE_GRACE_SECONDS), lambda _: None
            )

    def retire(self) -> None:
        """Close once all pods are gone: the cluster was removed."""
        self._is_retired, self._on_polled = True, None
        self.poll_soon()

    def close(self) -> None:
        """Poll no more; all pods continue."""
        self.is_closed = True
        self.timer.cancel()
        self.pool.close()
