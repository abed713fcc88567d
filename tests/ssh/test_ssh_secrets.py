"""Tests that a run gets the cluster's credentials, and that no other user, reader or backup can see them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from ignite_tf_magic.runs.directory import CREDENTIALS
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.session import RunRequest, get_run, open_session
from tests.ssh.ssh_user import PASSWORD, USER
from tests.waiting import until

# A worker that finds the password in the expected file, and prints its length but not its value.
READ = f"""
import json, os, time
found = json.load(open(os.environ["IGNITE_DATASET_CREDENTIALS_FILE"]))
print("found it", found["username"] == {USER!r}, len(found["password"]), flush=True)
time.sleep(600)
"""


def on_host(host, home: str, *, is_running: bool) -> dict[str, str]:
    """Check the processes of a host for the password; return the modes of files that contain it, by path."""
    script = (
        "for each in /proc/[0-9]*; do cat $each/cmdline $each/environ 2>/dev/null; echo; done > $HOME/seen; "
        "grep -ac IGNITE_TF'_'JOB= $HOME/seen; "
        f"grep -ac {PASSWORD[:9]}'{PASSWORD[9:]}' $HOME/seen; rm $HOME/seen; "
        f"grep -rlF {PASSWORD[:9]}'{PASSWORD[9:]}' {shlex.quote(home)} | xargs -r stat -c '%a %n'"
    )
    lines = host.run(["sh", "-c", script]).stdout.splitlines()
    # The command could read environments of workers, if the run is running.
    assert int(lines[0]) > 0 or not is_running
    assert lines[1] == "0"
    return {path: mode for mode, _, path in (line.partition(" ") for line in lines[2:])}


def texts_below(directory: Path) -> str:
    return "\n".join(p.read_text(errors="replace") for p in directory.rglob("*") if p.is_file())


@pytest.mark.parametrize("detach", ["", "--detach"], ids=["attached", "detached"])
def test_no_secret_shows(trusted, home, bed, elsewhere, detach):
    with open_session(report=print) as session:
        request = RunRequest("NUMBERS", READ, 3, start_timeout_s=None, detach=bool(detach))
        run = session.start_run(request)
        said = {}
        for chunk in run.follow():
            said[chunk.worker] = said.get(chunk.worker, "") + chunk.text
            if "".join(said.values()).count("\n") == 3:
                break
        assert set(said.values()) == {f"found it True {len(PASSWORD)}\n"}

        roots = {host.name: run.record().host(host.name).root or host.home for host in bed.hosts}
        for host in bed.hosts:
            held = on_host(host, roots[host.name], is_running=True)
            assert set(held.values()) <= {"600"}
            assert {Path(path).name for path in held} == {CREDENTIALS}
        with Registry(session.client) as registry:
            rows = json.dumps(
                [registry.get(run.id).record, registry.reports(run.id), registry.requests(run.id)]
            )
        run.stop()
        until(
            lambda: not any(on_host(host, roots[host.name], is_running=False) for host in bed.hosts),
            what="the credentials to go with their run",
        )
    seen = (
        rows + texts_below(home) + elsewhere("logs", run.id).out + elsewhere("describe", run.id, "--json").out
    )
    assert run.id in seen
    assert PASSWORD not in seen


def test_no_secret_is_in_a_notebook(trusted, home):
    cell = f"%%ignite_tf start NUMBERS --workers 2 --detach -o run\n{READ}"
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(source)
            for source in (
                "%load_ext ignite_tf_magic",
                cell,
                "run, run.record()",
                "any('found it' in chunk.text for chunk in run.follow())",
                "%ignite_tf ps",
                "%ignite_tf describe $run.id",
                "%ignite_tf stop $run.id",
                "%ignite_tf logs $run.id",
            )
        ]
    )
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    nbformat.write(notebook, "run.ipynb")
    text = Path("run.ipynb").read_text()
    assert f"found it True {len(PASSWORD)}" in text
    assert "describe" in text
    assert PASSWORD not in text
    assert PASSWORD not in texts_below(home)
    assert not any(get_run(path.name).info().hosts == () for path in (home / "seen").iterdir())
