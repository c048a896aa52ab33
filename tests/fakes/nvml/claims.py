"""A GPU's memory as the processes on it claim it, for jobs in tests: `Gpu(claims=DIRECTORY)`.

A job in the shell says `echo 500 >DIRECTORY/$$`; one in Python, with this file's directory on
its path:

    import claims
    claims.claim(DIRECTORY, 500, room=8192)    # MiB; as much as is there, or CUDA's own words

What a process has claimed is free again when it ends.
"""

import fcntl
import os


class OutOfMemoryError(RuntimeError):
    """There is not so much left."""


def claim(directory: str, amount: int, room: int) -> None:
    """Have this process use so much of the GPU from now on: more, less or none."""
    os.makedirs(directory, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        left = room - sum(_of_others(directory))
        if amount > left:
            raise OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {amount} MiB; {left} MiB are free."
            )
        new = os.path.join(directory, f".{os.getpid()}")
        with open(new, "w") as file:
            file.write(str(amount))
        os.replace(new, os.path.join(directory, str(os.getpid())))
    finally:
        os.close(lock)


def _of_others(directory: str) -> list[int]:
    found = []
    for name in os.listdir(directory):
        if name.isdigit() and int(name) != os.getpid() and os.path.exists(f"/proc/{name}"):
            with open(os.path.join(directory, name)) as file:
                found.append(int(file.read() or 0))
    return found
