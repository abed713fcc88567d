"""Fixtures for tests that see all runs and caches of a cluster."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def ignite(alone):
    return alone
