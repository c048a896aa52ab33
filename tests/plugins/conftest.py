"""One real daemon for each file of tests, as for the Python API."""

from api.conftest import box

__all__ = ["box"]
