"""StoredSweep: the definition of a sweep and the Spec of its trials, as kept in the store."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.json import decode

from stoker.core.model.spec import JobCommand, Spec
from stoker.core.model.sweep import Sweep
from stoker.daemon.context import RequestContext
from stoker.engine import CommandRejected
from stoker.sweep.definition.template import command_of
from stoker.sweep.values import canonical


class StoredSweep(Struct):
    """A sweep as it was submitted."""

    definition: dict[str, Any]
    spec: Spec
    hash: str
    """The hash under which the spec is recorded."""


def trial_command(definition: dict[str, Any], params: dict[str, Any]) -> tuple[str, JobCommand]:
    """Return the key and the command of a trial with these parameters."""
    command = command_of(definition, params)
    return canonical(params), command if isinstance(command, str) else tuple(command)


def load_sweep(context: RequestContext, sweep: Sweep) -> StoredSweep:
    """Return a sweep as it was submitted; reject if it is missing in the store."""
    data = context.store.blob(sweep.definition)
    if data is None:
        raise CommandRejected(f"The definition of sweep {sweep.id} is lost.", "failed")
    return decode(data, type=StoredSweep)
