"""Names, values and output of other users reach the terminal without control sequences."""

from __future__ import annotations

import inspect
import json
import time

import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.runs.record import RunRecord, RunSpec
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.seals import differences
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.serialization.terminal_text import coloured, plain, visible, whole_lines
from ignite_tf_magic.session import load, open_session
from ignite_tf_magic.session.tensorboards import open_tensorboard, stop_tensorboard
from ignite_tf_magic.ui.live_output import LiveOutput
from ignite_tf_magic.ui.notebook import magics, screen
from ignite_tf_magic.ui.notebook.run_function import run
from ignite_tf_magic.ui.render import message_view, table_view
from ignite_tf_magic.ui.shell.cli import main

TITLE, CLEAR, CLIPBOARD = "\x1b]0;pwned\x07", "\x1b[2J", "\x1b]52;c;cm0gLXJm\x1b\\"
HOSTILE = f"a{TITLE}b{CLEAR}c\rd\x9b1A\u202etxt.exe"


def is_harmless(text):
    return not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(text)


@pytest.fixture
def shell(ignite, monkeypatch, tmp_path, capsys):
    """Return a function that runs `ignite-tf` on the shared cluster and returns its output of both streams."""
    monkeypatch.setenv("IGNITE_TF_CLUSTER", str(ignite.connect_options.endpoints[0]))
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        main(arguments)
        shown = capsys.readouterr()
        return shown.out + shown.err

    return run


def test_names_of_caches_files_and_runs(client, shell):
    name = f"HOSTILE{TITLE}{CLEAR}\r\u202e"
    client.get_or_create_cache(CacheConfig(name))
    with Volume(lambda: client_options(client)) as volume:
        volume.write_file((f"hostile{CLEAR}{TITLE}",), b"x")
    record = RunRecord(f"hostile{TITLE}", RunSpec(name), RunState.RUNNING, time.time())
    with Registry(client) as registry:
        registry.create(record.to_json())
    try:
        for words in (
            ("caches",),
            ("fs", "ls", "igfs:///"),
            ("ps",),
            ("ps", "--all"),
            ("describe", "nobody" + CLEAR),
        ):
            told = shell(*words)
            assert is_harmless(told), (words, told)
            assert "\\x1b" in told
        listed = json.loads(shell("ps", "--json").partition("\n]")[0] + "]")
        assert record.run_id in [run["id"] for run in listed]
    finally:
        client.destroy_cache(name)
        with Registry(client) as registry:
            registry.remove(record.run_id)


def client_options(client):
    return client.router._options


def test_values_of_sql(shell):
    told = shell("sql", "SELECT CHAR(27) || ']0;x' || CHAR(7) AS A, 'two' || CHAR(10) || 'lines' AS B")
    assert "\\x1b]0;x\\x07" in told and "two\\nlines" in told
    assert is_harmless(told)


def test_output_of_workers_keeps_its_colours_and_no_other_order():
    output = LiveOutput(["worker 0"])
    output.feed(0, f"\x1b[1;31mred\x1b[0m {TITLE}{CLEAR}{CLIPBOARD}\x1b[5Aup\x1bcreset\x1bP1$tx\x1b\\done\n")
    output.feed(0, "\x1b[31mleft red\n")
    output.say(HOSTILE)
    assert output.take() == (
        f"\x1b[1;31mred\x1b[0m upresetdone\n\x1b[31mleft red\x1b[0m\n{visible(HOSTILE)}\n"
    )


def test_an_order_in_pieces_is_none():
    pieces = ["one\x1b]0;pw", "ned\x07two\n\x1b[3", "2mgreen\x1b[0m\nthree"]
    assert "".join(map(coloured, whole_lines(pieces))) == "onetwo\n\x1b[32mgreen\x1b[0m\nthree"
    assert "".join(whole_lines(["a\n", "b" * 3_000_000, "c"])) == "a\n" + "b" * 3_000_000 + "c"


@pytest.mark.parametrize("text", ["plain", "tab\t and\nline", "ünïcödé 训练 🦆", ""])
def test_text_stays_as_it_is(text):
    assert visible(text) == coloured(text) == plain(text) == text


def test_what_is_no_whole_order_is_shown():
    assert visible("\x1b[2J\x9b\x7f") == "\\x1b[2J\\x9b\\x7f"
    assert coloured("\x1b[31") == "\\x1b[31"
    assert plain("\x1b[31mred\x1b[0m\x1b") == "red\\x1b"


def test_tables_and_messages():
    view = table_view(["N"], [[HOSTILE], ["two\nlines"]])
    assert is_harmless(view.text) and len(view.text.splitlines()) == 3
    assert is_harmless(message_view(HOSTILE).text)


def test_what_the_python_api_tells_by_default(capsys):
    for function in (open_session, load, open_tensorboard, stop_tensorboard, run):
        inspect.signature(function).parameters["report"].default(HOSTILE)
        told = capsys.readouterr().out
        assert told and is_harmless(told), function


def test_what_a_forged_record_says_otherwise():
    """The record's keys are printed too, in reconciler.log."""
    told = differences({"spec": {HOSTILE: HOSTILE, "two\nlines": 1}}, {"spec": {}})
    assert is_harmless(told) and "\n" not in told
    assert "spec." in told


def test_a_notebook(capsys):
    screen.say(HOSTILE)
    screen.NotebookScreen({}).write(memoryview(HOSTILE.encode()))
    with pytest.raises(ConfigError) as raised, magics._short_errors():
        raise ConfigError(HOSTILE)
    told = capsys.readouterr().out
    assert is_harmless(told.replace("\r", ""))
    assert is_harmless(raised.value._render_traceback_()[0].replace("\x1b[31m", "").replace("\x1b[0m", ""))
