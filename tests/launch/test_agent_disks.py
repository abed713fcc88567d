"""Tests of a relay's answers when the host's disk is full or read-only, on small separate file systems."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.launch.relay_client import Refusal, clean_host, relay_at

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a disk")


@pytest.fixture
def disk(home):
    """Mount a disk of the given size in MiB at the home of the package's files."""
    mounted = []

    def mount(size_mb: int, *options: str):
        home.mkdir(exist_ok=True)
        words = ",".join([f"size={size_mb}m", "mode=700", *options])
        subprocess.run(["mount", "-t", "tmpfs", "-o", words, "tmpfs", str(home)], check=True)
        mounted.append(home)
        return home

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


FILL = """
import os, sys
with open("filler", "wb") as file:
    try:
        while True: file.write(b"x" * 65536); file.flush()
    except OSError:
        os._exit(75)
"""


def test_a_job_is_refused_where_the_disk_is_full(home, disk):
    disk(8)
    with clean_host(home) as relay:
        with pytest.raises(
            Refusal, match=r"the disk of .*/home on .* has .* MiB left, and a job needs 16"
        ) as caught:
            relay.start("print('never')")
        assert caught.value.kind == "disk_full"
        assert relay.poll()["jobs"] == []


def test_a_job_that_fills_the_disk_says_so_at_its_end(home, disk):
    disk(32)
    with clean_host(home) as relay:
        relay.start(FILL, cwd="work", cwd_create=True)
        ended = relay.until_ended()
        assert ended["code"] == 75
        assert ended["full_disk"].startswith(f"{home}/runs/r (")
        (home / "runs/r/work/filler").unlink()


FILL_WITH_FILES = """
import itertools, os
try:
    for number in itertools.count(): open(f"filler-{number}", "w").close()
except OSError:
    os._exit(75)
"""


def test_a_job_is_refused_where_there_is_room_for_no_more_files(home, disk):
    disk(64, "nr_inodes=40")
    with clean_host(home) as relay:
        with pytest.raises(Refusal, match=r"the disk of .*/home on .* has room for \d+ more files") as caught:
            relay.start("print('never')")
        assert caught.value.kind == "disk_full"
        assert relay.poll()["jobs"] == []


def test_a_job_that_uses_the_last_inode_says_so_at_its_end(home, disk):
    disk(64, "nr_inodes=200")
    with clean_host(home) as relay:
        relay.start(FILL_WITH_FILES, cwd="work", cwd_create=True)
        ended = relay.until_ended()
        assert (ended["code"], ended["full_disk"]) == (75, f"{home}/runs/r (no inode left for another file)")
        for path in (home / "runs/r/work").iterdir():
            path.unlink()


def test_a_job_that_failed_beside_a_read_only_disk_says_so(home, tmp_path):
    place = tmp_path / "read-only"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], check=True)
    try:
        with clean_host(home) as relay:
            relay.start(f"open({str(place / 'x')!r}, 'w')", env={"TMPDIR": str(place)})
            ended = relay.until_ended()
            assert ended["code"]
            assert ended["full_disk"] == f"{place} (read-only)"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_start_where_nothing_can_be_written_says_what_to_do(home, disk):
    disk(64, "ro")
    with clean_host(home) as relay:
        with pytest.raises(
            Refusal, match=r"denied: .*/home.*Read-only file system; make it writable"
        ) as caught:
            relay.start("print('never')")
        assert caught.value.kind == "denied"


def test_a_failure_on_a_disk_with_room_tells_of_none(home):
    with clean_host(home) as relay:
        relay.start("raise SystemExit(3)")
        assert relay.until_ended()["full_disk"] is None


@pytest.mark.nightly
def test_a_long_log_gives_way_when_the_disk_gets_full(home, disk):
    """Nightly. Shorter:
    tests/launch/test_agent_logs.py::test_the_head_of_a_log_over_its_bound_is_freed_and_the_gap_is_told
    """
    disk(48)
    code = """
import os, time
os.set_blocking(1, True)
for number in range(30):
    for _ in range(32): os.write(1, b"%5d " % number + b"x" * 65529 + b"\\n")
    time.sleep(0.5)
"""
    with clean_host(home) as relay:
        relay.start(code, log_limit_bytes=1 << 30)
        ended = relay.until_ended()
        assert ended["code"] == 0  # it wrote 60 MiB on a disk of 48 MiB
        assert ended["log_start"] > 0


def test_a_probe_tells_why_nothing_can_be_written(home, disk):
    disk(8, "ro")
    with relay_at(home) as relay:
        facts = relay.call("probe", interpreter=sys.executable, modules=[])
        assert "Read-only file system" in facts["disk_fault"]


@pytest.mark.parametrize(
    "options, found", [("noexec", "mounted noexec"), ("nr_inodes=48", "room for .* more files \\(inodes\\)")]
)
def test_a_probe_tells_what_workers_need_of_a_disk(home, disk, options, found):
    disk(8, options)
    with relay_at(home) as relay:
        facts = relay.call("probe", interpreter=sys.executable, modules=[])
        assert re.search(found, facts["disk_fault"])


def test_a_probe_leaves_nothing_where_it_wrote(home):
    with relay_at(home) as relay:
        assert relay.call("probe", interpreter=sys.executable, modules=[])["disk_fault"] is None
    assert {path.name for path in home.iterdir()} == {"agents", "host"}
