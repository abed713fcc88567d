"""Tests of a run's widget in a cell: its messages while the cell is busy, and what the notebook file keeps."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from ignite_tf_magic.ui.notebook.run_widget import shows_widgets
from tests.ui.notebook.kernels import Kernel

VIEW = "application/vnd.jupyter.widget-view+json"
TRAIN = (
    "import itertools, time\n"
    "for step in itertools.count():\n"
    "    print('step', step, flush=True)\n"
    "    time.sleep(0.02)\n"
)


class FrontEnd:
    """A front end's view of a cell's widget. Its subshell carries messages while the cell is busy."""

    def __init__(self, kernel):
        self._client = kernel.client
        self.comm_id, self.states, self.lines, self.tasks, self.shown = None, [], [], {}, []
        self.tail, self.num_beats, self.printed = {}, 0, ""
        message = self._client.session.msg("create_subshell_request")
        self._client.control_channel.send(message)
        self._subshell = self._client.get_control_msg(timeout=300)["content"]["subshell_id"]

    def run(self, code, on_change):
        """Execute a cell; `on_change` is called after each message. Returns the error's name, or None."""
        request, error = self._client.execute(code), None
        while True:
            message = self._client.get_iopub_msg(timeout=300)
            kind, content = message["msg_type"], message["content"]
            if kind == "comm_open" and "_esm" in content["data"]["state"]:
                self.comm_id = content["comm_id"]
                self.states.append(content["data"]["state"]["state"])
            elif kind == "comm_msg" and content["comm_id"] == self.comm_id:
                self._take(content["data"])
            elif kind in ("display_data", "update_display_data"):
                self.shown.append(content["data"])
            elif kind == "stream":
                self.printed += content["text"]
            elif kind == "error":
                error = content["ename"]
            is_own = message["parent_header"].get("msg_id") == request
            if is_own and kind == "status" and content["execution_state"] == "idle":
                return error
            on_change()

    def _take(self, data):
        if data["method"] == "custom" and data["content"]["kind"] == "alive":
            self.num_beats += 1
        elif data["method"] == "custom":
            self.lines += data["content"]["all"]["lines"]
            for task, sent in data["content"]["tasks"].items():
                self.tasks.setdefault(task, []).extend(sent["lines"])
        elif "state" in data.get("state", {}):
            self.states.append(data["state"]["state"])
        self.tail = data.get("state", {}).get("tail", self.tail)

    def click(self, action):
        content = {"comm_id": self.comm_id, "data": {"method": "custom", "content": {"action": action}}}
        message = self._client.session.msg("comm_msg", content)
        message["header"]["subshell_id"] = self._subshell
        self._client.shell_channel.send(message)

    @property
    def words(self):
        return [state["words"] for state in self.states]


@pytest.fixture
def front_end(ignite, tmp_path):
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    env = {
        **os.environ,
        "JPY_SESSION_NAME": "a.ipynb",
        "IGNITE_TF_HOME": str(tmp_path / "home"),
        "IGNITE_TF_CLUSTER": endpoints,
    }
    kernel = Kernel(env, tmp_path, has_person=True)
    try:
        kernel.run("%load_ext ignite_tf_magic")
        yield FrontEnd(kernel)
    finally:
        kernel.close()


def once(act):
    """Return a function that calls `act` the first time that its argument is true."""
    done = []

    def look(condition):
        if condition and not done:
            done.append(True)
            act()

    return look


def test_a_run_is_seen_while_it_goes_on_and_stopped_in_its_busy_cell(front_end, digits):
    stop = once(lambda: front_end.click("stop"))
    error = front_end.run(
        f"%%ignite_tf start {digits} --workers 2\n{TRAIN}",
        lambda: stop(len(front_end.lines) > 100 and front_end.num_beats > 1),
    )
    assert error == "RunFailed"  # caused only by the click
    assert front_end.words[0] == "starting"
    assert front_end.words[1].startswith("connecting to the cluster")
    assert any(words.startswith("2 workers: ") for words in front_end.words)
    assert "stopping ..." in [state.get("note") for state in front_end.states]
    assert {"worker 0 | step 0", "worker 1 | step 0"} <= set(front_end.lines)
    assert front_end.tasks["worker 1"][:2] == ["step 0", "step 1"]
    assert [line.split()[0] for line in front_end.tail["tasks"]["worker 1"]["lines"][-2:]] == ["step", "step"]
    first, kept, card = front_end.shown
    assert VIEW in first
    assert VIEW not in kept and "text/html" in kept
    assert kept["text/plain"].splitlines()[0].endswith("stopped")
    assert kept["text/plain"].splitlines()[-1].startswith("worker ")
    assert "stopped after" in card["text/plain"]


def test_a_worker_that_floods_leaves_the_others_their_tabs(front_end, digits):
    script = (
        "import json, os, time\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index']:\n"
        "    for step in range(300): print('a quiet step', step, flush=True); time.sleep(0.01)\n"
        "else:\n"
        "    for line in range(200_000): print('line', line)\n"
    )
    assert front_end.run(f"%%ignite_tf start {digits} --workers 2\n{script}", lambda: None) is None
    quiet = [f"a quiet step {step}" for step in range(300)]
    assert [line for line in front_end.tasks["worker 1"] if line.startswith("a quiet")] == quiet
    assert any("lines left out" in line for line in front_end.tasks["worker 0"])
    assert not any("lines left out" in line for line in front_end.tasks["worker 1"])
    assert len(front_end.lines) < 50_000


def test_who_detaches_has_the_cell_back_and_the_run_goes_on(front_end, digits):
    leave = once(lambda: front_end.click("detach"))
    code = f"%%ignite_tf start {digits} -o run\n{TRAIN}"
    assert front_end.run(code, lambda: leave(len(front_end.lines) > 10)) is None
    assert front_end.states[0]["can_leave"]
    assert VIEW not in front_end.shown[1]
    assert not front_end.states[-1]["live"]
    front_end.printed = ""
    assert front_end.run("print(run.info().state.value); run.stop()", lambda: None) is None
    assert front_end.printed.splitlines()[0] == "running"


@pytest.mark.parametrize(
    ("environment", "has_person", "expected"),
    [
        ({"JPY_SESSION_NAME": "a.ipynb"}, True, True),
        ({"VSCODE_PID": "1"}, True, True),
        ({}, True, False),  # console
        ({"JPY_SESSION_NAME": "a.ipynb"}, False, False),  # papermill
        ({"JPY_SESSION_NAME": "a.ipynb", "IGNITE_TF_VIEW": "text"}, True, False),
        ({"IGNITE_TF_VIEW": "widget"}, False, True),
    ],
)
def test_a_widget_is_for_front_ends_that_draw_it(monkeypatch, environment, has_person, expected):
    for name in ("JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD", "IGNITE_TF_VIEW"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert shows_widgets(SimpleNamespace(_allow_stdin=has_person)) is expected


def test_a_flood_is_bounded_on_its_way_and_in_the_notebook(front_end, digits):
    code = f"%%ignite_tf start {digits}\nfor line in range(200_000): print('line', line)\n"
    assert front_end.run(code, lambda: None) is None
    assert len(front_end.lines) < 50_000
    assert any("lines left out" in line for line in front_end.lines)
    assert front_end.lines[-1] == "line 199999"
    kept = front_end.shown[1]
    assert "of 200,000 lines" in kept["text/html"]
    assert len(kept["text/html"]) < 20_000
