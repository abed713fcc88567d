"""Tests that a relay survives bad state: deep directories, unparsable records, files that cannot be removed."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.relay_client import Refusal, clean_host, relay_at

DEEPER_THAN_PYTHON_GOES = 1500


@pytest.fixture
def relay(home):
    with clean_host(home) as relay:
        yield relay


def nest(path, depth: int) -> None:
    """Create nested directories, deeper than any path can name."""
    made = subprocess.run(
        [sys.executable, "-c", f"import os\nfor _ in range({depth}): os.mkdir('d'); os.chdir('d')"],
        cwd=path,
        check=False,
    )
    assert made.returncode == 0


def test_a_run_with_files_nested_deeper_than_python_goes_is_removed(relay, home):
    relay.call("write", b"{}", run="r", path="run.json")
    nest(home / "runs/r", DEEPER_THAN_PYTHON_GOES)
    relay.call("remove", run="r")
    assert not list((home / "runs").iterdir())


def test_a_record_that_no_parser_takes_hides_no_other_run(relay):
    relay.call("write", b"[" * 200_000, run="bad", path="run.json")
    relay.call("write", b'{"a": 1}', run="good", path="run.json")
    listed = {entry["run"]: entry for entry in relay.call("list")["runs"]}
    assert listed["good"]["record"] == {"a": 1}
    assert listed["bad"]["record"] is None


def test_a_request_nested_too_deep_ends_the_relay_as_one_that_is_no_json_does(home):
    with relay_at(home) as relay:
        header = b'{"id": 1, "op": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        relay._write(struct.pack(">I", len(header)) + header)
        assert relay.process.wait(300) == 0


def test_what_no_operation_foresaw_is_answered(relay):
    """The host has no memory for another thread. The relay refuses requests that need one, and goes on."""
    relay.call("hello")
    pid = relay.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (used + (1 << 20), before[1]))  # a thread's stack takes 8 MiB
    try:
        with pytest.raises(Refusal, match="thread") as caught:
            relay.call("list")
        assert caught.value.kind == "fault"
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)
    assert relay.call("list")["runs"] == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files that nobody may delete")
def test_an_entry_that_cannot_be_deleted_hides_no_sibling(relay, home):
    relay.call("write", b"{}", run="r", path="run.json")
    stuck = home / "runs/r/b"
    for name in ("a", "b/inner", "c"):
        (home / "runs/r" / name).mkdir(parents=True)
        (home / "runs/r" / name / "file").write_text("x")
    subprocess.run(["chattr", "+i", str(stuck / "inner/file")], check=True)
    try:
        relay.call("remove", run="r")
        (gone,) = (home / "runs").iterdir()
        left = [path for path in gone.rglob("*") if path.is_file()]
        assert [path.name for path in left] == ["file"]
    finally:
        for path in (home / "runs").rglob("file"):
            subprocess.run(["chattr", "-i", str(path)], check=True)
