"""The environment that a job takes over; apart from the options of a job, which a feed lacks."""

from __future__ import annotations

from stoker.cli import output
from stoker.client import submit_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def job_environment(environ: Mapping[str, str], *, keep_terminal: bool = False) -> dict[str, str]:
    """Return the environment of the job; report variables that cannot be passed."""
    passed, not_utf8 = submit_environment.environment(environ, keep_terminal=keep_terminal)
    if not_utf8:
        names = " ".join(output.clean(name) for name in not_utf8)
        output.say(f"stoker: variables that are not UTF-8 are not passed to the job: {names}")
    return passed
