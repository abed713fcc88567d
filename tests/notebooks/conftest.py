"""Fixtures for tests that see all runs and caches of a cluster."""

from __future__ import annotations

import pytest

from tests.training.conftest import session

__all__ = ["session"]


@pytest.fixture(scope="session")
def ignite(alone):
    return alone
