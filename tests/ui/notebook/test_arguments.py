"""Tests of the arguments of %ignite_tf, without a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.ui.notebook.arguments import parse_line
from ignite_tf_magic.ui.notebook.sql import parse_sql_magic
from ignite_tf_magic.ui.options import given_options
from ignite_tf_magic.version import __version__

COMMANDS = ["start", "ps", "attach", "describe", "stop", "logs", "prune", "doctor", "caches", "tensorboard"]
COMMANDS += ["panel", "fs", "fs ls", "fs sync", "local", "local up", "local status", "local down"]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_and_version_everywhere(command, capsys):
    assert parse_line(f"{command} -h") is None
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: %ignite_tf {command}".strip())
    assert "%%%" not in shown
    assert parse_line(f"{command} -V") is None
    assert capsys.readouterr().out.startswith(f"ignite-tf {__version__}\npython ")


def test_what_is_not_given_is_left_to_the_defaults():
    options = parse_line(
        "start MNIST --workers 3 --hosts db1,db2 --on-rebalance ignore --env A=1=2 --env B= -- --rate 0.1"
    )
    given = given_options(options)
    assert (given["num_workers"], given["hosts"], given["on_rebalance"].value) == (
        3,
        ("db1", "db2"),
        "ignore",
    )
    assert given["env"] == {"A": "1=2", "B": ""}
    assert options.args == ("--rate", "0.1")
    assert given.keys().isdisjoint({"python", "name", "deadline_s", "max_restarts", "start_timeout_s"})


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("profile A x  # the notebook's variable -o NAME", ["x"]),
        ("profile A x #y", ["x"]),
        ("profile A x#y '# z' \"#\" \\# w", ["x#y", "# z", "#", "#", "w"]),
        ("profile A 'it''s # y' x # y", ["its # y", "x"]),
    ],
)
def test_a_comment_is_no_word(line, columns):
    assert parse_line(line).columns == columns


@pytest.mark.parametrize(
    ("line", "args", "job"),
    [
        ("start MNIST -- a b", ("a", "b"), []),
        ("start --workers 2 MNIST -- a b", ("a", "b"), []),
        ("start MNIST --workers 2 -- a b", ("a", "b"), []),
        ("start MNIST -- --workers 2 -- b", ("--workers", "2", "--", "b"), []),
        ("start MNIST --", (), []),
        ("start MNIST . cat -- a", (), [".", "cat", "--", "a"]),
        ("start -- MNIST . cat", (), [".", "cat"]),
        ("start MNIST", (), []),
        ("start -- MNIST", (), []),
    ],
)
def test_words_behind_two_dashes_are_the_scripts(line, args, job):
    options = parse_line(line)
    assert (options.cache, options.args, options.job) == ("MNIST", args, job)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("resume", "required: RUN\nusage: %ignite_tf resume"),
        ("frob", "there is no command frob; help lists them: %ignite_tf --help\nusage: %ignite_tf"),
        ("strat MNIST", "there is no command strat; did you mean start?"),
        ("fs lls", "there is no command lls; did you mean ls?"),
        ("start MNIST --worker-s 2", "there is no option --worker-s; did you mean --workers?"),
        ("stop run --forec=1", "there is no option --forec; help lists them: %ignite_tf stop --help"),
        ("stop run other", "unexpected words: other\nusage: %ignite_tf stop"),
        ("logs run --lines -1", "'-1' is not a whole number"),
        (
            "prune --older-than 99999999999",
            "'99999999999' is not a number of days from 0 up (1000000 at most)",
        ),
        ("prune --keep 99999999999", "is not a whole number from 0 up (1000000000 at most)"),
        ("start MNIST --workers " + "9" * 5000, "is not a whole number from 1 up (1000000000 at most)"),
        ("start MNIST --deadline 1e300", "'1e300' is not a number of seconds above 0 (1000000000 at most)"),
        ("tensorboard --port 65536", "'65536' is not a port from 1 up (65535 at most)"),
        ("prune --keep few", "'few' is not a whole number"),
        ("start MNIST --workers 0", "'0' is not a whole number from 1 up"),
        ("start MNIST --deadline never", "'never' is not a number of seconds above 0"),
        ("stop 'run", "the line cannot be read"),
    ],
)
def test_errors_show_the_usage(line, words):
    with pytest.raises(ConfigError) as error:
        parse_line(line)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("line", "statement", "given"),
    [
        (
            "-c a.toml --via far --json SELECT 1",
            "SELECT 1",
            {"config": Path("a.toml"), "via": "far", "json": True},
        ),
        ("-o x --limit=0 SELECT '-c y' -- --json", "SELECT '-c y' -- --json", {"output": "x", "limit": 0}),
        ("--json", "SELECT 2", {"json": True}),
        ("-- a comment", "-- a comment\nSELECT 2", {}),
        ("--to arrow SELECT 1; ; SELECT ';'", ["SELECT 1", "SELECT ';'"], {"to": "arrow"}),
    ],
)
def test_sql_has_the_options_of_the_command_in_front_of_its_text(line, statement, given):
    options = parse_sql_magic(line, None if "SELECT" in line else "SELECT 2;\n")
    plain = {
        "config": None,
        "via": None,
        "json": False,
        "output": None,
        "limit": 1000,
        "to": "pandas",
        "engine": None,
    }
    assert options is not None
    statements = [statement] if isinstance(statement, str) else statement
    assert vars(options) == {**plain, **given, "statements": statements}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--limt 2", "unknown option --limt; did you mean --limit?"),
        ("-x SELECT 1", "unknown option -x"),
        ("--comment without a space", "a comment: -- text"),
        ("--to excel SELECT 1", "excel"),
        ("-- nothing else", "no SQL statement"),
    ],
)
def test_options_of_sql_that_there_are_not_are_refused(line, words):
    with pytest.raises(ConfigError) as error:
        parse_sql_magic(line, None if "SELECT" in line or "nothing" in line else "SELECT 2")
    assert words in str(error.value)
