"""Options, directory, environment, shell and umask of a submission."""

from __future__ import annotations

import os
from collections.abc import Mapping

from stoker.api.arguments.options import as_options
from stoker.client import submit_environment


def submission(options: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a submission besides `what`."""
    job_options = as_options(options)
    directory = job_options.get("chdir")
    environment, _ = submit_environment.environment(os.environ)
    fields = submit_environment.submit_fields(
        environment, directory if isinstance(directory, str) else None
    )
    return {"options": job_options, **fields}
