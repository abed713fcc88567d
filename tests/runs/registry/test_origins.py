"""Tests of a run's origin: refreshing contacts the registry and hosts, plain questions contact no one."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.logs.mirror import seen_directory
from ignite_tf_magic.runs.record import RunRecord
from ignite_tf_magic.runs.registry import origins
from ignite_tf_magic.runs.registry.origins import RemoteRun
from ignite_tf_magic.runs.states import RunState
from tests.runs.light_runs import reach_of, running_record


@dataclass
class ToldRegistry:
    """A registry with one record that counts how often it is opened."""

    record: RunRecord
    owner_lives: bool = True
    num_opened: int = 0

    def __call__(self, **options):
        self.num_opened += 1
        return nullcontext(self)

    def owner(self, run_id: str):
        return "somebody" if self.owner_lives else None

    def get(self, run_id: str, known):
        return SimpleNamespace(version=self.record.version, record=self.record.to_json())


def written(directory: RunDirectory) -> dict[str, tuple[int, bytes]]:
    found = sorted(path for path in Path(directory.path).rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


@pytest.fixture
def record(tmp_path) -> RunRecord:
    record = running_record("a", version=1)
    record.write(seen_directory(tmp_path, "r"))
    return record


def test_a_question_opens_no_connection_and_writes_no_file(tmp_path, record, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a question is answered from what is known")

    directory = seen_directory(tmp_path, "r")
    before = written(directory)
    origin = RemoteRun(directory, reach_of(tmp_path), refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(RunRecord, "write", refuse)
    assert origin.has_owner(record)  # true until another source says otherwise
    assert written(directory) == before


def test_a_look_asks_once_in_a_while_and_brings_the_newer_record(tmp_path, record, monkeypatch):
    directory = seen_directory(tmp_path, "r")
    registry = ToldRegistry(
        replace(record, version=2, state=RunState.SUCCEEDED, ended_at=1.0), owner_lives=False
    )
    run = Run(directory, RemoteRun(directory, reach_of(tmp_path), registry), reach_of(tmp_path))
    assert run.info().state is RunState.SUCCEEDED
    assert RunRecord.read(directory).version == 2
    for _ in range(20):
        run.info()
    assert registry.num_opened == 1
    assert not run.origin.has_owner(record)
    monkeypatch.setattr(origins, "_ASK_S", 0.0)
    registry.owner_lives = True
    run.info()
    assert registry.num_opened == 2
    assert run.origin.has_owner(record)
