"""Tests that each command's help has an example, and that each example parses."""

from __future__ import annotations

import shlex

import pytest

from ignite_tf_magic.ui.commands.command import CommandParser
from ignite_tf_magic.ui.commands.table import commands, make_parser, read_command
from ignite_tf_magic.ui.notebook.arguments import parse_line

COMMANDS, _ = commands()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_an_example_is_in_the_help_and_is_read(command, capsys):
    assert parse_line(f"{command.name} --help") is None
    shown = capsys.readouterr().out
    for example in command.example.splitlines() or [""]:
        line = f"{command.name} {example}".strip()
        assert f"\n  %ignite_tf {line}\n" in shown
        words = shlex.split(line)
        options = read_command(make_parser(CommandParser, "ignite-tf", words), words)
        assert options.command.name == command.name
        assert len(words) > 1 or not example


def test_a_command_that_has_arguments_has_an_example_with_some():
    for command in COMMANDS:
        parser = CommandParser(add_help=False)
        command.add_arguments(parser)
        needed = [
            each for each in parser._actions if not each.option_strings and each.nargs not in ("?", "*")
        ]
        assert command.example or not needed, command.name
