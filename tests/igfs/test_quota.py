"""Nearly full data memory raises an error in time, and removing files makes room again."""

from __future__ import annotations

import os

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.regions import region_use
from ignite_tf_magic.embedded import status
from ignite_tf_magic.errors import NoSpace
from ignite_tf_magic.igfs import quota
from ignite_tf_magic.igfs.fsck import fsck
from ignite_tf_magic.igfs.volume import Volume
from tests.igfs.conftest import read_all, sweep_until_clean

MIB = 1 << 20
pytestmark = pytest.mark.faults


@pytest.mark.nightly
def test_full_memory(new_cluster, quick_leases, monkeypatch):
    """Nightly. No shorter one: no other test fills the memory of a node with files."""
    monkeypatch.setattr(quota, "_RECLAIM_S", 5.0)
    cluster = new_cluster(num_nodes=2, region="96m")
    with connect(cluster.connect_options) as client, Volume(lambda: cluster.connect_options) as volume:
        assert [use.max_bytes for use in region_use(client)] == [96 * MIB] * 2
        written: dict[str, bytes] = {}
        with pytest.raises(NoSpace, match=r"has filled \d+ of 96 MiB.*Remove files") as caught:
            for number in range(200):
                data = os.urandom(16) * (MIB // 8)
                volume.write_file((f"f{number}",), data)
                written[f"f{number}"] = data[:16]
        assert caught.value.errno == 28
        assert len(written) * 2 > 60, "refused too early"
        assert max(use.share for use in region_use(client)) < 0.95
        assert {name for page in volume.entries(()) for name, _ in page} == set(written)
        found = status(cluster.home)
        assert found is not None
        assert all(node.alive for node in found.nodes)
        for name, start in written.items():
            data = read_all(volume, (name,))
            assert data == start * (len(data) // 16)
        with pytest.raises(NoSpace):
            volume.write_file(("one more",), bytes(12 * MIB))
        for name in list(written)[:10]:
            volume.remove_file((name,))
        volume.write_file(("one more",), b"x" * 12 * MIB)
        assert read_all(volume, ("one more",)) == b"x" * 12 * MIB
        sweep_until_clean(volume)
        assert fsck(volume).is_clean
