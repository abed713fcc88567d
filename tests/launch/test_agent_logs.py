"""Tests of output: delivered at once, in contiguous pieces, with a size bound on disk and reported gaps."""

from __future__ import annotations

import hashlib
import os
import py_compile
import signal
import subprocess
import sys
import time
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from ignite_tf_magic.launch.agent import MAGIC, loader_arguments
from ignite_tf_magic.launch.agent.job_files import JobFiles
from ignite_tf_magic.launch.agent.polling import Poll
from ignite_tf_magic.launch.agent.runs import Runs
from tests.launch.relay_client import DIGEST, SOURCE, Refusal, clean_host, relay_at
from tests.waiting import until

LOG = "g1-worker-0.log"
MIB = 1 << 20
NEIGHBOUR_ID = 54321
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def relay(home):
    with clean_host(home) as relay:
        yield relay


def test_a_hundred_megabytes_arrive_whole_over_two_relays(relay, home):
    code = """
import hashlib, sys
digest = hashlib.sha256()
for number in range(1600):
    block = hashlib.sha512(b"%d" % number).digest() * 1024
    digest.update(block)
    sys.stdout.buffer.write(block)
print(digest.hexdigest(), file=open("digest", "w"), flush=True)
"""
    relay.start(code, cwd=str(home))
    digest, size, current = hashlib.sha256(), 0, relay
    with relay_at(home) as other:
        while size < 1600 * 65536:
            reply = current.poll(logs={LOG: size}, wait_s=5)
            assert reply["logs"] == ([[LOG, size, len(current.payload)]] if current.payload else [])
            assert reply["gaps"] == []
            digest.update(current.payload)
            size += len(current.payload)
            current = other if current is relay else relay
    assert relay.until_ended()["log_bytes"] == size
    assert digest.hexdigest() == (home / "digest").read_text().strip()


def test_several_logs_share_a_poll_fairly(relay, home):
    relay.start("print('x' * 3000000)", name="long")
    relay.start("print('y' * 9)", name="short")
    relay.start("print('z' * 3000000)", name="longer")
    for name in ("long", "short", "longer"):
        relay.until_ended(name)
    logs = {f"{name}.log": 0 for name in ("long", "short", "longer", "none")}
    reply = relay.poll(logs=logs, max_bytes=1010)
    assert sorted(reply["logs"]) == [["long.log", 0, 500], ["longer.log", 0, 500], ["short.log", 0, 10]]
    position = 0
    for path, _, size in reply["logs"]:
        expected = {"long.log": b"x", "short.log": b"y", "longer.log": b"z"}[path]
        assert relay.payload[position : position + size].startswith(expected * 9)
        position += size
    relay.poll(logs={"long.log": 3000001 - 7, "none": 0})
    assert relay.payload == b"x" * 6 + b"\n"


def test_a_poll_waits_for_output_for_ends_and_for_wishes(relay, home):
    relay.start("import sys\nfor line in open('pipe'): print('got', line, end='')", cwd=_pipe(home))
    seen = relay.poll()["seen"]
    with relay_at(home) as other, (home / "pipe").open("w") as pipe:
        number = other.send("poll", run="r", logs={LOG: 0}, wait_s=500, seen=seen)
        pipe.write("a\n")
        pipe.flush()
        assert other.answer(number)["logs"] == [[LOG, 0, 6]]
        assert other.payload == b"got a\n"
        number = other.send("poll", run="r", logs={LOG: 6}, wait_s=500, seen=seen)
        relay.call("stop", run="r")
        reply = other.answer(number)
        assert reply["stop"]
        number = other.send("poll", run="r", logs={LOG: 6}, wait_s=500, seen=reply["seen"])
        relay.call("fence", run="r", generation=1)
        assert relay.call("hello")  # not blocked by the poll
        pipe.close()
        ended = other.answer(number)
        assert ended["jobs"][0]["state"] == "ended"
        assert other.poll(wait_s=0.1, seen=ended["seen"], logs={LOG: 6})["seen"] == ended["seen"]


def _pipe(home):
    home.mkdir(parents=True, exist_ok=True)
    os.mkfifo(home / "pipe")
    return str(home)


def test_what_nobody_has_run_has_no_jobs(relay, home):
    reply = relay.poll("nothing", logs={"x.log": 0})
    assert (reply["jobs"], reply["logs"], reply["fence"], reply["stop"]) == ([], [], 0, False)
    assert not (home / "runs/nothing").exists()


def test_the_head_of_a_log_over_its_bound_is_freed_and_the_gap_is_told(relay, home):
    code = """
import sys
for number in range(400000): sys.stdout.write("%015d\\n" % number)
sys.stdout.flush()
print("up", flush=True)
import time; time.sleep(600)
"""
    relay.start(code, log_limit_bytes=MIB)
    until(lambda: relay.job()["log_start"] > 0)
    until(lambda: relay.job()["log_bytes"] >= 6400003)
    until(lambda: relay.job()["log_bytes"] - relay.job()["log_start"] <= MIB)
    start = relay.job()["log_start"]
    assert start % 4096 == 0
    until(lambda: (home / "runs/r" / LOG).stat().st_blocks * 512 <= MIB + 8192)  # reported first, then freed
    reply = relay.poll(logs={LOG: 32})
    assert reply["gaps"] == [[LOG, 32, start]]
    (piece,) = reply["logs"]
    assert piece[:2] == [LOG, start]
    assert relay.payload.splitlines()[0] == b"%015d" % (start // 16)
    assert b"\0" not in relay.payload
    assert relay.poll(logs={LOG: start})["gaps"] == []
    relay.call("end", run="r", grace_s=0)
    assert relay.until_ended()["log_start"] == start


@pytest.mark.nightly
def test_no_hole_is_ever_read_while_a_log_is_freed(relay, home):
    """Bytes are freed while the client reads. Every byte must be correct or reported as part of a gap.

    Nightly. Shorter: test_bytes_freed_between_a_look_and_the_reading_are_told_as_a_gap
    """
    code = """
import sys, time
for number in range(1250000):
    sys.stdout.write("%015d\\n" % number)
    if number % 25000 == 0: sys.stdout.flush(); time.sleep(0.05)
"""
    relay.start(code, log_limit_bytes=64 << 10)
    offset = num_bytes = 0
    while True:
        reply = relay.poll(logs={LOG: offset}, wait_s=0.2, max_bytes=100000)
        for _, gap_from, gap_to in reply["gaps"]:
            assert gap_from == offset
            offset = gap_to
        for _, start, size in reply["logs"]:
            assert start == offset
            first = -(-start // 16)
            lines = relay.payload[first * 16 - start :]
            count = len(lines) // 16
            assert lines[: count * 16] == b"".join(b"%015d\n" % n for n in range(first, first + count))
            offset += size
            num_bytes += size
        if not reply["logs"] and reply["jobs"][0]["state"] == "ended":
            break
    assert offset == 1250000 * 16
    assert num_bytes >= 64 << 10


def test_bytes_freed_between_a_look_and_the_reading_are_told_as_a_gap(relay, home):
    relay.start("print('x' * 100000); import time; time.sleep(600)")
    relay.until_output(b"\n")
    os.kill(relay.job()["keepers"][1], signal.SIGSTOP)
    job = JobFiles(str(home / "runs/r/jobs/g1-worker-0"))

    class FreedWhileRead(Poll):
        def _read(self, offsets):
            if job.status()["log_start"] == 0:
                job.write_status({**job.status(), "log_start": 8192})
                with (home / "runs/r" / LOG).open("r+b") as file:
                    file.write(bytes(8192))
            return super()._read(offsets)

    now = time.monotonic()
    header, payload = FreedWhileRead(Runs(str(home)), {"run": "r", "logs": {LOG: 5}}, now).look(now)
    os.kill(job.status()["keepers"][1], signal.SIGCONT)
    assert header["gaps"] == [[LOG, 5, 8192]]
    assert header["logs"] == [[LOG, 8192, 100001 - 8192]]
    assert payload == b"x" * (100000 - 8192) + b"\n"


def test_output_survives_everything(relay, home):
    code = "import os; os.write(1, b'last words \\xff\\r'); os.kill(os.getpid(), 9)"
    relay.start(code)
    relay.until_ended()
    assert relay.output() == b"last words \xff\r"


def test_output_is_appended_to_what_another_job_wrote(relay):
    relay.start("print(1)", name="a", log="shared.log")
    relay.until_ended("a")
    relay.start("print(2)", name="b", log="shared.log")
    relay.until_ended("b")
    relay.call("read", run="r", path="shared.log")
    assert relay.payload == b"1\n2\n"


# --- the relay itself -------------------------------------------------------------------------------------------


def test_noise_of_a_login_shell_and_an_agent_that_is_there(relay, home, tmp_path):
    assert relay.word == "NEED"
    relay.call("hello")  # by now the agent that was sent has been written to disk
    noisy = tmp_path / "noisy"
    noisy.write_text(f'#!/bin/sh\nprintf "Welcome! \\377\\nLast login: IGNITE"\nexec {sys.executable} "$@"\n')
    noisy.chmod(0o755)
    with relay_at(home, python=str(noisy)) as other:
        assert other.word == "HAVE"
        assert other.call("hello")["root"] == str(home)


def test_a_damaged_agent_is_sent_again(relay, home):
    relay.call("hello")
    (agent,) = (home / "agents").glob("*.py")
    agent.write_bytes(agent.read_bytes()[:1000])
    with relay_at(home) as other:
        assert other.word == "NEED"
        other.start("pass")
        assert other.until_ended()["code"] == 0


def test_an_agent_of_the_right_size_that_is_another_is_not_run(relay, home, tmp_path):
    relay.call("hello")
    (agent,) = (home / "agents").glob("*.py")
    source, trace = agent.read_bytes(), tmp_path / "somebody-ran-it"
    evil = f"open({str(trace)!r}, 'w').close()\n#".encode()
    agent.write_bytes(evil.ljust(len(source), b"#"))
    with relay_at(home) as other:
        assert other.word == "NEED"
        other.call("hello")
    assert not trace.exists()
    assert agent.read_bytes() == source


@pytest.mark.parametrize("place", [".", "agents", "agents/__pycache__", "parcels", "runs", "venvs"])
def test_no_agent_is_started_from_where_others_may_write(home, place):
    (home / place).mkdir(parents=True, exist_ok=True)
    (home / place).chmod(0o777)
    assert refused_for(home) == (home / place).resolve()
    assert list((home / place).glob("*.py")) == []


@only_root
@pytest.mark.parametrize("place", [".", "agents", "agents/__pycache__", "parcels", "runs", "venvs"])
def test_nor_from_what_another_account_owns(home, place):
    (home / place).mkdir(parents=True, exist_ok=True)
    os.chown(home / place, NEIGHBOUR_ID, NEIGHBOUR_ID)
    assert refused_for(home) == (home / place).resolve()


def refused_for(home):
    argv = loader_arguments(DIGEST, len(SOURCE), str(home), sys.executable)
    answer = subprocess.run(argv, input=SOURCE, capture_output=True, check=False)
    assert answer.returncode == 6
    return Path(answer.stdout.decode().strip().removeprefix(f"{MAGIC} OPEN "))


def planted(trace):
    return f"open({str(trace)!r}, 'w').close()\n"


@only_root
@pytest.mark.parametrize("changes", ["owner", "mode"])
def test_a_compiled_agent_that_somebody_planted_is_not_run(relay, home, tmp_path, changes):
    """The planted file is of the kind that Python never compares with its source."""
    relay.start("pass")
    relay.until_ended()
    [compiled] = (home / "agents/__pycache__").glob(f"{DIGEST}.*.pyc")
    trace, evil = tmp_path / "somebody-ran-it", tmp_path / "evil.py"
    evil.write_text(planted(trace))
    py_compile.compile(str(evil), str(compiled), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    if changes == "owner":
        os.chown(compiled, NEIGHBOUR_ID, NEIGHBOUR_ID)
    else:
        compiled.chmod(0o666)
    assert refused_for(home) == compiled
    assert not trace.exists()


@pytest.mark.parametrize("name", ["json.py", "struct.py", "{DIGEST}/__init__.py", "encodings/__init__.py"])
def test_no_other_name_among_agents_is_imported(relay, home, tmp_path, name):
    relay.call("hello")
    trace = tmp_path / "somebody-ran-it"
    path = home / "agents" / name.format(DIGEST=DIGEST)
    path.parent.mkdir(exist_ok=True)
    path.write_text(planted(trace))
    with relay_at(home) as other:
        assert other.word == "HAVE"
        other.start("pass")
        assert other.until_ended()["code"] == 0
    assert not trace.exists()


def test_an_old_interpreter_says_so(home, tmp_path):
    old = tmp_path / "old"
    fake = "import sys; sys.version_info = (3, 7, 9); code = sys.argv[1]; del sys.argv[1]; exec(code)"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{fake}" "$4" "$5" "$6" "$7"\n')
    old.chmod(0o755)
    with relay_at(home, python=str(old)) as relay:
        assert relay.word == "3.7"
        assert relay.process.wait(300) == 3


HOST = os.uname().nodename.partition(".")[0]


def test_a_directory_belongs_to_one_host(home):
    with relay_at(home) as relay:
        relay.call("hello")
    assert (home / "host").read_text() == HOST
    (home / "host").write_text("db7")
    with relay_at(home) as relay:
        assert relay.word == str(home)
        assert relay.process.wait(300) == 7


def test_where_the_files_are(tmp_path):
    variables = {"HOME": str(tmp_path), "XDG_STATE_HOME": "", "IGNITE_TF_HOME": ""}
    (tmp_path / "old/ignite_tf_magic/runs").mkdir(parents=True)  # from a version without a directory per host
    for changed, expected in (
        ({}, f".local/state/ignite_tf_magic/{HOST}"),
        ({"XDG_STATE_HOME": str(tmp_path / "state")}, f"state/ignite_tf_magic/{HOST}"),
        ({"XDG_STATE_HOME": str(tmp_path / "old")}, "old/ignite_tf_magic"),
        ({"IGNITE_TF_HOME": str(tmp_path / "mine")}, "mine"),
    ):
        with relay_at("", env={**variables, **changed}, cwd=tmp_path) as relay:
            assert relay.call("hello")["root"] == str(tmp_path / expected)


@pytest.mark.parametrize("request_", [{"op": "nonsense"}, {}, {"op": ["poll"]}])
def test_unknown_operations_are_refused(relay, request_):
    with pytest.raises(Refusal) as error:
        relay.call(**{"op": None, **request_})
    assert error.value.kind == "unknown_op"


@pytest.mark.parametrize(
    "op", ["start", "poll", "end", "fence", "read", "write", "put", "has", "connect", "reserve"]
)
def test_a_request_without_its_fields_is_refused(relay, op):
    with pytest.raises(Refusal) as error:
        relay.call(op)
    assert error.value.kind in ("bad_request", "bad_path")
    assert relay.call("hello")


def test_a_relay_ends_with_its_client_and_at_nonsense(home):
    with relay_at(home) as relay:
        relay.send("poll", run="r", wait_s=500, seen=0)
        relay.call("hello")
        relay.process.stdin.write(b"nonsense that is no frame")
        relay.process.stdin.close()
        assert relay.process.wait(300) == 0
