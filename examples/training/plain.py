"""A training without a framework: it computes the square root of 2 by gradient steps.

    stoker submit --epochs 5 python examples/training/plain.py

When it is preempted by a job of higher priority, it resumes from its checkpoint.
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
    os.replace(new, saved)  # an interrupted save leaves the previous one
    print(f"epoch {epoch}: {guess:.6f}", flush=True)
