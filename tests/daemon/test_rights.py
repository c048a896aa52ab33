"""Rights in system mode: decisions about requests and jobs, and who the users are."""

from typing import get_args

import pytest

from daemon.users_fixture import ADA, ADMINS, ANA, BO, LEA, MAX, ROOT, VISION, caller, identities
from stoker.daemon.identities import CACHE_SECONDS, Identities, User
from stoker.daemon.rights import Access, Need, Private, access_to, may_manage, refusal


@pytest.mark.parametrize(
    ("need", "allowed"),
    [
        # a user, over TCP, looking only; an administrator, over TCP, looking only
        (Need.VIEW, (True, True, True, True, True, True)),
        (Need.ACT, (True, True, False, True, True, False)),
        (Need.OWN, (True, False, False, True, False, False)),
        (Need.ADMIN, (False, False, False, True, True, False)),
        (Need.HOST, (False, False, False, True, False, False)),
    ],
)
def test_what_a_route_needs(need: Need, allowed: tuple[bool, ...]) -> None:
    callers = [
        caller(uid, **how)
        for uid in (ANA, ADA)
        for how in ({}, {"is_local": False}, {"is_local": False, "may_act": False})
    ]
    assert tuple(refusal(need, each) is None for each in callers) == allowed
    for each in callers:
        text = refusal(need, each)
        assert text is None or text.endswith(".")


def test_each_need_is_tested() -> None:
    assert set(Need) == {Need.VIEW, Need.ACT, Need.OWN, Need.ADMIN, Need.HOST}


@pytest.mark.parametrize(
    ("uid", "manages_ana", "manages_bo", "manages_none"),
    [
        (ANA, True, False, False), (BO, False, True, False), (LEA, True, False, False),
        (ADA, True, True, True), (ROOT, True, True, True), (MAX, False, False, False),
    ],
)  # fmt: skip
def test_who_may_change_the_jobs_of_a_user(
    uid: int, manages_ana: bool, manages_bo: bool, manages_none: bool
) -> None:
    users = identities()
    assert may_manage(caller(uid), ANA, users.user(ANA).groups) is manages_ana
    assert may_manage(caller(uid), BO, users.user(BO).groups) is manages_bo
    assert may_manage(caller(uid), None, ()) is manages_none  # of no user


@pytest.mark.parametrize(
    ("private", "expected"),
    [("all", Access.PUBLIC), ("logs", Access.DETAILS), ("none", Access.ALL)],
)
def test_what_others_may_see(private: Private, expected: Access) -> None:
    assert access_to(caller(BO), ANA, {VISION}, private) is expected
    for uid in (ANA, LEA, ADA, ROOT):
        assert access_to(caller(uid), ANA, {VISION}, private) is Access.ALL
    assert private in get_args(Private)


def test_administrators_are_root_and_a_group() -> None:
    assert [caller(uid).is_admin for uid in (ROOT, ADA, ANA, LEA)] == [True, True, False, False]
    without = Identities("", "all", {}, lambda uid: User("ada", frozenset({ADMINS})), {}.get)
    assert without.caller(ADA).is_admin is False
    assert without.caller(ROOT).is_admin is True


def test_a_group_that_does_not_exist_has_no_members() -> None:
    missing = Identities("gone", "all", {"gone": ("ana",)}, lambda _: User("ana", frozenset()),
                         lambda _: None)  # fmt: skip
    found = missing.caller(ANA)
    assert (found.is_admin, found.leads) == (False, frozenset())


def test_users_are_looked_up_again_after_a_while() -> None:
    groups, now, looked_up = {VISION, ADMINS}, [100.0], []

    def user(uid: int) -> User:
        looked_up.append(uid)
        return User("ana", frozenset(groups))

    users = Identities("stoker-admin", "all", {}, user, {"stoker-admin": ADMINS}.get,
                       lambda: now[0])  # fmt: skip
    assert users.caller(ANA).is_admin
    groups.remove(ADMINS)
    assert users.caller(ANA).is_admin
    assert looked_up == [ANA]
    now[0] += CACHE_SECONDS
    assert not users.caller(ANA).is_admin


def test_the_users_of_this_machine_are_found() -> None:
    users = Identities("root", "all", {"root": ("root",)})
    found = users.caller(0)
    assert (found.name, found.is_admin, found.leads) == ("root", True, frozenset({0}))
    unknown = users.caller(4_000_000_123)
    assert (unknown.name, unknown.is_admin) == ("4000000123", False)
