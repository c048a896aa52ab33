"""Users of a system daemon: ana and bo, lea who leads their group, ada who administers, root."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from daemon.handler_fixture import HandlerFixture
from stoker.daemon.context import RequestContext
from stoker.daemon.identities import Identities, User
from stoker.daemon.rights import Caller, Private
from stoker.daemon.submission.submit import submit_jobs

ROOT, ANA, BO, LEA, ADA, MAX = 0, 1001, 1002, 1003, 1004, 1005
NAMES = {ROOT: "root", ANA: "ana", BO: "bo", LEA: "lea", ADA: "ada", MAX: "max"}
VISION, ADMINS = 501, 500
GROUPS = {ANA: {VISION}, LEA: {VISION}, ADA: {ADMINS}}


def identities(private: Private = "all") -> Identities:
    """Ana and lea are in the group vision, which lea leads; bo and max are in no group."""

    def user(uid: int) -> User:
        return User(NAMES.get(uid, str(uid)), frozenset({uid, *GROUPS.get(uid, ())}))

    groups = {"vision": VISION, "stoker-admin": ADMINS}
    uids = {name: uid for uid, name in NAMES.items()}
    leaders = {"vision": ("lea",)}
    return Identities("stoker-admin", private, leaders, user, groups.get, find_uid=uids.get)


def caller(uid: int, **more: Any) -> Caller:
    return identities().caller(uid, **more)


class Users:
    """Requests of several users to one daemon."""

    def __init__(self, handlers: HandlerFixture, private: Private = "all") -> None:
        self.handlers = handlers
        self.system: RequestContext = replace(handlers.context, identities=identities(private))

    def context(self, uid: int, **more: Any) -> RequestContext:
        """The context of a request of this user."""
        assert self.system.identities is not None
        return replace(self.system, caller=self.system.identities.caller(uid, **more))

    def submit(self, uid: int, line: str = "true", **options: Any) -> int:
        body = self.handlers.submission(line, **options)
        return int(self.handlers.ask(partial(submit_jobs, self.context(uid), body))["first"])

    def ask(self, uid: int, handler: Any, *arguments: Any) -> Any:
        """Return the reply to a request of this user: `handler(context, *arguments, …)`."""
        return self.handlers.ask(partial(handler, self.context(uid), *arguments))

    def rejects(self, uid: int, code: str, word: str, handler: Any, *arguments: Any) -> None:
        self.handlers.rejects(partial(handler, self.context(uid), *arguments), code, word)
