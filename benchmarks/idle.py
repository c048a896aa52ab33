"""CPU cost of an idle daemon."""

import time
from typing import Any

from benchmarks.home import Home, missing, process_tree, processor_seconds
from benchmarks.lab import Broken, fresh_directory
from benchmarks.report import verdict
from benchmarks.settings import Settings

MAX_LOAD_PERCENT = 0.1
SETTLE_SECONDS = 3.0


def measure(settings: Settings) -> dict[str, Any]:
    """Measure the load in per cent of one core after a job has finished."""
    seconds = 5.0 if settings.quick else 20.0
    print(f"\nIdle: processor time of a daemon and its helpers, nothing to do, {seconds:g} s\n")
    try:
        if why := missing(settings.cache):
            raise Broken(why)
        with fresh_directory(settings.runs) as directory:
            home = Home(directory)
            try:
                home.start(4)
                home.stoker("submit", "--gpus", "1", "true")
                home.stoker("wait", "last", limit=30)
                pid = home.pid()
                if pid is None:
                    raise Broken("the daemon does not answer")
                time.sleep(SETTLE_SECONDS)
                processes = process_tree(pid)
                before = sum(map(processor_seconds, processes))
                time.sleep(seconds)
                used = sum(map(processor_seconds, processes)) - before
                percent = used / seconds * 100
            finally:
                home.stop()
    except (Broken, OSError) as error:
        print(f"missing: stoker: {error}")
        return {"missing": {"stoker": str(error)}}
    mark = verdict(percent, MAX_LOAD_PERCENT)
    print(f"{percent:.3f} % of one core (target: under {MAX_LOAD_PERCENT} %, {mark})")
    return {"percent_of_one_core": percent}
