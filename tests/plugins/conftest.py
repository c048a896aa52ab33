"""Fixture: one real daemon per file of tests."""

from api.conftest import box

__all__ = ["box"]
