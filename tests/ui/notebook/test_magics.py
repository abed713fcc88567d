"""Tests of the magics in a real kernel, on real nodes: the output that users see in cells."""

from __future__ import annotations

import json
import re

import pytest

from ignite_tf_magic.protocol.messages import CacheConfig

# A worker that counts as up, because it listens at its address like a TensorFlow server.
COME_UP = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
host, port = config["cluster"]["worker"][index].split(":")
server = socket.socket()
if hasattr(socket, "SO_REUSEPORT"):
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind((host, int(port)))
server.listen()
"""


def run_id(stdout):
    return re.match(r"run (\S+): ", stdout)[1]


def test_caches_lists_rows_and_tables(kernel, digits):
    result = kernel.run("%ignite_tf caches")
    assert re.search(r"^DIGITS_NB +359 +partitioned +1 +PUBLIC.DIGITS_NB$", result.text, re.MULTILINE)
    assert "<td" in result.shown[0]["text/html"]


def test_a_run_streams_and_ends_with_where_everything_is(kernel, digits):
    result = kernel.run(
        f"%%ignite_tf start {digits} --name first -o first_run -- --rate 0.1\n"
        "import os, sys\n"
        "print('arguments', sys.argv[1:])\n"
        "print('part', os.environ['IGNITE_DATASET_PART'])\n"
    )
    assert result.error is None
    identity = run_id(result.stdout)
    assert identity[3:].startswith("-first-")
    assert "arguments ['--rate', '0.1']" in result.stdout
    assert "part 0-1023" in result.stdout
    assert f"run {identity}: succeeded" in result.text
    assert f"{identity}/worker-*.log" in result.text
    assert kernel.run("first_run.info().state.value").text.strip() == "'succeeded'"


def test_output_comes_while_the_run_goes_on(kernel, digits, tmp_path):
    """The script waits until its output has appeared in the cell."""
    seen = tmp_path / "seen"

    def on_stdout(text):
        if "look at me" in text and "finished" not in text:
            seen.touch()

    result = kernel.run(
        f"%%ignite_tf start {digits}\n"
        "import pathlib, time\n"
        "print('look at me')\n"
        f"while not pathlib.Path({str(seen)!r}).exists(): time.sleep(0.01)\n"
        "print('finished')\n",
        on_stdout=on_stdout,
    )
    assert "finished" in result.stdout


def test_workers_are_told_apart(kernel, digits):
    result = kernel.run(
        f"%%ignite_tf start {digits} --workers 2\n{COME_UP}\n"
        "print('I am', index, flush=True)\n"
        "open(os.environ['IGNITE_TF_RUN_DIR'] + f'/{index}', 'w').close()\n"
        "while len(os.listdir(os.environ['IGNITE_TF_RUN_DIR'])) < 2: time.sleep(0.01)\n"
    )
    assert result.error is None, result
    assert {"worker 0 | I am 0", "worker 1 | I am 1"} <= set(result.lines)


def test_progress_bar_is_one_line(kernel, digits):
    result = kernel.run(
        f"%%ignite_tf start {digits}\n"
        "import sys, time\n"
        "for i in range(20): print(f'\\r{i + 1}/20', end='', flush=True); time.sleep(0.05)\n"
        "print(' done')\n"
    )
    # No user watches, so the progress line is not rewritten, and the notebook keeps only its final text.
    assert result.stdout.partition("\n")[2] == "20/20 done\n"


def test_bars_are_shown_to_persons_and_leave_nothing_where_nobody_looks(kernel, client):
    kernel.run(
        "import numpy, pandas, ignite_tf_magic.ui.screen as screen\nscreen._BAR_AFTER_S = 0\n"
        "many = pandas.DataFrame({'x': numpy.arange(20_000)})"
    )
    load = "%ignite_tf load NB_BARS many --replace"
    try:
        kernel.client.allow_stdin = True
        assert any("widget-view" in kind for data in kernel.run(load).shown for kind in data)
        kernel.client.allow_stdin = False
        result = kernel.run(load)
        assert result.shown == [] and result.stdout.endswith("s\n") and "\x1b" not in result.stdout, result
    finally:
        kernel.run("screen._BAR_AFTER_S = 2")
        client.destroy_cache("NB_BARS")


def test_of_a_flood_of_output_no_line_is_lost(kernel, digits):
    result = kernel.run(
        f"%%ignite_tf start {digits}\nfor i in range(100_000): print('a line of output, number', i)\n"
    )
    assert result.error is None
    # Each line as a screen shows it: text after "\r" overwrites the text before it.
    shown = [line.rpartition("\r")[2].rstrip() for line in result.stdout.split("\n")]
    lines = [line for line in shown if line.startswith("a line")]
    assert lines == [f"a line of output, number {i}" for i in range(100_000)]
    kept = "sum(len(str(each.bundle)) for kept in _shell.history_manager.outputs.values() for each in kept)"
    assert int(kernel.run(f"_shell = get_ipython(); print({kept})").stdout) < 100_000


def test_a_statement_that_lasts_shows_that_it_goes_on_until_it_is_interrupted(kernel):
    shown = []

    def on_shown(data):
        shown.append(data)
        if len(shown) == 1:
            kernel.manager.interrupt_kernel()

    heavy = "SELECT COUNT(*) FROM SYSTEM_RANGE(1, 100000) A, SYSTEM_RANGE(1, 100000) B WHERE A.X * B.X = 7"
    kernel.client.allow_stdin = True  # as if a user watched
    try:
        result = kernel.run(f"%%ignite_sql\n{heavy}", on_shown=on_shown)
    finally:
        kernel.client.allow_stdin = False
    assert result.error["ename"] == "KeyboardInterrupt"
    assert "application/vnd.jupyter.widget-view+json" in shown[0]
    quick = kernel.run("%ignite_sql --json SELECT 7 AS X")
    assert '"X": 7' in quick.stdout and quick.shown == []


def test_failure_is_explained_and_ends_the_cell(kernel, digits):
    result = kernel.run(f"%%ignite_tf start {digits}\nprint('one')\nraise ValueError('boom')\n")
    area, card = (shown["text/plain"] for shown in result.shown)
    assert area.endswith("failed")
    # The traceback appears once, with the lines of the cell.
    assert result.lines[-2:] == ["one", ""]
    assert 'script/cell.py", line 3, in <module>' in card
    assert "above is why" in result.error["traceback"][0]
    assert ": worker 0 on localhost failed: exit code 1" in card
    assert "ValueError: boom" in card
    assert "worker-0.log" in card
    assert "bootstrap" not in card
    assert result.error["ename"] == "RunFailed"
    assert result.error["evalue"].endswith("exit code 1: ValueError: boom")
    assert len(result.error["traceback"]) == 1


def test_interrupt_stops_watching_and_the_run_goes_on(kernel, digits, tmp_path):
    go_on = tmp_path / "go-on"
    interrupted = []

    def on_stdout(text):
        if "started" in text and not interrupted:
            interrupted.append(True)
            kernel.manager.interrupt_kernel()

    result = kernel.run(
        f"%%ignite_tf start {digits}\n"
        "import pathlib, time\n"
        "print('started')\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n"
        "print('went on')\n",
        on_stdout=on_stdout,
    )
    identity = run_id(result.stdout)
    assert f"run {identity} goes on" in result.stdout
    assert f"%ignite_tf attach {identity}" in result.stdout
    assert f"%ignite_tf stop {identity}" in result.stdout
    assert result.error["ename"] == "KeyboardInterrupt"
    assert len(result.error["traceback"]) == 1
    assert re.search(rf"{identity} +running", kernel.run("%ignite_tf ps").text)
    go_on.touch()
    attached = kernel.run(f"%ignite_tf attach {identity}")
    assert attached.lines[:2] == ["started", "went on"]
    assert "succeeded" in attached.text
    assert identity not in kernel.run("%ignite_tf ps").text
    assert identity in kernel.run("%ignite_tf ps --all").text


def test_stop_ends_the_run_and_says_so(kernel, digits):
    kernel.run(
        "from ignite_tf_magic.session import RunRequest, open_session\n"
        "with open_session(report=print) as session:\n"
        f"    sleeper = session.start_run(RunRequest({digits!r}, 'import time; time.sleep(600)'))"
    )
    identity = kernel.run("sleeper.id").text.strip().strip("'")
    assert f"run {identity}: stopped" in kernel.run(f"%ignite_tf stop {identity}").stdout
    assert "had ended before" in kernel.run(f"%ignite_tf stop {identity}").stdout
    attached = kernel.run(f"%ignite_tf attach {identity}")
    assert attached.error["evalue"] == f"run {identity} did not succeed: it is stopped"


def test_panel_is_a_widget(kernel):
    shown = kernel.run("panel = get_ipython().run_line_magic('ignite_tf', 'panel'); panel").shown[0]
    assert "application/vnd.jupyter.widget-view+json" in shown
    kernel.run("panel.close()")


def test_logs_shows_the_last_lines(kernel, digits):
    started = kernel.run(f"%%ignite_tf start {digits}\nfor i in range(300): print('line', i)\n")
    identity = run_id(started.stdout)
    lines = kernel.run(f"%ignite_tf logs {identity} --lines 3").stdout.splitlines()
    assert lines[1:] == ["line 297", "line 298", "line 299"]
    everything = kernel.run(f"%ignite_tf logs {identity} --all").stdout.splitlines()
    assert [line for line in everything if line.startswith("line ")] == [f"line {i}" for i in range(300)]
    assert (
        "no worker 7; it has worker 0" in kernel.run(f"%ignite_tf logs {identity} --worker 7").error["evalue"]
    )


def test_explain_needs_no_cell(kernel, digits):
    result = kernel.run(f"%ignite_tf start {digits} --workers 2 --explain")
    assert result.error is None, result
    assert "BYTES READ LOCALLY" in result.text
    assert result.text.count("100%") == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%ignite_tf frob", ["there is no command frob", "usage:"]),
        ("%ignite_tf stop", ["no run is live"]),
        ("%ignite_tf resume", ["required: RUN", "usage:"]),
        ("%ignite_tf stop no-such-run", ["no run 'no-such-run'"]),
        ("%ignite_tf start DIGITS_NB", ["in a notebook write a cell: %%ignite_tf start CACHE"]),
        ("%%ignite_tf ps\nprint(1)", ["takes no cell"]),
        ("%%ignite_tf start DIGIT_NB\nprint(1)", ["no cache 'DIGIT_NB'", "'DIGITS_NB'"]),
        ("%%ignite_tf start DIGITS_NB --workers 0\nprint(1)", ["'0' is not a whole number from 1 up"]),
        ("%%ignite_tf start DIGITS_NB --start-timeout -1\nprint(1)", ["--start-timeout"]),
        ("%%ignite_tf start DIGITS_NB\nprint(1", ["SyntaxError", "line 2", "No worker was started"]),
        ("%ignite_tf stop 'x", ["cannot be read", "quotation"]),
        ("%ignite_sql SELECT * FROM NOPE", ['"NOPE" not found']),
        ("%ignite_sql SELECT :undefined_name", ["no variable 'undefined_name'"]),
        ("%ignite_sql --limit many SELECT 1", ["--limit", "'many' is not a whole number"]),
        ("%ignite_sql --frob 1 SELECT 1", ["--frob"]),
        ("%ignite_sql -o 1x SELECT 1", ["1x"]),
        ("%ignite_sql", ["no SQL statement"]),
    ],
)
def test_errors_are_short_and_say_what_to_do(kernel, digits, code, words):
    result = kernel.run(code)
    assert result.error is not None, result
    assert len(result.error["traceback"]) == 1
    for word in words:
        assert word in result.error["evalue"]
        assert word in result.error["traceback"][0]


def test_a_package_that_is_missing_is_named_with_its_extra(kernel, digits):
    """The test hides pandas from the kernel's imports for one cell."""
    hidden = "import sys; kept = sys.modules.pop('pandas', None); sys.modules['pandas'] = None"
    assert kernel.run(hidden).error is None
    try:
        result = kernel.run(f"%ignite_tf sample {digits}")
    finally:
        kernel.run("sys.modules.pop('pandas'); kept and sys.modules.update(pandas=kept)")
    assert result.error["ename"] == "ModuleNotFoundError"
    assert len(result.error["traceback"]) == 1
    assert result.error["traceback"][0].endswith("pip install 'ignite_tf_magic[data]'")
    assert kernel.run(f"%ignite_tf sample {digits} -n 1").error is None


def test_python_code_gets_the_exception_itself(kernel):
    code = (
        "try: get_ipython().run_line_magic('ignite_tf', 'stop no-such-run')\n"
        "except LookupError as error: print(type(error).__name__)"
    )
    assert kernel.run(code).stdout == "RunNotFound\n"


@pytest.mark.parametrize(
    "code", ["%ignite_tf --help", "%ignite_tf help", "%ignite_tf start --help", "%ignite_sql -h"]
)
def test_help(kernel, code):
    result = kernel.run(code)
    assert result.error is None
    assert "ignite_" in result.stdout


def test_a_cache_that_is_there_is_left_alone_where_that_was_asked_for(kernel, digits):
    result = kernel.run(f"%ignite_tf load {digits} digits --split train --if-missing")
    assert (result.error, result.stdout) == (
        None,
        f"359 rows are in cache {digits} already; nothing was loaded\n",
    )
    assert "exists and has 359 rows" in kernel.run(f"%ignite_tf load {digits} digits").error["evalue"]


def test_alone_it_tells_how_things_stand(kernel, digits):
    result = kernel.run("%ignite_tf")
    assert (result.error, result.stdout) == (None, "")
    told = result.shown[0]["text/plain"]
    assert all(word in told for word in ("cluster   127.0.0.1:", "caches    ", "next:"))


def test_sql_gives_a_frame(kernel, digits):
    kernel.run("smallest, name = 8, \"x' OR '1'='1\"")
    result = kernel.run(
        "%%ignite_sql -o counts\n"
        "SELECT label, COUNT(*) AS images -- not :a_name\n"
        "FROM DIGITS_NB WHERE label >= :smallest AND 'a:b' <> :name GROUP BY label ORDER BY label;\n"
    )
    assert result.error is None, result.error
    assert result.stdout == "counts: 2 rows of label, IMAGES\n"
    assert kernel.run("counts.label.tolist(), str(counts.IMAGES.dtype)").text.strip() == "([8, 9], 'Int64')"


def test_sql_statements_of_one_cell(kernel):
    made = kernel.run(
        "%%ignite_sql\n"
        "CREATE TABLE OF_A_CELL(ID INT PRIMARY KEY, NAME VARCHAR); -- it ends with ;\n"
        "INSERT INTO OF_A_CELL VALUES (1, 'a;b'), (2, 'c');\n"
        "SELECT NAME FROM OF_A_CELL ORDER BY ID;\n"
        "SELECT COUNT(*) AS N FROM OF_A_CELL"
    )
    assert made.error is None, made.error
    assert made.stdout == "done\n2 rows changed\n"
    first, last = (shown["text/plain"] for shown in made.shown)
    assert "a;b" in first
    assert last.split() == ["N", "0", "2"]
    refused = kernel.run("%ignite_sql -o kept DELETE FROM OF_A_CELL")
    assert "no statement returns any" in refused.error["evalue"]
    near = kernel.run("%ignite_sql SELECT NAM FROM OF_A_CEL").error["evalue"]
    assert "Did you mean OF_A_CELL?" in near
    assert kernel.run("%ignite_sql DROP TABLE OF_A_CELL").stdout == "done\n"


@pytest.mark.parametrize(("kind", "of"), [("pandas", "pandas"), ("polars", "polars"), ("arrow", "pyarrow")])
def test_sql_gives_frames_of_other_kinds(kernel, kind, of):
    result = kernel.run(f"%ignite_sql -o frame --to {kind} SELECT 7 AS X WHERE 1 = 0")
    assert result.error is None, result.error
    assert result.stdout == "frame: 0 rows of X\n"
    assert kernel.run("type(frame).__module__.split('.')[0], len(frame)").text.strip() == f"('{of}', 0)"


def test_sql_shows_a_plan_as_text(kernel):
    result = kernel.run("%ignite_sql EXPLAIN SELECT X FROM SYSTEM_RANGE(1, 3)")
    assert "SYSTEM_RANGE" in result.stdout
    assert not result.shown


def test_sql_announces_truncation(kernel, digits):
    result = kernel.run("%ignite_sql --limit 5 SELECT id FROM DIGITS_NB")
    assert result.stdout.startswith("the first 5 rows; there are more")
    assert "<table" in result.shown[0]["text/html"]
    whole = kernel.run("%ignite_sql -o whole --limit 0 SELECT id FROM DIGITS_NB")
    assert whole.stdout == "whole: 359 rows of ID\n"


def test_sql_as_json(kernel, digits):
    result = kernel.run("%ignite_sql --json --limit 1 SELECT 7 AS id, 'a' AS b")
    assert json.loads(result.stdout) == [{"ID": 7, "B": "a"}]
    assert not result.shown


def test_braces_and_dollars_in_sql_are_left_alone(kernel):
    kernel.run("word = 'spliced'")
    kernel.run("%ignite_sql -o out SELECT '{word} $word' AS W")
    assert kernel.run("out.W[0]").text.strip() == "'{word} $word'"


def test_html_is_escaped(kernel, digits):
    result = kernel.run(f"%%ignite_tf start {digits}\nraise ValueError('<img src=x>')\n")
    assert "&lt;img src=x&gt;" in result.shown[-1]["text/html"]
    assert "<img" not in "".join(shown["text/html"] for shown in result.shown)


def test_tab_completes_commands_options_and_caches(kernel, digits):
    def completed(text):
        reply = kernel.client.complete(text, reply=True, timeout=300)
        return reply["content"]["matches"]

    assert "resume" in completed("%ignite_tf res")
    assert "--stop-on-nan" in completed("%%ignite_tf start --stop")
    assert digits in completed(f"%%ignite_tf start {digits[:4]}")


def test_tab_offers_no_name_that_ipython_would_run(kernel, client):
    plain, hostile = (
        "OFFERED_plain",
        ['OFFERED_{open("hit","w")}', "OFFERED_$HOME", "OFFERED_a b", "OFFERED_\x1b[2J"],
    )
    for name in (plain, *hostile):
        client.get_or_create_cache(CacheConfig(name))
    try:
        reply = kernel.client.complete("%%ignite_tf start OFFERED_", reply=True, timeout=300)
        assert [each for each in reply["content"]["matches"] if "OFFERED" in each] == [plain]
    finally:
        for name in (plain, *hostile):
            client.destroy_cache(name)


def test_a_variable_is_loaded_where_no_file_has_its_name(kernel):
    made = "import pandas as pd\nframe = pd.DataFrame({'k': ['a', 'b'], 'x': pd.array([1, None], 'Int64')})"
    assert kernel.run(made).error is None
    result = kernel.run("%ignite_tf load NB_FRAME frame --key k --replace")
    assert "loading the variable frame, a DataFrame" in str(result)
    assert "2 rows in cache NB_FRAME" in str(result)
    assert kernel.run("%ignite_tf load NB_FRAME frame --key k --upsert").error is None
    rows = kernel.run("%ignite_sql --json SELECT k, x FROM NB_FRAME ORDER BY k")
    assert json.loads(rows.stdout) == [{"k": "a", "x": 1}, {"k": "b", "x": None}]
    kernel.run("open('frame', 'w').write('a file')")
    assert "its content is not known" in str(kernel.run("%ignite_tf load NB_FRAME frame --replace").error)
    kernel.run("import os; os.remove('frame')")
    assert "does not exist" in str(kernel.run("%ignite_tf load NB_FRAME other --replace").error)
