"""Beds for the tests of the bed itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bed.bed import Bed, BedKind


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Iterator[Bed]:
    """Yield three namespace hosts without Ignite. A test must leave them as it found them."""
    if BedKind.best() is not BedKind.NAMESPACES:
        pytest.skip(f"no faults of link, power and disk on {BedKind.best().value}")
    with Bed.up(ignite=False, root_dir=tmp_path_factory.mktemp("machines")) as bed:
        yield bed


@pytest.fixture(scope="module")
def loopback(tmp_path_factory) -> Iterator[Bed]:
    with Bed.up(ignite=False, root_dir=tmp_path_factory.mktemp("loopback"), kind=BedKind.LOOPBACK) as bed:
        yield bed
