"""What is wrong with a recorded workload."""

from __future__ import annotations

import csv
from pathlib import Path


class BadTrace(Exception):
    """It cannot be read: one sentence with the file, the line, what was expected, what to do."""


def unreadable(path: Path, first: int, last: int, error: csv.Error) -> BadTrace:
    """What csv says of a row that begins in one line and was given up in another, in our words."""
    said, longest = str(error), f"{csv.field_size_limit():,} characters"
    if "end of data" in said:
        what = "the quote that opens a cell is never closed; close it or take it out"
    elif "field limit" in said and last > first:
        what = (
            f"the quote that opens a cell is not closed within {longest}; close it or take it out"
        )
    elif "field limit" in said:
        what = f"a cell has more than {longest}; shorten it or take the line out"
    elif "expected after" in said:
        what = (
            "a cell goes on behind its closing quote; close each quote, and write one within a "
            "cell twice"
        )
    else:
        what = f"{said}; correct the line or take it out"
    return BadTrace(f"{path}, line {first}: {what}.")
