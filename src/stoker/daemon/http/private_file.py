"""Files of the daemon with secrets, which only their owner may read."""

from __future__ import annotations

import logging
import os
from typing import TypeVar

import msgspec

T = TypeVar("T")
logger = logging.getLogger(__name__)


def read_private(path: str, type: type[T]) -> T | None:
    """Return what an earlier daemon has stored as JSON; None if it cannot be read or trusted."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                logger.warning("%s can be read by other users and is ignored", path)
                return None
            return msgspec.json.decode(file.read(), type=type)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s cannot be read: %s", path, error)
        return None
