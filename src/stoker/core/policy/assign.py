"""Who goes where when GPUs differ, or jobs share them: one pass over all who wait or can move.

Everybody is placed anew on paper, in order: those who run as if they could leave at once, but a
little before their turn, and with a preference for where they are. What comes of it is done as far
as it can be: whoever waits and finds its place free starts; whoever runs and was placed elsewhere,
or nowhere, is asked to stop. Since a stop takes its time, the next pass decides again, by the same
rules and therefore mostly alike.

This is for clusters on which it matters: some family is known on several models of GPU, or beside
others. It looks at every running job, so it is for no more of them than `MOST_RUNNING`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf, log2

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.cluster import Placement, Shadow
from stoker.core.estimate import company, family_of, hardware, known, restart_cost
from stoker.core.events import AttemptPlanned, StopAsked, StopWithdrawn
from stoker.core.job import Job
from stoker.core.lifecycle import JobState
from stoker.core.policy import match
from stoker.core.policy.backfill import keep
from stoker.core.policy.ledger import is_there
from stoker.core.policy.match import Company, Option
from stoker.core.policy.order import Heads, JobClass
from stoker.core.policy.place import place
from stoker.core.policy.rank import OVERDUE, gpus_of, left_of
from stoker.core.policy.rules import Gaps, Knows, Policy
from stoker.core.policy.shelf import Place
from stoker.core.policy.speeds import Speeds
from stoker.core.request import GPU, Request
from stoker.core.state import State
