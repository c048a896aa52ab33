"""A training without any framework: it learns the square root of 2, one step at a time.

    stoker submit --epochs 5 python examples/training/plain.py

Stop it, or let something more urgent come by: it goes on where it was.
"""

import os
import pathlib

from stoker.training import job

saved = pathlib.Path(job.checkpoint_dir, "guess")
guess = float(saved.read_text()) if job.restarted else 1.0

for epoch in job.epochs(5):
    for target in job.steps([2.0] * 10):
        guess -= 0.1 * (guess * guess - target)
    job.report(error=abs(guess * guess - 2))
    new = saved.with_suffix(".new")
    new.write_text(repr(guess))
    os.replace(new, saved)  # the save is whole, or it is the one before
    print(f"epoch {epoch}: {guess:.6f}", flush=True)
