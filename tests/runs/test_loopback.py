"""Tests of the library that keeps ports local to their machine, in separate processes and in light runs."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ignite_tf_magic.errors import LaunchError
from ignite_tf_magic.protocol import walk_compiled
from ignite_tf_magic.runs import loopback
from ignite_tf_magic.runs.listening import listens
from ignite_tf_magic.runs.states import RunState
from tests.listening import accepts, is_loopback, listeners
from tests.runs.light_runs import await_text, free_range, text_of

pytestmark = pytest.mark.skipif(loopback.library() is None, reason="Linux and a compiler are needed")

ANOTHER = "127.0.0.2"  # another address of this machine; servers on all interfaces answer there
# Binds, listens, prints the address, and then whether connections to it succeed.
SERVE = """
import json, socket, sys
kind, only_6, address, port, *tries = json.loads(sys.argv[1])
server = socket.socket(getattr(socket, kind))
if kind == "AF_INET6":
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_6)
server.bind((address, port))
server.listen()
def reaches(target):
    try:
        socket.create_connection((target, server.getsockname()[1]), 10).close()
    except ConnectionRefusedError:
        return False
    return True
print(json.dumps([server.getsockname()[0], *map(reaches, tries)]))
"""
# A worker whose server listens on all interfaces, like TensorFlow's. It waits until a file exists.
LISTEN = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", int(config["cluster"]["worker"][index].rpartition(":")[2])))
server.listen()
print("listens", flush=True)
while not os.path.exists(os.environ["IGNITE_TF_RUN_DIR"] + "/go"): time.sleep(0.01)
"""


@pytest.fixture
def port() -> int:
    return free_range(2)[0]


def preloaded(port: int, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        loopback.PRELOAD: str(loopback.library()),
        loopback.PORTS: f"1,{port},70000123456789",
        **more,
    }


def served(port: int, *case: object, argv=(sys.executable, "-c")) -> list:
    done = subprocess.run(
        [*argv, SERVE, json.dumps(case)], env=preloaded(port), capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return json.loads(done.stdout)


def test_ipv4(port):
    assert served(port, "AF_INET", 0, "", port, "127.0.0.1", ANOTHER) == ["127.0.0.1", True, False]


@pytest.mark.parametrize("address", ["::", "::ffff:0.0.0.0"])
def test_ipv6_that_takes_ipv4_as_well(port, address):
    found = served(port, "AF_INET6", 0, address, port, "127.0.0.1", ANOTHER, "::1")
    assert found == ["::ffff:127.0.0.1", True, False, False]


def test_ipv6_alone(port):
    assert served(port, "AF_INET6", 1, "::", port, "::1", "127.0.0.1") == ["::1", True, False]


def test_what_it_starts_is_kept_as_well(port):
    shell = ("sh", "-c", '"$0" -c "$1" "$2"', sys.executable)
    assert served(port, "AF_INET", 0, "", port, ANOTHER, argv=shell) == ["127.0.0.1", False]


@pytest.mark.parametrize(
    ("kind", "address", "at"),
    [("AF_INET", "", 1), ("AF_INET6", "::", 1), ("AF_INET", "", None), ("AF_INET6", "::", None)],
)
def test_other_ports_are_as_they_were_asked_for(port, kind, address, at):
    """Ports next to the protected ones, and ports that the system chooses."""
    expected = "0.0.0.0" if kind == "AF_INET" else "::"
    assert served(port, kind, 0, address, 0 if at is None else port + at, ANOTHER) == [expected, True]


@pytest.mark.parametrize("address", [ANOTHER, "127.0.0.1"])
def test_an_address_that_was_asked_for_stays(port, address):
    assert served(port, "AF_INET", 0, address, port, address) == [address, True]


def test_faults_are_those_of_the_system(port, tmp_path):
    code = """
import ctypes, errno, os, socket, sys
port, path = int(sys.argv[1]), sys.argv[2]
bind = ctypes.CDLL(None, use_errno=True).bind
def fault(descriptor, address, length):
    return bind(descriptor, address, length) and errno.errorcode[ctypes.get_errno()]
server = socket.socket()
print(fault(server.fileno(), None, 16), fault(server.fileno(), b"x" * 16, 1), fault(999, b"\\0" * 16, 16))
server.bind(("", port))
server.listen()
for address in ("", "127.0.0.1"):
    try:
        socket.create_server((address, port))
    except OSError as error:
        print(errno.errorcode[error.errno])
with socket.socket(socket.AF_UNIX) as local:
    local.bind(path)
print(os.path.exists(path))
os.unlink(path)
"""
    argv = [sys.executable, "-c", code, str(port), str(tmp_path / "socket")]
    told = []
    for env in (preloaded(port), dict(os.environ)):
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        told.append(done.stdout.split())
    assert told[0] == told[1]
    assert told[0] == ["EFAULT", "EINVAL", "EBADF", "EADDRINUSE", "EADDRINUSE", "True"]


def test_without_ports_nothing_changes(port):
    env = {**preloaded(port), loopback.PORTS: ""}
    case = json.dumps(["AF_INET", 0, "", port])
    done = subprocess.run([sys.executable, "-c", SERVE, case], env=env, capture_output=True, check=True)
    assert json.loads(done.stdout) == ["0.0.0.0"]


def test_where_it_may_be_loaded():
    assert loopback.may_be_loaded("/a/_loopback.so", sys.platform, platform.machine())
    assert not loopback.may_be_loaded("/a/_loopback.so", "darwin", platform.machine())
    assert not loopback.may_be_loaded("/a/_loopback.so", sys.platform, "riscv128")
    assert not loopback.may_be_loaded("/my programs/_loopback.so", sys.platform, platform.machine())
    assert loopback.joined("a", "b c:a") == "a:b:c"
    assert loopback.joined(None, "") is None


# Runs.


def test_workers_on_one_host_are_reached_from_there_alone(start):
    run = start(LISTEN, 2)
    for worker in range(2):
        await_text(run, "listens", worker)
    found = listeners(each.pid for each in run.info().workers)
    ports = {int(each.rpartition(":")[2]) for each in run.record().order.addresses}
    assert {port for _, port in found} == ports
    assert all(is_loopback(address) for address, _ in found)
    for port in ports:
        assert accepts("127.0.0.1", port)
        assert not accepts(ANOTHER, port)
    (run.directory.files / "go").touch()
    assert run.wait(300).state is RunState.SUCCEEDED
    assert text_of(run) == "listens\n" * 2


def test_what_the_user_has_loaded_is_loaded_behind_it(start, monkeypatch):
    """The library comes first, then LD_PRELOAD of the run, then that of the host; also in child processes."""
    compiled = next(Path(walk_compiled.__file__).parent.glob("_rows*.so"))
    monkeypatch.setenv(loopback.PRELOAD, str(compiled))
    script = "import os, subprocess\nprint(os.environ['LD_PRELOAD'], flush=True)\nsubprocess.run(['env'])"
    run = start(script, environment={loopback.PRELOAD: "/lib/none.so"})
    run.wait(300)
    lines = text_of(run).splitlines()
    expected = f"{loopback.library()}:/lib/none.so:{compiled}"
    assert (
        "object '/lib/none.so' from LD_PRELOAD cannot be preloaded" in lines[0]
        # ld.so printed this when the process started
    )
    assert expected in lines
    assert f"LD_PRELOAD={expected}" in lines


def test_a_run_whose_ports_are_open_says_so_once(start, monkeypatch):
    monkeypatch.setattr(loopback, "library", lambda: None)
    run = start(LISTEN.replace("while not", "while 0 and not"), 2)
    assert run.wait(300).state is RunState.SUCCEEDED
    assert text_of(run).count("TensorFlow ports of this run accept unauthenticated") == 1
    assert "docs/security.md" in text_of(run, 0)
    alone = start("print(1)")
    assert alone.wait(300).state is RunState.SUCCEEDED
    assert text_of(alone) == "1\n"


def test_a_run_with_a_tunnel_does_not_start_where_its_ports_would_be_open(start, monkeypatch):
    monkeypatch.setattr(loopback, "library", lambda: None)
    with pytest.raises(LaunchError, match="cannot be loaded there .linux, .* --tunnel needs Linux"):
        start(LISTEN, 2, tunnel=True)


def test_nor_does_a_worker_of_it_begin_where_another_library_was_loaded(start, monkeypatch):
    compiled = next(Path(walk_compiled.__file__).parent.glob("_rows*.so"))
    monkeypatch.setattr(loopback, "library", lambda: str(compiled))
    run = start("print('begun')", 2, tunnel=True)
    assert run.wait(300).state is RunState.FAILED
    assert "was started with --tunnel" in text_of(run)
    assert "begun" not in text_of(run)


def test_a_run_with_a_tunnel_on_one_host_needs_none(start):
    script = LISTEN.replace("while not", "while 0 and not")
    assert start(script, 2, tunnel=True).wait(300).state is RunState.SUCCEEDED


def test_whether_a_server_is_there_behind_a_tunnel_which_takes_any_connection(monkeypatch):
    monkeypatch.setenv(loopback.TUNNEL, "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer(word: bytes) -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(word)

        for word in (b"", b"settings"):
            thread = threading.Thread(target=answer, args=(word,))
            thread.start()
            assert listens(address, 30) is bool(word)
            thread.join()
        assert listens(address, 0.1)  # a server that waits for the client to speak first
    assert not listens(address, 30)
