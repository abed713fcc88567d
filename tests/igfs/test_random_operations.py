"""A short form of `python -m benchmarks.random_operations`: igfs does what a local directory does."""

from __future__ import annotations

import pytest

from benchmarks.random_operations import through_a_mount, through_fsspec
from ignite_tf_magic.errors import MountError
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem

SEED = 1


@pytest.fixture(autouse=True)
def cluster(ignite, monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))


def remove(path):
    fs = IgfsFileSystem(skip_instance_cache=True)
    fs.rm(path, recursive=True)
    fs.volume.close()


def test_through_fsspec(tmp_path):
    counts = through_fsspec(tmp_path, 300, SEED)
    assert counts["tree"] == 4
    remove(f"/fsspec-{SEED}")


def test_through_a_mount(tmp_path):
    try:
        counts = through_a_mount(tmp_path, 300, SEED)
    except MountError as error:
        assert "ignite-tf fs sync igfs:///PATH" in str(error)
        return
    assert counts["tree"] == 4
    remove(f"/mount-{SEED}")
