"""`python -m stoker.simulate.forecast`: read one input from stdin, write one forecast.

Input and forecast are one line of JSON each. The daemon runs this as a helper process.
"""

from __future__ import annotations

import os
import sys

import msgspec

from stoker.simulate.forecast.futures import forecast

MAX_SECONDS = 20.0
"""After this time no further future is simulated."""
NICENESS = 10


def main() -> int:
    """Answer one request."""
    os.nice(NICENESS)
    answer = forecast(sys.stdin.buffer.readline(), seconds=MAX_SECONDS)
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
