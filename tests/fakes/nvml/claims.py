"""GPU memory that processes of test jobs claim, for `Gpu(claims=DIRECTORY)`.

A shell job runs `echo 500 >DIRECTORY/$$`; a Python job, with the directory of this file on its
path:

    import claims
    claims.claim(DIRECTORY, 500, total=8192)    # MiB; fails with CUDA's message

The memory of a process is free again when it ends.
"""

import fcntl
import os


class OutOfMemoryError(RuntimeError):
    """The GPU has less free memory."""


def claim(directory: str, amount: int, total: int) -> None:
    """Set the GPU memory that this process uses, in MiB."""
    os.makedirs(directory, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        left = total - sum(_of_others(directory))
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
    amounts = []
    for name in os.listdir(directory):
        if name.isdigit() and int(name) != os.getpid() and os.path.exists(f"/proc/{name}"):
            with open(os.path.join(directory, name)) as file:
                amounts.append(int(file.read() or 0))
    return amounts
