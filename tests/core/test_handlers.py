"""Dispatch of events to their handlers."""

from typing import get_args

from stoker.core import events as e
from stoker.core.handlers import HANDLERS


def test_every_event_has_one_handler_that_is_called_with_the_job_of_a_job_event():
    assert set(HANDLERS) == set(get_args(e.AnyEvent))
    for kind, handler in HANDLERS.items():
        names = handler.__code__.co_varnames[: handler.__code__.co_argcount]
        with_job = issubclass(kind, e.JobEvent)
        assert names == (("state", "job", "event") if with_job else ("state", "event"))
