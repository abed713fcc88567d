"""File systems for the igfs tests, on the cluster that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from ignite_tf_magic.igfs import lease_manager as keeper
from ignite_tf_magic.igfs.paths import Path, parse
from ignite_tf_magic.igfs.volume import Volume
from tests.waiting import until

if TYPE_CHECKING:
    from ignite_tf_magic.embedded import EmbeddedCluster

settings.register_profile("igfs", deadline=None)
settings.load_profile("igfs")
PARTS = ("blocks", "journal", "meta")
NewVolume = Callable[..., Volume]
_NUMBERS = count()


@pytest.fixture(scope="module")
def shared_name(ignite: EmbeddedCluster) -> Iterator[str]:
    """The name of a file system that all tests of a module share."""
    name = f"fs{os.getpid()}n{next(_NUMBERS)}"
    yield name
    destroy(ignite, name)


def destroy(cluster: EmbeddedCluster, name: str) -> None:
    with Volume(lambda: cluster.connect_options, name) as volume:
        client = volume.store.client()
        for part in {f"{name}-{part}" for part in PARTS} & set(client.cache_names()):
            client.destroy_cache(part)


@pytest.fixture
def new_volume(ignite: EmbeddedCluster, shared_name: str) -> Iterator[NewVolume]:
    """Yield a function that opens clients of the module's file system: `new_volume(block_bytes=65536)`."""
    with ExitStack() as opened:

        def new(name: str = shared_name, **options: Any) -> Volume:
            return opened.enter_context(Volume(lambda: ignite.connect_options, name, create=True, **options))

        yield new


@pytest.fixture
def own_name(ignite: EmbeddedCluster) -> Iterator[str]:
    """The name of a file system for one test, which can count its content."""
    name = f"own{os.getpid()}n{next(_NUMBERS)}"
    yield name
    destroy(ignite, name)


@pytest.fixture
def volume(new_volume: NewVolume) -> Volume:
    return new_volume(block_bytes=64 * 1024)


@pytest.fixture
def here(volume: Volume, request: pytest.FixtureRequest) -> Path:
    """A directory for this test."""
    path = parse(f"/{request.node.name}")
    volume.make_directory(path)
    return path


@pytest.fixture
def quick_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew leases and sweep garbage often: what takes a minute takes a second."""
    monkeypatch.setattr(keeper, "RENEW_S", 0.1)
    monkeypatch.setattr(keeper, "SWEEP_S", 0.3)


def sweep_until_clean(volume: Volume) -> None:
    """Sweep until the journal holds no waiting garbage."""
    until(
        lambda: not volume.sweep(100_000),
        what=lambda: f"the garbage to go: {volume.collector.records()}",
    )


def read_all(volume: Volume, path: Path) -> bytes:
    with volume.open_read(path) as reader:
        data = bytearray(reader.node.size)
        assert reader.read_into(0, memoryview(data)) == len(data)
    return bytes(data)
