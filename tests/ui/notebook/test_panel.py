"""The panel in a real kernel: it keeps itself up to date, and shows what goes wrong."""

from __future__ import annotations

import pytest

SHOW = (
    "import os, threading, time\n"
    "from ignite_tf_magic.session import RunRequest, open_session, stop_run\n"
    "def threads(): return {t for t in threading.enumerate() if t.name == 'ignite-tf-panel'}\n"
    "others = threads()\n"
    "panel = get_ipython().run_line_magic('ignite_tf', 'panel')\n"
    "toolbar, runs, outcome, trouble = panel.children\n"
    "def text(): return ' '.join(w.value for row in runs.children for w in getattr(row, 'children', [row])\n"
    "                            if hasattr(w, 'value'))\n"
    "def wait_for(*words):\n"
    "    while not all(word in text() for word in words): time.sleep(0.01)\n"
)


@pytest.fixture
def panel_kernel(kernel):
    shown = kernel.run(SHOW)
    assert shown.error is None, shown
    yield kernel
    kernel.run("panel.close()")


def test_it_follows_runs_while_a_cell_is_busy(panel_kernel, digits):
    result = panel_kernel.run(
        "with open_session(report=print) as session:\n"
        f"    run = session.start_run(RunRequest({digits!r}, 'import time; time.sleep(600)'))\n"
        "wait_for(run.id, 'running')\n"
        "age = text()\n"
        "while text() == age: time.sleep(0.01)\n"
        "stop_run(run.id)\n"
        "wait_for(run.id, 'stopped')\n"
        "print([row.children[0].disabled for row in runs.children if run.id in row.children[1].value])"
    )
    assert result.error is None, result
    assert result.stdout == "[True]\n"


def test_ended_runs_are_shown_on_demand(panel_kernel, digits):
    panel_kernel.run(
        "with open_session(report=print) as session:\n"
        f"    run = session.start_run(RunRequest({digits!r}, '1/0'))\n"
        "run.wait()\n"
        "panel.close()\n"
    )
    panel_kernel.run(SHOW)
    before = panel_kernel.run("print(run.id in text())")
    after = panel_kernel.run(
        "toolbar.children[1].value = True\nprint(run.id in text(), 'failed (1)' in text())"
    )
    assert (before.stdout, after.stdout) == ("False\n", "True True\n")


OWNER = """
import time
from ignite_tf_magic.session import RunRequest, open_session
with open_session(report=str) as session:
    run = session.start_run(RunRequest({cache!r}, "import time; time.sleep(600)"))
print(run.id, flush=True)
time.sleep(600)
"""


def test_a_lost_run_is_cleared_by_its_button(panel_kernel, digits):
    result = panel_kernel.run(
        "import subprocess, sys\n"
        f"owner = subprocess.Popen([sys.executable, '-c', {OWNER.format(cache=digits)!r}],\n"
        "                         stdout=subprocess.PIPE, text=True)\n"
        "run_id = owner.stdout.readline().strip()\n"
        "wait_for(run_id, 'running')\n"
        "owner.kill()\n"
        "owner.wait()\n"
        "owner.stdout.close()\n"
        "wait_for(run_id, 'lost')\n"
        "[button] = [row.children[0] for row in runs.children if run_id in row.children[1].value]\n"
        "print(button.description, button.disabled)\n"
        "button.click()\n"
        "print(outcome.value.removeprefix(run_id))\n"
        "wait_for(run_id, 'stopped')\n"
        "print(button.description, button.disabled)"
    )
    assert result.error is None, result
    assert result.stdout.splitlines() == [
        "Clear False",
        ": its owner was gone; what was left of it has been ended",
        "Stop True",
    ]


def test_a_closed_panel_has_no_thread(panel_kernel):
    result = panel_kernel.run(
        "[own] = threads() - others\npanel.close()\nown.join(300)\nprint(own.is_alive(), len(runs.children))"
    )
    assert result.stdout.startswith("False"), result


def test_trouble_is_shown_and_goes_away(panel_kernel, tmp_path):
    not_a_directory = tmp_path / "file"
    not_a_directory.touch()
    result = panel_kernel.run(
        "home = os.environ['IGNITE_TF_HOME']\n"
        f"os.environ['IGNITE_TF_HOME'] = {str(not_a_directory)!r}\n"
        "while not trouble.value: time.sleep(0.01)\n"
        "print(trouble.value)\n"
        "os.environ['IGNITE_TF_HOME'] = home\n"
        "toolbar.children[0].click()\n"
        "print(repr(trouble.value))\n"
    )
    assert result.error is None, result
    said, afterwards = result.stdout.splitlines()
    assert said.startswith("the runs cannot be listed: ")
    assert str(not_a_directory) in said
    assert afterwards == "''"


def test_stopping_a_run_that_is_gone_is_said(panel_kernel, digits):
    result = panel_kernel.run(
        "import shutil\n"
        "with open_session(report=print) as session:\n"
        f"    run = session.start_run(RunRequest({digits!r}, 'import time; time.sleep(600)'))\n"
        "wait_for(run.id)\n"
        "[row] = [row for row in runs.children if run.id in row.children[1].value]\n"
        "stop_run(run.id)\n"
        "shutil.rmtree(run.directory.path)\n"
        "from ignite_tf_magic.runs.registry.registry import Registry\n"
        "with open_session(report=print) as session: Registry(session.client).remove(run.id)\n"
        "row.children[0].click()\n"
        "print(outcome.value)\n"
    )
    assert result.error is None, result
    assert "cannot be stopped: no run" in result.stdout
