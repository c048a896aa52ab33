"""EASY backfill: start a job early only if it cannot delay the reservation of a blocked job.

Source: Lifka, The ANL/IBM SP scheduling system (1995). The first protected blocked job that the
end of running jobs would let start has the reservation. A job behind it may start if its time limit
ends before the shadow time of the reservation, or if it fits beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from math import inf
from operator import itemgetter
from typing import NamedTuple

from stoker.core.cluster.cluster import Cluster
from stoker.core.model.resources import Placement, ResourceRequest
from stoker.core.placement.advance import Occupation, reservation_ends
from stoker.core.placement.capacity import capacity_test
from stoker.core.placement.placer import find_placement
from stoker.core.policies.ranking import ROUNDING_SECONDS
from stoker.core.reservation.reservation import Releases, Reservation, reserve
from stoker.core.running.release_times import KILL_GRACE_SECONDS, Release
from stoker.core.structures import CapacityTest, SortKey


class BlockedJob(NamedTuple):
    """A protected job that does not fit now: later jobs must not delay it."""

    key: SortKey
    request: ResourceRequest
    limit: int | None
    is_conservative: bool = False
    """Whether it is reserved for even if jobs before it have reservations."""
    time_needed: int = 0
    """Seconds for which its nodes must exist after its start."""
    occupation: Occupation | None = None
    """How long it may run, if there are advance reservations."""


class EasyBackfill:
    """EASY backfill for one scan of the queue.

    Invariant: capacity only shrinks during a scan, so that the first reservation stays valid.
    """

    def __init__(
        self, cluster: Cluster, releases: Releases, now: float, wall_offset: float = 0.0
    ) -> None:
        """`wall_offset`: the difference between the wall clock and the boot clock of `now`."""
        self.cluster, self.releases, self.now = cluster, releases, now
        self.wall_offset = wall_offset
        self._reservation: Reservation | None = None

    def find_start(
        self,
        request: ResourceRequest,
        limit: int | None,
        ledger: Cluster,
        blocked: Iterable[BlockedJob],
    ) -> Placement | None:
        """Return devices on which a request may start now, or None. The caller allocates them.

        What ends after the shadow time is charged to what is free beside the reservation.

        `ledger` is what the job may use now, `blocked` the protected jobs before it, in order;
        those are only looked up if the request fits.
        """
        placement = find_placement(ledger, request)
        if placement is None:
            return None
        if self._reservation is None:
            reservations = (
                reserve(
                    self.cluster,
                    self.all_releases(),
                    job.request,
                    self.wall_offset + job.time_needed,
                    (job.occupation, self.wall_offset) if job.occupation is not None else None,
                )
                for job in blocked
            )
            # The first job that the end of all running jobs would help: others wait for drained
            # devices or foreign processes, and must not block the queue.
            self._reservation = next(filter(None, reservations), None)
        reservation = self._reservation
        if reservation is not None and not reservation.ends_before(self.now, limit):
            placement = find_placement(reservation.backfill_capacity(ledger), request)
            if placement is not None:
                reservation.allocate(placement)
        return placement

    def start_regardless(self, request: ResourceRequest, ledger: Cluster) -> Placement | None:
        """Return devices on which a job starts now whatever it delays: they are reserved for it."""
        return find_placement(ledger, request)

    def all_releases(self) -> Iterable[Release]:
        """Return the releases of running attempts and of advance reservations, in order."""
        if not self.cluster.base.advance_reservations:
            return self.releases()
        offset = self.wall_offset
        ends = reservation_ends(self.cluster, self.now + offset)
        return merge(
            self.releases(), ((end - offset, part) for end, part in ends), key=itemgetter(0)
        )

    def capacity_test(self, shape: ResourceRequest, ledger: Cluster) -> CapacityTest:
        """Return the test whether amounts of a shape, with a time limit at the end, may start."""
        reservation = self._reservation
        if reservation is None:
            return capacity_test(ledger, shape)
        # Slightly more time than there is: rounding must not hide a job that `find_start` accepts.
        left = reservation.shadow_time - self.now - KILL_GRACE_SECONDS + ROUNDING_SECONDS
        fits_now = capacity_test(ledger, shape)
        fits_beside = capacity_test(reservation.backfill_capacity(ledger), shape)
        return lambda amounts: (
            (amounts[-1] <= left and amounts[-1] < inf and fits_now(amounts))
            or fits_beside(amounts)
        )
