"""Tests of cleanup on hosts: unused files go, used ones stay, and an entry that cannot be removed hides no other."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from hashlib import sha256

import pytest

from tests.launch.relay_client import DIGEST, clean_host, relay_at

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S


@pytest.fixture
def relay(home):
    with clean_host(home) as relay:
        yield relay


def aged(path, days=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        if path.suffix:
            path.write_text("old")
        else:
            (path / "inner").mkdir(parents=True)
            (path / "inner/file").write_text("old")
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))
    return path


def test_what_nobody_uses_goes_and_what_is_used_stays(relay, home):
    used, unused, fresh = "a" * 64, "b" * 64, "c" * 64
    record = {"spec": {"package": used}, "hosts": [{"environment": f"{home}/venvs/used"}]}
    relay.call("write", json.dumps(record).encode(), run="r", path="run.json")
    for name in (
        f"parcels/{used}",
        f"parcels/{unused}",
        f"parcels/.{unused}.1.tree",
        "venvs/used",
        "venvs/unused",
    ):
        aged(home / name)
    aged(home / "parcels" / fresh, days=0)
    aged(home / "agents" / f"{unused}.py")
    aged(home / "runs/.gone.1234", days=0)
    told = relay.call("tidy", unused_s=WEEK_S)
    expected = [f"agents/{unused}.py", f"parcels/.{unused}.1.tree", f"parcels/{unused}"]
    expected += ["runs/.gone.1234", "venvs/unused"]
    assert sorted(told["removed"]) == sorted(expected)
    assert told["kept"] == []
    assert {path.name for path in (home / "parcels").iterdir()} == {used, fresh}
    assert {path.name for path in (home / "venvs").iterdir()} == {"used"}
    assert (home / "agents" / f"{DIGEST}.py").exists()
    assert [path.name for path in (home / "runs").iterdir()] == ["r"]


def test_an_agent_that_is_started_is_in_use_and_not_compiled_again(home):
    def compiled():
        (path,) = (home / "agents/__pycache__").glob(f"{DIGEST}.*.pyc")
        return path.stat().st_ino, path.stat().st_mtime_ns

    agent = home / "agents" / f"{DIGEST}.py"
    with clean_host(home) as relay:
        aged(agent)
        relay.start("pass", name="g1-worker-0")
        before = compiled()
        relay.until_ended("g1-worker-0")
        with relay_at(home) as another:
            assert agent.stat().st_atime > time.time() - DAY_S
            another.start("pass", name="g1-worker-1")
            assert compiled() == before
            another.until_ended("g1-worker-1")


def test_a_parcel_that_is_asked_for_is_in_use(relay, home):
    digest = "d" * 64
    aged(home / "parcels" / digest)
    assert relay.call("has", digests=[digest, "e" * 64])["have"] == [digest]
    assert relay.call("tidy", unused_s=WEEK_S)["removed"] == []


def test_credentials_of_a_run_that_nobody_came_back_to_are_emptied(relay, home):
    for run in ("dead", "living", "recent"):
        relay.call("write", b'{"password": "secret"}', run=run, path="credentials.json")
    for run in ("dead", "living"):
        aged(home / "runs" / run / "credentials.json", days=3)
    relay.start("import time; time.sleep(60)", run="living")
    assert relay.call("tidy", unused_s=WEEK_S)["removed"] == ["runs/dead/credentials.json"]
    sizes = {
        run: (home / "runs" / run / "credentials.json").stat().st_size for run in ("dead", "living", "recent")
    }
    assert sizes["dead"] == 0 and sizes["living"] > 0 and sizes["recent"] > 0


def test_two_relays_that_finish_one_parcel_both_succeed(home):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for number in range(300):
            info = tarfile.TarInfo(f"file{number}")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    data = raw.getvalue()
    digest = sha256(data).hexdigest()
    fields = {"digest": digest, "part": 0, "last": True, "max_bytes": 1 << 20}
    with relay_at(home) as first, relay_at(home) as second:
        for _ in range(10):
            numbers = [(relay, relay.send("put", data, **fields)) for relay in (first, second)]
            assert all(relay.answer(number)["ok"] for relay, number in numbers)
            assert (home / "parcels" / digest / "file299").read_text() == "abc"
            (home / "parcels" / digest).rename(home / f"taken-{time.time_ns()}")
    assert list((home / "parcels").iterdir()) == []
