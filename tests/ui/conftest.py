"""Fixtures for the tests of the shell and the notebook."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def ignite(alone):
    """Nodes on which these tests see all runs and caches."""
    return alone


@pytest.fixture(scope="module")
def digits(ignite):
    """A cache with the test rows of the digits, named DIGITS_NB."""
    from ignite_tf_magic.session import load

    load("DIGITS_NB", "digits", split="test", options=ignite.connect_options, replace=True, report=str)
    yield "DIGITS_NB"
    from ignite_tf_magic.client.client import connect

    with connect(ignite.connect_options) as client:
        client.destroy_cache("DIGITS_NB")
