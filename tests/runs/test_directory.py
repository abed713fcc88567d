"""Tests of the locations of a run's files."""

from __future__ import annotations

import os
import stat

import pytest

from ignite_tf_magic.runs.directory import create_directory, make_private


@pytest.fixture
def generous_umask():
    """Set the umask of systems that give each user a private group."""
    before = os.umask(0o002)
    yield
    os.umask(before)


def test_directories_of_runs_are_private_whatever_the_umask(tmp_path, generous_umask):
    make_private(tmp_path / "a" / "runs" / "r")
    create_directory(tmp_path / "b" / "runs", "x")
    made = [path for name in "ab" for path in ((tmp_path / name), *(tmp_path / name).rglob("*"))]
    assert len(made) == 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}
