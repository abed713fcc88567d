"""TensorBoards from the Python API, the shell and the notebook."""

from __future__ import annotations

import sys
import time

import pytest
from IPython.core.interactiveshell import InteractiveShell

from ignite_tf_magic.errors import ConfigError, RunNotFound
from ignite_tf_magic.runs.directory import create_directory
from ignite_tf_magic.runs.record import RunRecord, RunSpec
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session import tensorboards as boards
from ignite_tf_magic.settings.options import jupyter_proxy_url
from ignite_tf_magic.tensorboard.record import LogSource, log_sources
from ignite_tf_magic.ui.shell.cli import main
from tests.tensorboard.asking import runs, steps, until_right
from tests.tensorboard.event_files import EventFile


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A separate state directory, without a reachable Ignite."""
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", "127.0.0.1:1")
    monkeypatch.delenv("TENSORBOARD_PROXY_URL", raising=False)
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
    yield tmp_path / "home"
    boards.stop_tensorboard()


def make_run(home, name: str) -> str:
    """Make an ended run with event files."""
    directory = create_directory(home / "runs", name)
    now = time.time()
    RunRecord(directory.run_id, RunSpec("MNIST"), RunState.SUCCEEDED, now, ended_at=now).write(directory)
    EventFile(f"{directory.files}/logs").scalar("loss", 1.0, 3)
    return directory.run_id


def test_the_shell(home, capsys):
    first, second = make_run(home, "first"), make_run(home, "second")
    assert main(["tensorboard", "first", "second"]) == 0
    url, told = capsys.readouterr()
    [board] = boards.list_tensorboards()
    assert url.strip() == board.url
    assert "cannot read igfs:///runs" in told  # Ignite is unreachable
    until_right(lambda: runs(board), lambda found: found == sorted([f"{first}/logs", f"{second}/logs"]))
    until_right(lambda: steps(board, f"{first}/logs"), lambda found: found == [3])

    assert main(["tensorboard", "--list"]) == 0
    assert f"{first}, {second}" in capsys.readouterr().out
    assert main(["tensorboard", "--stop", "second"]) == 0  # not open
    assert capsys.readouterr().out == "no such TensorBoard runs\n"
    assert main(["tensorboard", "--stop", "second", "first"]) == 0
    assert capsys.readouterr().out == f"stopped the TensorBoard at {board.url}\n"
    assert boards.list_tensorboards() == []


def test_all_runs_and_those_that_come(home):
    first = make_run(home, "first")
    board = boards.open_tensorboard()
    until_right(lambda: runs(board), lambda found: found == [f"{first}/logs"])
    second = make_run(home, "second")
    until_right(lambda: runs(board), lambda found: found == sorted([f"{first}/logs", f"{second}/logs"]))
    assert [each.pid for each in boards.stop_tensorboard(port=board.port)] == [board.pid]


def test_an_unknown_run(home, capsys):
    with pytest.raises(RunNotFound):
        boards.open_tensorboard(["nosuch"])
    assert main(["tensorboard", "nosuch"]) == 1
    assert "no run 'nosuch'" in capsys.readouterr().err
    assert boards.list_tensorboards() == []


def test_the_notebook_shows_it_in_a_frame(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", 'https://hub/?a=1&port=%PORT%"')
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    shell = InteractiveShell()
    shell.extension_manager.load_extension("ignite_tf_magic")
    shell.run_line_magic("ignite_tf", f"tensorboard --logdir '{tmp_path}/my logs' --height 444")
    [board] = boards.list_tensorboards()
    assert board.logdirs == (LogSource("", f"{tmp_path}/my logs"),)
    assert f'src="https://hub/?a=1&amp;port={board.port}&quot;"' in shown[0]["text/html"]
    assert 'height="444"' in shown[0]["text/html"]
    assert "nothing to show yet" in shown[0]["text/html"]
    shell.run_line_magic("ignite_tf", "tensorboard --stop")
    assert "stopped the TensorBoard" in capsys.readouterr().out
    shell.run_line_magic("ignite_tf", "tensorboard --list")
    assert "No TensorBoard runs" in shown[1]["text/plain"]


def test_names_of_log_directories(tmp_path):
    assert log_sources(["igfs:///runs/a/events/"]) == (LogSource("", "igfs:///runs/a/events"),)
    two = [str(tmp_path / "a" / "logs"), "igfs:///runs/b/logs"]
    assert [each.name for each in log_sources(two)] == ["a-logs", "b-logs"]
    assert [each.name for each in log_sources(["memory://x/a", "memory://x/b"])] == ["a", "b"]
    assert log_sources(["here", "here"])[0].uri.endswith("/here")
    with pytest.raises(ConfigError):
        log_sources([""])


def test_where_jupyters_proxy_is(tmp_path, monkeypatch):
    assert jupyter_proxy_url({}) is None
    hub = {"JUPYTERHUB_SERVICE_PREFIX": "/user/me/", "JPY_PARENT_PID": "1"}
    assert jupyter_proxy_url(hub) == "/user/me/proxy/%PORT%/"
    assert jupyter_proxy_url({**hub, "TENSORBOARD_PROXY_URL": "x/%PORT%"}) == "x/%PORT%"
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "jpserver-7.json").write_text('{"base_url": "/lab/"}')
    monkeypatch.setitem(sys.modules, "jupyter_server_proxy", None)
    assert jupyter_proxy_url({"JPY_PARENT_PID": "7"}) is None  # the proxy is not installed
    monkeypatch.delitem(sys.modules, "jupyter_server_proxy")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "jupyter_server_proxy.py").touch()
    assert jupyter_proxy_url({"JPY_PARENT_PID": "7"}) == "/lab/proxy/%PORT%/"
    assert jupyter_proxy_url({"JPY_PARENT_PID": "8"}) is None
    assert jupyter_proxy_url({}) is None
