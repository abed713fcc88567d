from __future__ import annotations

import pytest

from ignite_tf_magic.embedded import EmbeddedOptions
from ignite_tf_magic.embedded.options import IGNITE_VERSION, parse_size
from ignite_tf_magic.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("2G", 2 << 30), (" 900000k ", 900_000 << 10)]
)
def test_reads_sizes(text, size):
    assert parse_size("heap", text) == size


@pytest.mark.parametrize("heap", ["", "lots", "512", "0.5g", "-1g", "512mb", "1t"])
def test_a_heap_that_is_no_size_is_refused_with_an_example(heap):
    with pytest.raises(ConfigError, match="as in 512m or 2g") as caught:
        EmbeddedOptions(heap=heap)
    assert repr(heap) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heap": "64m"}, "at least 128m"),
        ({"region": "1m"}, "at least 32m"),
        ({"num_nodes": 0}, "give 1 to 32"),
        ({"idle_timeout_s": 0}, "more than 0 seconds"),
        ({"authentication": True}, "needs persist=True"),
    ],
)
def test_what_no_cluster_can_be_is_refused_with_what_to_give(options, told):
    with pytest.raises(ConfigError, match=told):
        EmbeddedOptions(**options)


def test_the_version_comes_from_the_option_then_the_environment_then_the_constant(monkeypatch):
    monkeypatch.delenv("IGNITE_TF_IGNITE_VERSION", raising=False)
    assert EmbeddedOptions().resolved_version() == IGNITE_VERSION
    monkeypatch.setenv("IGNITE_TF_IGNITE_VERSION", "2.16.0")
    assert EmbeddedOptions().resolved_version() == "2.16.0"
    assert EmbeddedOptions(ignite_version="2.15.0").resolved_version() == "2.15.0"


def test_a_version_that_is_none_never_becomes_a_path_or_an_address():
    with pytest.raises(ConfigError, match="not an Ignite version"):
        EmbeddedOptions(ignite_version="../../etc").resolved_version()
