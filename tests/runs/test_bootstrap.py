"""Tests of a script's environment in its process, and of the report of its end."""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.task import ExitReport
from ignite_tf_magic.session.run_scripts import read_source
from ignite_tf_magic.settings.options import ConnectOptions, TlsOptions
from tests.runs.light_runs import text_of


def test_it_loads_only_the_standard_library():
    code = (
        "import sys, json, ignite_tf_magic.runs.bootstrap\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    answer = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(answer.stdout)) - {"__main__", "ignite_tf_magic"}
    assert loaded <= set(sys.stdlib_module_names)


def test_the_environment_of_a_worker(start):
    script = (
        "import json, os\n"
        "found = {k: v for k, v in os.environ.items() if k.startswith(('IGNITE_', 'TF_CONFIG'))}\n"
        "open(os.environ['IGNITE_TF_RUN_DIR'] + '/found.json', 'w').write(json.dumps(found))"
    )
    run = start(script)
    assert run.wait(300).state is RunState.SUCCEEDED
    found = json.loads((run.directory.files / "found.json").read_text())
    found.pop("IGNITE_TF_HOME", None)
    assert Path(found.pop("IGNITE_TF_PHASE_FILE")).read_text() == "running the script"
    assert found.pop("IGNITE_TF_JOB")  # by which its host identifies the job's processes
    assignment = json.loads(Path(found.pop("IGNITE_DATASET_ASSIGNMENT_FILE")).read_text())
    config = json.loads(found.pop("TF_CONFIG"))
    [address] = config["cluster"].pop("worker")
    assert config == {"cluster": {}, "task": {"type": "worker", "index": 0}}
    assert address.startswith("127.0.0.1:") and not address.endswith(":0")
    assert found == {
        "IGNITE_DATASET_HOST": "127.0.0.1",
        "IGNITE_DATASET_PORT": "10800",
        "IGNITE_DATASET_PART": "0,10",
        "IGNITE_DATASET_ASSIGNED_CACHE": "MNIST",
        "IGNITE_TF_RUN_ID": run.id,
        "IGNITE_TF_RUN_DIR": str(run.directory.files),
        "IGNITE_TF_RUN_URI": f"igfs:///runs/{run.id}",
        "IGNITE_TF_STRATEGY": "sync",
        "IGNITE_TF_LOOPBACK_PORTS": address.rpartition(":")[2],
    }
    assert assignment == {"cache": "MNIST", "worker": 0, "rows_by_worker": [101]}


def test_each_of_several_workers_has_its_task_and_its_partitions(start):
    script = "import os; print(os.environ['TF_CONFIG'], os.environ['IGNITE_DATASET_PART'], sep='|')"
    run = start(script, 3)
    run.wait(300)
    lines = [text_of(run, worker).strip().split("|") for worker in range(3)]
    configs = [json.loads(config) for config, _ in lines]
    assert [part for _, part in lines] == ["0,10", "1,11", "2,12"]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": i} for i in range(3)]
    addresses = configs[0]["cluster"]["worker"]
    assert all(config["cluster"] == {"worker": addresses} for config in configs)
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


# Prints numbered lines while a thread writes others below Python, as C libraries do.
LINES = """
import os, threading, time
def log():
    for number in range(500):
        os.write(2, b"LOGGED %d\\n" % number)
        time.sleep(0.0002)
thread = threading.Thread(target=log)
thread.start()
number = 0
while thread.is_alive() or number < 500:
    print("PRINTED", number)
    number += 1
"""
# Listens at the address of the task's server, and counts the connections within two seconds.
LISTEN = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
address = config["cluster"]["worker"][config["task"]["index"]]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", int(address.rpartition(":")[2])))
server.listen()
server.settimeout(2)
try:
    print("CONNECTED", server.accept()[1])
except TimeoutError:
    print("NOBODY")
"""


# Each step of Python's shutdown, in order, with objects that would block the exit.
ENDING = """
import atexit, ctypes, sys, threading, time
class Stuck:
    def __del__(self):
        while True:
            time.sleep(1)
stuck = Stuck()
def work():
    time.sleep(0.5)
    print("the thread is done", flush=True)
threading.Thread(target=work).start()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
atexit.register(print, "registered first")
atexit.register(lambda: 1 / 0)
atexit.register(print, "registered last")
ctypes.CDLL(None).printf(b"printed by C\\n")
sys.exit(7)
"""


def test_a_process_ends_as_python_ends_but_for_destructors(start):
    run = start(ENDING)
    assert run.wait(300).state is RunState.FAILED
    assert run.info().workers[0].exit_code == 7
    lines = text_of(run).splitlines()
    assert [line for line in lines if line[0] in "tr"] == [
        "the thread is done",
        "registered last",
        "registered first",
    ]
    assert "ZeroDivisionError: division by zero" in lines
    assert "printed by C" in lines


def test_lines_of_a_script_stay_whole(start):
    run = start(LINES)
    assert run.wait(300).state is RunState.SUCCEEDED
    lines = text_of(run).splitlines()
    assert [line for line in lines if not re.fullmatch(r"(PRINTED|LOGGED) \d+", line)] == []
    assert [line for line in lines if line[0] == "L"] == [f"LOGGED {number}" for number in range(500)]
    printed = [line for line in lines if line[0] == "P"]
    assert printed == [f"PRINTED {number}" for number in range(len(printed))] and len(printed) >= 500


def test_nobody_but_the_other_workers_connects_to_a_server_of_a_script(start):
    run = start(LISTEN, 2)
    assert run.wait(300).state is RunState.SUCCEEDED
    assert [text_of(run, worker).strip() for worker in range(2)] == ["NOBODY"] * 2


def test_what_a_worker_must_not_inherit(start, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "of the notebook")
    monkeypatch.setenv("IGNITE_DATASET_CREDENTIALS_FILE", "/of/the/notebook")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    names = ["TF_CONFIG", "IGNITE_DATASET_CREDENTIALS_FILE", "MPLBACKEND", "TF_CPP_MIN_LOG_LEVEL"]
    run = start(f"import os; print([os.environ.get(name) for name in {names}])")
    config, *others = ast.literal_eval(text_of(run))
    assert others == [None, "Agg", "0"]
    assert "notebook" not in config


def test_credentials_travel_by_a_private_file_and_go_with_the_run(start):
    connect = ConnectOptions(username="ada", password="hush", tls=TlsOptions("c.pem", "k.pem", "hush2"))
    script = (
        "import os, time\n"
        "path = os.environ['IGNITE_DATASET_CREDENTIALS_FILE']\n"
        "print(open(path).read(), oct(os.stat(path).st_mode & 0o777), flush=True)\n"
        "time.sleep(60)"
    )
    run = start(script, connect=connect)
    text = ""
    for chunk in run.follow():
        text += chunk.text
        if "\n" in text:
            break
    pid = run.info().workers[0].pid
    exposed = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))
    exposed += b"".join(p.read_bytes() for p in run.directory.path.glob("*") if p.is_file() and p.suffix != ".log"
                        and p != run.directory.credentials)  # fmt: skip
    assert b"hush" not in exposed
    written, _, mode = text.strip().rpartition(" ")
    assert mode == "0o600"
    assert json.loads(written) == {
        "username": "ada",
        "password": "hush",
        "certfile": "c.pem",
        "keyfile": "k.pem",
        "cert_password": "hush2",
        "check_hostname": "true",
        "endpoints": "127.0.0.1:10800",
    }
    run.stop()
    assert not run.directory.credentials.exists()


def test_all_files_of_a_run_are_private(start):
    run = start("print(1)")
    run.wait(300)
    for path in [run.directory.path, *run.directory.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_arguments_and_the_name_of_the_script(start):
    run = start("import sys\nprint(sys.argv[1:], __name__, __file__ == sys.argv[0])", args=("--epochs", "3"))
    assert text_of(run) == "['--epochs', '3'] __main__ True\n"


def test_modules_beside_the_notebook_can_be_imported_and_do_not_disturb_the_start(start, work_dir):
    (work_dir / "my_model.py").write_text("SIZE = 7")
    (work_dir / "pathlib.py").write_text("raise SystemExit('imported by the bootstrap')")
    run = start("import os, my_model; print(my_model.SIZE, os.getcwd())")
    assert text_of(run) == f"7 {work_dir}\n"


@pytest.mark.parametrize(
    "name",
    ["../../escape", "/etc/passwd", "", ".", "a\nb\x00c", "json.py", "x" * 500, "CON: <ü> *?", "-rf", "模型"],
)
def test_hostile_script_names(start, name):
    run = start("print(__file__)\nraise ValueError('here')", script_name=name)
    assert run.wait(300).exit_code == 1
    script = Path(text_of(run).splitlines()[0])
    assert script.parent == run.directory.path / "script"
    assert "print(__file__)" in script.read_text()
    assert "raise ValueError('here')" in run.failure().traceback


@pytest.mark.parametrize(
    ("statement", "code", "said"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(0)", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit(-1)", 255, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("import os; os._exit(9)", 9, ""),
        ("raise KeyboardInterrupt", 130, None),
        ("import atexit; atexit.register(print, 'bye')", 0, "bye\n"),
        ("import threading, time; threading.Timer(0.2, print, ['late']).start()", 0, "late\n"),
        ("import sys; sys.stdout = open('/dev/full', 'w'); print('lost')", 0, ""),
        ("open('/dev/full', 'w', buffering=1).write('a model\\n')", 75, None),
        (
            "try: open('/dev/full', 'w', buffering=1).write('x\\n')\nexcept OSError: raise ValueError",
            75,
            None,
        ),
    ],
)
def test_exit_codes(start, statement, code, said):
    run = start(statement)
    assert run.wait(300).exit_code == code
    if said is not None:
        assert text_of(run) == said


def test_the_traceback_shows_the_lines_of_the_script_only(start):
    run = start("def train():\n    return [1][5]  # the fault\n\ntrain()")
    run.wait(300)
    failure = run.failure()
    assert "return [1][5]  # the fault" in failure.traceback
    assert "bootstrap" not in failure.traceback
    assert failure.traceback in text_of(run)
    assert failure.last_lines == ()
    assert ExitReport.read(run.directory.exit(0)).exception == "IndexError"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "5", "null", "{}", '{"exit_code": 0}', "[" * 100_000]
    + [
        json.dumps({"exit_code": 0, "started_at": 1.0, "ended_at": 2.0, **wrong})
        for wrong in ({"exit_code": "0"}, {"ended_at": None}, {"traceback": 5}, {"exception": []})
    ],
)
def test_what_is_no_report_is_none(content):
    """A script may overwrite its own report. This must not stop the supervisor."""
    assert ExitReport.parse(content.encode()) is None


def test_sigterm_lets_a_script_save_and_a_second_one_does_not_disturb_it(start):
    script = (
        "import os, signal, time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "finally:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.1)\n"
        "    print('saved')"
    )
    run = start(script)
    for chunk in run.follow():
        if "ready" in chunk.text:
            run.stop()
    assert text_of(run) == "ready\nsaved\n"
    assert run.info().workers[0].exit_code == 143


def test_sigterm_in_a_finalizer_ends_the_script_all_the_same(start):
    """Python ignores exceptions from finalizers. In 1,400 starts, SIGTERM once arrived in a finalizer of importlib."""
    script = (
        "import time\n"
        "class Slow:\n"
        "    def __del__(self):\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "Slow()\n"
        "try:\n"
        "    time.sleep(60)\n"
        "finally:\n"
        "    print('saved')"
    )
    run = start(script)
    for chunk in run.follow():
        if "ready" in chunk.text:
            run.stop()
    assert text_of(run) == "ready\nsaved\n"
    assert run.info().workers[0].exit_code == 143


def test_a_crash_in_native_code_leaves_its_python_stack_in_the_output(start):
    run = start("import faulthandler\ndef crash_here():\n    faulthandler._sigsegv()\ncrash_here()")
    run.wait(300)
    assert run.failure().exit_text == "exit code 139: killed by SIGSEGV (a crash in native code)"
    assert "crash_here" in text_of(run)


def test_multiprocessing_in_the_script(start):
    script = (
        "import multiprocessing\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork'):\n"
        "        with multiprocessing.get_context(method).Pool(2) as pool: print(pool.map(double, [1, 2]))"
    )
    run = start(script)
    assert text_of(run) == "[2, 4]\n[2, 4]\n"
    assert run.wait(300).exit_code == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_end_at_once_when_asked(start):
    """A child may be asked to end while it starts. Without a fix, one or two of some hundred pools never ended."""
    script = (
        "import multiprocessing\n"
        "for _ in range(200):\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool: pool.map(abs, [1, 2])"
    )
    assert start(script).wait(300).exit_code == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_end_of_a_forked_child_is_not_taken_for_the_scripts(start):
    script = "import os, sys, time\nif not os.fork(): raise ValueError('the child')\nos.wait()\nsys.exit(3)"
    run = start(script)
    assert run.wait(300).exit_code == 3
    assert run.failure().traceback is None


def test_a_script_that_closes_its_output(start):
    run = start("import sys; sys.stdout.close(); sys.stderr.close()")
    assert run.wait(300).exit_code == 0


@pytest.mark.skipif(os.name != "posix", reason="locales")
def test_output_is_utf8_whatever_the_locale(start, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    monkeypatch.setenv("PYTHONUTF8", "0")
    assert text_of(start("print('é 模')")) == "é 模\n"


def test_variables_hold_from_the_first_instruction_of_the_process(start, tmp_path):
    """ld.so, libc and Python read these variables only at process start. A module is found by the user's PYTHONPATH."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "of_mine.py").write_text("word = 'found'")
    given = {
        "LD_LIBRARY_PATH": "/somewhere",
        "PYTHONHASHSEED": "5",
        "TZ": "Asia/Tokyo",
        "MALLOC_ARENA_MAX": "1",
        "OMP_NUM_THREADS": "3",
        "PYTHONPATH": str(tmp_path / "lib"),
    }
    run = start(
        "import of_mine, subprocess, sys, time\n"
        "first = dict(each.split('=', 1) for each in open('/proc/self/environ').read().split('\\0') if each)\n"
        f"print({{name: first.get(name) for name in {list(given)}}})\n"
        "print(of_mine.word, hash('a'), time.tzname[0])\n"
        "child = 'import of_mine, ignite_tf_magic; print(of_mine.word)'\n"
        "print(subprocess.check_output([sys.executable, '-c', child]))",
        environment=given,
    )
    seen, words, child = text_of(run).splitlines()
    found = ast.literal_eval(seen)
    assert found.pop("PYTHONPATH").split(":")[0] == given.pop("PYTHONPATH")
    assert found == given
    seeded = {**os.environ, "PYTHONHASHSEED": "5"}
    known = subprocess.check_output([sys.executable, "-c", "print(hash('a'))"], env=seeded, text=True).strip()
    assert words == f"found {known} JST"
    assert child == "b'found\\n'"


@pytest.mark.parametrize("as_command", [False, True], ids=["script", "command"])
@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfprint('caf\xc3\xa9')\n",
        b"# -*- coding: latin-1 -*-\nprint('caf\xe9')\n",
        b"#!/usr/bin/python\r\n# vim: set fileencoding=cp1252 :\r\nprint('caf\xe9')\r\n",
        b"print('caf\xc3\xa9')",
    ],
    ids=["byte-order-mark", "latin-1", "windows", "utf-8"],
)
def test_scripts_as_editors_write_them(start, work_dir, content, as_command):
    script = work_dir / "train.py"
    script.write_bytes(content)
    options = {"command": ("python", "train.py")} if as_command else {}
    run = start(None if as_command else read_source(script), **options)
    assert text_of(run) == "café\n"


def test_a_script_that_names_an_unknown_encoding(start, work_dir):
    script = work_dir / "train.py"
    script.write_bytes(b"# coding: no-such\n")
    run = start(None, command=("python", "train.py"))
    assert "SyntaxError: unknown encoding" in text_of(run)
    with pytest.raises(SyntaxError, match="unknown encoding"):
        read_source(script)
