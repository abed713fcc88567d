"""Tests of completion in IPython, as a notebook front end requests it, on a real cluster."""

from __future__ import annotations

import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter

from ignite_tf_magic.session import load, open_session
from ignite_tf_magic.session.files import Files

CACHE = "TABBED"


@pytest.fixture(scope="module")
def shell(ignite, tmp_path_factory):
    """An IPython shell with the magics, in a directory that contains a file."""
    from IPython.core.interactiveshell import InteractiveShell

    work = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(work / "ipython"))
        patch.setenv("IGNITE_TF_HOME", str(work / "home"))
        patch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
        patch.chdir(work)
        (work / "train.csv").write_text("x\n1\n")
        load(
            CACHE,
            {"width": np.arange(9), "petal length": np.arange(9)},
            options=ignite.connect_options,
            report=str,
        )
        with Files(report=str) as files:
            files.put([str(work / "train.csv")], "/tabbed.csv")
            files.make_directory("/tabbed")
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "ignite_tf_magic")
        shell.user_ns["largest"] = 3
        yield shell
        with Files(report=str) as files:
            files.remove("/tabbed*", recursive=True)
        InteractiveShell.clear_instance()
        with open_session(report=str) as session:
            session.client.destroy_cache(CACHE)


def proposed(shell, text):
    """Return the completions at the position of "|"."""
    cursor = text.index("|")
    code = text.replace("|", "")
    with provisionalcompleter():
        return [each.text for each in shell.Completer.completions(code, cursor)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%ignite_tf res|", ["resume"]),
        ("%ignite_tf fs mk|", ["mkdir", "mkfs"]),
        ("%%ignite_tf start TABB|\nprint(1)", [CACHE]),
        ("x = %ignite_tf sample TABB|", [CACHE]),
        ("%%ignite_tf start TABBED --work|\nprint(1)", ["--workers"]),
        ("%ignite_tf fs ls /tab|", ["/tabbed.csv", "/tabbed/"]),
        ("%ignite_tf fs cat /tabbed.|", ["/tabbed.csv"]),
        ("%ignite_tf load NEW tra|", ["train.csv"]),
        ("%%ignite_sql\nSELECT WID| FROM TABBED", ["WIDTH"]),
        ("%%ignite_sql\nSELECT * FROM tabb|", ["tabbed"]),
        ('%%ignite_sql -o frame\nSELECT "pet|\nFROM TABBED', ['"petal length"']),
        ("%%ignite_sql\nSELECT * FROM TABBED WHERE WIDTH < :larg|", ["largest"]),
        ("%ignite_sql SELECT WIDT|", ["WIDTH"]),
    ],
)
def test_what_may_come_next(shell, text, expected):
    assert sorted(proposed(shell, text)) == sorted(expected)


def test_other_cells_are_left_to_others(shell):
    assert "largest" in proposed(shell, "print(larg|")
    assert "largest" in proposed(shell, "%%time\nlarg|")


def test_runs_that_go_on_come_first(shell):
    from ignite_tf_magic.session import RunRequest

    with open_session(report=str) as session:
        ended = session.start_run(RunRequest(CACHE, "pass"))
        ended.wait(300)
        live = session.start_run(RunRequest(CACHE, "import time; time.sleep(600)"))
        try:
            newest = session.start_run(RunRequest(CACHE, "pass"))
            newest.wait(300)
            ours = {live.id, newest.id, ended.id}
            runs = [run for run in proposed(shell, "%ignite_tf attach |") if run in ours]
            assert runs == [live.id, newest.id, ended.id]
        finally:
            live.stop()
