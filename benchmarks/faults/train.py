"""A training job of the campaign: a few short epochs, with the same records as job.sh."""

import fcntl
import os
import sys
import time

from stoker.training import job

records, devices, line, epochs, seconds = sys.argv[1:6]
attempt = f"{os.environ['STOKER_JOB_ID']}.{os.environ['STOKER_ATTEMPT']}"
held: list[int] = []


def record(what: str, text: str) -> None:
    """Create a record exclusively: if it exists, this attempt has already been here."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        with open(f"{records}/{attempt}.{what}", "x", encoding="utf-8") as file:
            file.write(f"{now:.3f} {text}\n")
    except FileExistsError:
        violated("twice", f"again: {what}")


def violated(what: str, text: str) -> None:
    """Leave a record of what must not be."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    with open(f"{records}/{attempt}.{what}", "a", encoding="utf-8") as file:
        file.write(f"{now:.3f} pid={os.getpid()} {text}\n")


def lock(path: str) -> bool:
    """Hold a lock until the last process of this attempt ends."""
    held.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    try:
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


gpus = os.environ.get("STOKER_GPUS", "")
facts = f"gpus={gpus} count={os.environ.get('STOKER_GPU_COUNT', '')}"
record("start", f"line={line} pid={os.getpid()} parent={os.getppid()} {facts}")
if not lock(f"{records}/{os.environ['STOKER_JOB_ID']}.alive"):
    violated("twice", "another attempt is alive")
for gpu in gpus.split(","):
    if gpu and not (lock(f"{devices}/{gpu}.a") and lock(f"{devices}/{gpu}.b")):
        violated("overcommit", f"all of {gpu}")
try:
    for _ in job.epochs(int(epochs)):
        time.sleep(float(seconds))
        path = job.checkpoint_dir + "/epoch.pt"
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(str(job.epoch))
        os.replace(path + ".new", path)
except SystemExit as stop:
    record("end", f"code={stop.code}")
    raise
record("end", "code=0")
