"""What goes with every submission: its options, and where it comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping

from stoker.api.options import as_options
from stoker.client import submit_environment as surroundings


def submission(options: Mapping[str, object]) -> dict[str, object]:
    """Return where a submission comes from, and its options, as the API takes them."""
    found = as_options(options)
    directory = found.get("chdir")
    environment, _ = surroundings.environment(os.environ)
    return {
        "options": found,
        "directory": surroundings.current_directory(
            directory if isinstance(directory, str) else None
        ),
        "environment": environment,
        "shell": surroundings.shell(),
        "umask": surroundings.umask(),
    }
