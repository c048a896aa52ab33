"""The daemon's reactor: an EpollReactor that ends when another daemon owns the store."""

from __future__ import annotations

from typing import ClassVar

from stoker.executors.linux import epoll_reactor
from stoker.store.port import StoreFenced


class EpollReactor(epoll_reactor.EpollReactor):
    """Implements `executors.reactor.Reactor` for the daemon."""

    FATAL: ClassVar[tuple[type[Exception], ...]] = (StoreFenced,)
