"""ReportTokens: with the token of its attempt, a pod may send a training report over HTTP.

Tokens are derived from one key, so that nothing but the key is stored, and a later daemon accepts
those of attempts that run.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Callable
from typing import NamedTuple

from stoker.core.model.job import AttemptId

logger = logging.getLogger(__name__)

_TOKEN = re.compile(r"(\d{1,15})\.(\d{1,9})\.(\d{1,6})\.([0-9a-f]{64})", re.ASCII)


class ReportSource(NamedTuple):
    """The part of an attempt that a token belongs to."""

    attempt: AttemptId
    rank: int


class ReportTokens:
    """Issues and checks the tokens of one installation; for any thread."""

    def __init__(self, load_key: Callable[[], str]) -> None:
        """`load_key` returns the key, and creates it at its first use."""
        self._load_key = load_key
        self._key: bytes | None = None

    def issue(self, source: ReportSource) -> str:
        """Return the token of a part; raise OSError if the key cannot be stored."""
        if self._key is None:
            self._key = self._load_key().encode()
        text = f"{source.attempt.job}.{source.attempt.attempt}.{source.rank}"
        return f"{text}.{hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()}"

    def check(self, token: str) -> ReportSource | None:
        """Return the part that a token was issued for; None if it was not issued."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        job, attempt, rank = (int(text) for text in match.groups()[:3])
        source = ReportSource(AttemptId(job, attempt), rank)
        return source if hmac.compare_digest(self.issue(source), token) else None


class ReportAccess(NamedTuple):
    """How pods reach this daemon."""

    tokens: ReportTokens
    fingerprint: Callable[[], str | None]
    """Returns that of the daemon's certificate; None without one: then no port has TLS."""

    def describe(self, server: str, source: ReportSource) -> str:
        """Return what the sender in a pod needs; empty if the daemon cannot be reached."""
        try:
            fingerprint = self.fingerprint() if server else None
            return f"{server} {fingerprint} {self.tokens.issue(source)}" if fingerprint else ""
        except (OSError, ValueError) as error:
            logger.warning("training reports of %s come by its log: %s", source.attempt, error)
            return ""
