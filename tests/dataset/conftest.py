"""Caches for the dataset tests, made once on the shared cluster."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pyignite import Client

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.embedded import EmbeddedCluster
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.session import open_session
from ignite_tf_magic.settings.options import Endpoint
from tests.training.assignments import assignment, rows_of_shares


@dataclass(frozen=True)
class LoadedCache:
    """A cache and the rows that were loaded into it."""

    name: str
    columns: dict[str, np.ndarray]
    keys: np.ndarray
    endpoint: Endpoint

    def where(self) -> dict[str, Any]:
        return {"host": self.endpoint.host, "port": self.endpoint.port}


def fill(cluster: EmbeddedCluster, name: str, columns, keys=None, backups: int = 1) -> LoadedCache:
    num_rows = len(next(iter(columns.values())))
    keys = np.arange(num_rows) if keys is None else keys
    with connect(cluster.connect_options) as client:
        encoder = RowEncoder(name, columns, keys)
        cache = client.create_cache(table_config(name, encoder, backups))
        put_rows(cache, encoder)
    return LoadedCache(name, columns, keys, cluster.connect_options.endpoints[0])


@pytest.fixture(scope="session")
def fill_cache() -> Callable[..., LoadedCache]:
    """Return a function that makes a cache on any cluster: `fill_cache(cluster, name, columns, backups=0)`."""
    return fill


def digits_like(num_rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    pixels = random.integers(0, 256, (num_rows, 64), dtype=np.uint8)
    return {"pixels": pixels, "label": (np.arange(num_rows) % 10).astype(np.int32)}


@pytest.fixture(scope="session")
def digits(ignite: EmbeddedCluster) -> LoadedCache:
    return fill(ignite, f"DATASET_DIGITS_{os.getpid()}", digits_like(5000))


@pytest.fixture
def make_cache(
    ignite: EmbeddedCluster, request: pytest.FixtureRequest
) -> Iterator[Callable[..., LoadedCache]]:
    """Yield a function that makes caches, which are destroyed after the test."""
    made: list[str] = []

    def make(columns, **options) -> LoadedCache:
        name = f"T{abs(hash(request.node.nodeid)) % 10**9}_{len(made)}"
        made.append(name)
        return fill(ignite, name, columns, **options)

    yield make
    with connect(ignite.connect_options) as client:
        for name in made:
            client.destroy_cache(name)


@pytest.fixture
def as_worker(digits, ignite, tmp_path, monkeypatch):
    """Return a function that turns this process into a worker with some partitions of a cache, by default `digits`."""

    def become(
        worker: int,
        shares: Sequence[Sequence[int]],
        cache: str = digits.name,
        more_rows: int = 0,
        cluster: EmbeddedCluster = ignite,
    ) -> list[int]:
        with connect(cluster.connect_options) as client:
            stats = client.cache(cache).partition_stats()
        endpoint = cluster.connect_options.endpoints[0]
        for name, value in assignment(tmp_path, endpoint, cache, stats, shares, worker, more_rows).items():
            monkeypatch.setenv(name, value)
        return rows_of_shares(stats, shares, more_rows)

    return become


@pytest.fixture(scope="module")
def clients(ignite):
    """Yield a session, pyignite's client of the same cluster, and the address of the node that both use."""
    endpoint = ignite.connect_options.endpoints[0]
    pyignite = Client()
    pyignite.connect(endpoint.host, endpoint.port)
    with open_session(ignite.connect_options) as session:
        yield session, pyignite, {"host": endpoint.host, "port": endpoint.port}
    pyignite.close()
