"""What each route requires of users of a system daemon."""

import pytest

from stoker.daemon.rights import Need
from stoker.daemon.routes.app import ROUTES, WITHOUT_CALLER

SAFE = {"/wait", "/report", "/sessions/open"}
"""Routes that change nothing of others although their method is POST."""


def test_every_route_has_a_need() -> None:
    assert all(isinstance(route.need, Need) for route in ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_only_what_changes_nothing_is_for_everyone(route) -> None:  # type: ignore[no-untyped-def]
    is_safe = route.method == "GET" or route.path in SAFE
    assert (route.need is Need.VIEW) == (is_safe and route.path not in {"/sessions", "/tokens"})


def test_what_all_users_share_is_for_administrators() -> None:
    shared = {route.path for route in ROUTES if route.need is Need.ADMIN}
    assert {"/queues", "/policies", "/drain", "/undrain", "/nodes", "/thresholds"} <= shared
    host = {route.path for route in ROUTES if route.need is Need.HOST}
    assert host == {"/daemon/stop", "/listen", "/listen/{address}", "/backup"}


def test_routes_without_a_user_are_those_with_another_proof() -> None:
    assert set(WITHOUT_CALLER) == {"/report", "/sessions/open", "/metrics"}
