"""The return value of `checkpoint()` of a callable: the call that resumes the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DelayedSubmission:
    """A call to be done later: `DelayedSubmission(function, *args, **kwargs)`."""

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"DelayedSubmission({self.function!r}, *{self.args!r}, **{self.kwargs!r})"
