"""Tests of the panel in a real kernel: it refreshes itself, reacts to clicks, and shows errors."""

from __future__ import annotations

import pytest

SHOW = (
    "import os, threading, time\n"
    "from ignite_tf_magic.session import RunRequest, open_session, stop_run\n"
    "def threads(): return {t for t in threading.enumerate() if t.name == 'ignite-tf-panel'}\n"
    "others = threads()\n"
    "panel = get_ipython().run_line_magic('ignite_tf', 'panel')\n"
    "def seen(run_id): return next((run for run in panel.seen['runs'] if run['id'] == run_id), None)\n"
    "def wait_for(run_id, **wanted):\n"
    "    while not ((run := seen(run_id)) and all(run[name] == value for name, value in wanted.items())):\n"
    "        time.sleep(0.01)\n"
    "def click(action, about): panel._msg_callbacks(panel, {'action': action, 'about': about}, [])\n"
    "def start(cache, script):\n"
    "    with open_session(report=str) as session: return session.start_run(RunRequest(cache, script))\n"
    "SLEEP = 'import time; time.sleep(600)'\n"
)


@pytest.fixture
def panel_kernel(kernel):
    shown = kernel.run(SHOW)
    assert shown.error is None, shown
    yield kernel
    kernel.run("panel.close()")


@pytest.mark.smoke
def test_it_follows_runs_while_a_cell_is_busy_and_stops_them(panel_kernel, digits):
    result = panel_kernel.run(
        f"run = start({digits!r}, SLEEP)\n"
        "wait_for(run.id, state='running', live=True, can_stop=True, stop='Stop', cache='DIGITS_NB')\n"
        "words = seen(run.id)['words']\n"
        "while seen(run.id)['words'] == words: time.sleep(0.01)\n"
        "click('stop', run.id)\n"
        "print(panel.told['note'])\n"
        "wait_for(run.id, state='stopped', live=False, can_stop=False)"
    )
    assert result.error is None, result
    assert result.stdout.endswith(": stopped\n")


def test_what_a_click_shows_is_what_the_command_says(panel_kernel, digits):
    result = panel_kernel.run(
        f"run = start({digits!r}, 'print(\\'a line of output\\')')\n"
        "run.wait()\n"
        "for action in ('describe', 'logs'):\n"
        "    click(action, run.id)\n"
        "    print(panel.told['detail'])\n"
        f"for action in ('columns', 'sample'):\n"
        f"    click(action, {digits!r})\n"
        "    print(panel.told['detail'])\n"
        "click('close', '')\n"
        "print(panel.told)"
    )
    assert result.error is None, result
    for words in ("succeeded", "a line of output", "COLUMN", "PIXELS", "{}"):
        assert words in result.stdout


def test_the_cluster_and_its_caches_are_seen(panel_kernel, digits, ignite):
    result = panel_kernel.run(
        "import json\n"
        f"while not any((each['name'], each['rows']) == ({digits!r}, 359) for each in panel.seen['caches']):\n"
        "    time.sleep(0.01)\n"
        "print(json.dumps({name: panel.seen[name] for name in ('cluster', 'nodes', 'caches', 'trouble')}))"
    )
    import json

    seen = json.loads(result.stdout)
    names = {str(endpoint) for endpoint in ignite.connect_options.endpoints}
    assert {node["name"] for node in seen["nodes"]} == names
    assert all(0 < node["share"] < 1 for node in seen["nodes"])
    (cache,) = [each for each in seen["caches"] if each["name"] == digits]
    assert cache["rows"] == 359
    assert sum(cache["primaries"].values()) == 1024
    assert set(cache["primaries"]) == {node["id"] for node in seen["nodes"]}
    assert not [each for each in seen["caches"] if each["name"].startswith(("ignite-tf-", "igfs-"))]
    assert seen["trouble"] == ""


@pytest.mark.parametrize("about", ["no-such-run", "--all", "", "a; b"])
def test_what_cannot_be_done_is_said(panel_kernel, about):
    result = panel_kernel.run(f"click('stop', {about!r})\nprint(panel.told['note'])")
    assert result.error is None, result
    assert result.stdout.startswith(f"stop {about}: no run {about!r}")
    assert "unknown action" in panel_kernel.run("click('rm', 'x'); print(panel.told['note'])").stdout


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
        "wait_for(run_id, state='running')\n"
        "owner.kill()\n"
        "owner.wait()\n"
        "owner.stdout.close()\n"
        "wait_for(run_id, state='lost', live=True, stop='Clear', can_stop=True)\n"
        "click('stop', run_id)\n"
        "print(panel.told['note'].removeprefix(f'run {run_id}'))\n"
        "wait_for(run_id, state='stopped')\n"
    )
    assert result.error is None, result
    assert result.stdout == ": its owner was gone; what was left of it has been ended\n"


def test_a_closed_panel_has_no_thread(panel_kernel):
    result = panel_kernel.run(
        "[own] = threads() - others\npanel.close()\nown.join(300)\nprint(own.is_alive())"
    )
    assert result.stdout == "False\n", result


def test_trouble_is_shown_and_goes_away(panel_kernel, tmp_path):
    not_a_directory = tmp_path / "file"
    not_a_directory.touch()
    result = panel_kernel.run(
        "home = os.environ['IGNITE_TF_HOME']\n"
        f"os.environ['IGNITE_TF_HOME'] = {str(not_a_directory)!r}\n"
        "while not panel.seen['trouble']: time.sleep(0.01)\n"
        "print(panel.seen['trouble'])\n"
        "os.environ['IGNITE_TF_HOME'] = home\n"
        "while panel.seen['trouble']: time.sleep(0.01)\n"
    )
    assert result.error is None, result
    assert str(not_a_directory) in result.stdout


def test_stopping_a_run_that_is_gone_is_said(panel_kernel, digits):
    result = panel_kernel.run(
        "import shutil\n"
        f"run = start({digits!r}, SLEEP)\n"
        "wait_for(run.id)\n"
        "stop_run(run.id)\n"
        "shutil.rmtree(run.directory.path)\n"
        "from ignite_tf_magic.runs.registry.registry import Registry\n"
        "with open_session(report=print) as session: Registry(session.client).remove(run.id)\n"
        "click('stop', run.id)\n"
        "print(panel.told['note'])\n"
    )
    assert result.error is None, result
    assert ": no run" in result.stdout
