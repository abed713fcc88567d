"""Warnings of a load about nodes that do not report their memory use."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ignite_tf_magic.client import regions
from ignite_tf_magic.client.load import region_watch
from ignite_tf_magic.errors import ConnectionLost, ServerError
from ignite_tf_magic.session import open_session


@pytest.fixture
def without_indexing(monkeypatch):
    """Answer as a node without Ignite's SQL module does."""

    def refused(payload):
        raise ServerError(1, "OP_QUERY_SQL_FIELDS", "Failed to execute query: indexing is disabled")

    monkeypatch.setattr(regions.metrics, "parse_regions", refused)


def test_nodes_that_cannot_be_asked_are_told_of_once_a_load(client, without_indexing):
    for _ in range(2):
        watch = region_watch(client)
        with pytest.warns(UserWarning, match=r"continues without this check.*ignite-indexing") as told:
            for _ in range(2):
                watch.check(1)
                watch.claim(1)
        assert len(told) == 1
        assert "indexing is disabled" in str(told[0].message)


def test_a_load_on_nodes_that_cannot_be_asked_goes_on(ignite, without_indexing):
    with open_session(ignite.connect_options, report=print) as session:
        with pytest.warns(UserWarning, match="continues without this check") as told:
            session.load("UNGUARDED", {"x": np.arange(100), "y": np.arange(100)})
        assert len([each for each in told if "without this check" in str(each.message)]) == 1
        assert session.client.cache("UNGUARDED").size() == 100
        session.client.destroy_cache("UNGUARDED")


def test_nodes_that_answer_are_not_told_of(client):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        region_watch(client).check(1)


def test_a_node_that_is_out_of_reach_is_told_of_when_it_stays_so(client, monkeypatch):
    """The node may just have died and still be listed for a moment."""

    def lost(payload):
        raise ConnectionLost("127.0.0.1:1", "the node closed it")

    monkeypatch.setattr(regions.metrics, "parse_regions", lost)
    watch = region_watch(client)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.check(1)
    with pytest.warns(UserWarning, match=r"the node closed it.*continues without this check"):
        watch.check(1)
