"""pyignite, Apache's own client, over this package's connections."""

from __future__ import annotations

import dataclasses

import pytest
from pyignite.datatypes import IntObject, MapObject
from pyignite.datatypes.prop_codes import PROP_BACKUPS_NUMBER, PROP_NAME

from ignite_tf_magic.client.control import pyignite_client
from ignite_tf_magic.errors import ConnectionFailed, ServerError
from ignite_tf_magic.settings.options import Endpoint


def test_a_cache_of_any_configuration_and_values_of_any_type(ignite, client):
    dead = Endpoint("127.0.0.1", 1)
    endpoints = (dead, *ignite.connect_options.endpoints)
    options = dataclasses.replace(ignite.connect_options, endpoints=endpoints)
    with pyignite_client(options) as other:
        cache = other.get_or_create_cache({PROP_NAME: "controlled", PROP_BACKUPS_NUMBER: 2})
        words = MapObject.HASH_MAP, {"a": 1, "b": "text"}
        cache.put(7, words, value_hint=MapObject)
        assert cache.get(7) == words
        cache.put(8, 80, key_hint=IntObject, value_hint=IntObject)
        assert cache.get_size() == 2
        assert client.cache("controlled").size() == 2
        assert cache.settings[PROP_BACKUPS_NUMBER] == 2
        with pytest.raises(ServerError, match="controlled"):
            other.create_cache("controlled")
        cache.destroy()


def test_no_node_answers(ignite):
    options = dataclasses.replace(ignite.connect_options, endpoints=(Endpoint("127.0.0.1", 1),))
    with pytest.raises(ConnectionFailed, match="no node answered"), pyignite_client(options):
        pass
