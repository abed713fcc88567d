"""Tests that files are synced before the rename that marks them complete, so that power cuts leave none empty."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from ignite_tf_magic.launch import files
from ignite_tf_magic.launch.agent import disk, unpacking
from ignite_tf_magic.runs import bootstrap
from ignite_tf_magic.runs.environments import environment_builder


@pytest.fixture
def order(monkeypatch):
    """The syncs and renames, in order: ("sync", PATH) and ("rename", FROM, TO)."""
    done: list[tuple[str, ...]] = []
    rename = os.rename

    def noted(source, target, **options):
        rename(source, target, **options)
        done.append(("rename", str(source), str(target)))

    monkeypatch.setattr(os, "rename", noted)
    monkeypatch.setattr(Path, "rename", lambda self, target: noted(self, target))
    for module, name in ((unpacking, "sync_disk"), (environment_builder, "_sync"), (bootstrap, "sync_disk")):
        original = getattr(module, name)

        def synced(path, original=original):
            original(path)
            done.append(("sync", str(path)))

        monkeypatch.setattr(module, name, synced)
    return done


def test_a_parcel(tmp_path, order):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    data = packed.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    parcels = unpacking.Parcels(str(tmp_path))
    parcels.put(digest, 0, data, 1 << 20)
    parcels.unpack(digest, 1 << 20, 10)
    tree = order[0][1]
    assert order == [("sync", tree), ("rename", tree, str(tmp_path / "parcels" / digest))]


def test_an_environment(tmp_path, order, monkeypatch):
    def install(command):
        if "venv" in command:
            Path(command[-1], "bin").mkdir(parents=True)
            Path(command[-1], "pyvenv.cfg").touch()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment_builder, "_run", install)
    target = tmp_path / "target"
    asked = {"target": str(target), "requirements": "x", "added": [], "wheels": None, "uv": None}
    environment_builder.build(asked)
    part = str(tmp_path / "venv")
    assert order == [("sync", part), ("rename", part, str(target))]


def test_the_directory_of_a_job(tmp_path, order):
    (tmp_path / "parcel").mkdir()
    bootstrap._make_cwd(tmp_path / "work-0", str(tmp_path / "parcel"))
    part = order[0][1]
    assert order == [("sync", part), ("rename", part, str(tmp_path / "work-0"))]


@pytest.mark.parametrize(
    "sync", [disk.sync_disk, environment_builder._sync, lambda path: files.sync_disk(Path(path))]
)
def test_a_disk_that_is_not_there_is_not_taken_for_synced(tmp_path, sync):
    sync(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        sync(str(tmp_path / "nowhere"))
