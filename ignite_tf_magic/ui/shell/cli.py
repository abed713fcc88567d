"""The program `ignite-tf`: parses the arguments, runs the command, and prints its answer.

Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted. `start`, `attach` and `resume` return that of the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from ignite_tf_magic.errors import IgniteTfError, RunFailed, with_its_extra
from ignite_tf_magic.serialization.terminal_text import echo
from ignite_tf_magic.ui.commands.command import CommandParser
from ignite_tf_magic.ui.commands.table import make_parser, read_command
from ignite_tf_magic.ui.shell.completion import complete
from ignite_tf_magic.ui.shell.screen import ShellScreen

NAME = "ignite-tf"
_LOST = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code. Prints errors as short messages on standard error."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["completion"]:
        return complete(words[1:])
    options = read_command(make_parser(CommandParser, NAME, words), words)
    if options is None:
        return 0
    try:
        code = options.command.act(options, ShellScreen(_own_name()))
        sys.stdout.flush()
    except RunFailed as failed:  # the failure has already been shown
        return _LOST if failed.exit_code is None else failed.exit_code
    except IgniteTfError as error:
        echo(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (told := with_its_extra(error, f"{NAME} {options.command.name}")) is None:
            raise
        echo(f"error: {told}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        echo("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as in `ignite-tf logs RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code or 0


def _own_name() -> str:
    """Return how a person can type this command: by its name if PATH has it, or else by its path."""
    path = Path(sys.argv[0])
    return NAME if which(NAME) or path.name != NAME else os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
