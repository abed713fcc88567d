"""A sweep is interrupted at every change: fsck finds no problem then, and the next sweep continues."""

from __future__ import annotations

from itertools import count

import pytest

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.errors import ConnectionLost
from ignite_tf_magic.igfs import lease_manager
from ignite_tf_magic.igfs.fsck import fsck
from ignite_tf_magic.igfs.journal import Garbage
from tests.igfs.conftest import sweep_until_clean

BLOCK = 16_384
CALLS = ("put_all", "remove", "remove_all")


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_seems_wrong_at_any_point(new_volume, own_name, quick_leases, monkeypatch, when):
    volume = new_volume(own_name, block_bytes=BLOCK)
    volume.store.on_garbage = lambda: None  # only this test sweeps
    monkeypatch.setattr(lease_manager, "SWEEP_S", 1000.0)
    num_cut = 0
    for point in count():
        volume.make_directory(("tree", "below"), parents=True)
        for name in ("a", "b"):
            volume.write_file(("tree", name), bytes(2 * BLOCK))
            volume.write_file(("tree", "below", name), bytes(BLOCK))
        volume.remove_directory(("tree",), with_contents=True)
        was_cut = cut_off_sweeps(volume, point, when, monkeypatch)
        num_cut += was_cut
        assert fsck(volume).problems == (), f"cut off {when} change {point}"
        remove_blocks_alone(volume)
        assert fsck(volume).problems == (), f"blocks without entries, cut off {when} change {point}"
        sweep_until_clean(volume)
        found = fsck(volume)
        assert (found.problems, found.num_waiting, volume.store.blocks.size()) == ((), 0, 0), point
        if not was_cut:
            break
    assert num_cut > 5


def remove_blocks_alone(volume) -> None:
    """Remove the blocks that other clients may remove before the tree's own record is swept again."""
    for key, record in volume.collector.records().items():
        if isinstance(record, Garbage) and not record.directories:
            volume.collector.remove(key, record)


def cut_off_sweeps(volume, point: int, when: str, monkeypatch) -> bool:
    """Sweep until a change fails or nothing is left. Returns whether a change failed."""
    numbers = count()

    def failing(call):
        def change(cache, *arguments):
            if cache.transaction is not None or next(numbers) != point:
                return call(cache, *arguments)
            if when == "after":
                call(cache, *arguments)
            raise ConnectionLost("here", "for this test")

        return change

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(Cache, name, failing(getattr(Cache, name)))
        try:
            sweep_until_clean(volume)
        except ConnectionLost:
            return True
    return False
