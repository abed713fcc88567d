"""The magics `%ignite_tf`, `%%ignite_tf start` and `%%ignite_sql`, which run commands and show their outcome.

Only the magics shorten this package's errors to messages; callers of `session` get exceptions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ignite_tf_magic.errors import ConfigError, IgniteTfError, RunFailed, with_its_extra
from ignite_tf_magic.serialization.terminal_text import visible
from ignite_tf_magic.session import QueryResult, left_runs
from ignite_tf_magic.session.registration import register_on_import
from ignite_tf_magic.ui.commands.data import run_statements
from ignite_tf_magic.ui.commands.table import commands
from ignite_tf_magic.ui.notebook.arguments import NAME, parse_line
from ignite_tf_magic.ui.notebook.completion import register_completion
from ignite_tf_magic.ui.notebook.kernel_end import let_go_at_shutdown
from ignite_tf_magic.ui.notebook.run_widget import prepare_widgets
from ignite_tf_magic.ui.notebook.screen import NotebookScreen, say, this_kernel
from ignite_tf_magic.ui.notebook.sql import USAGE as SQL_USAGE
from ignite_tf_magic.ui.notebook.sql import bind_names, parse_sql_magic


def load_ipython_extension(ipython: Any) -> None:
    """Register the magics; called by `%load_ext ignite_tf_magic`."""
    register_on_import()
    magics = IgniteMagics(ipython)
    ipython.register_magic_function(magics.ignite_tf, "line_cell", "ignite_tf")
    ipython.register_magic_function(magics.ignite_sql, "line_cell", "ignite_sql")
    register_completion(ipython)
    let_go_at_shutdown(this_kernel())
    threading.Thread(target=_import_ahead, name="ignite-tf-imports", daemon=True).start()
    for info in left_runs():
        say(f"run {info.id}: {info.waiting_for}")


def _import_ahead() -> None:
    """Import what the first `start` needs, so that it responds at once; `start` itself reports missing packages."""
    commands("start")
    with suppress(ImportError):
        prepare_widgets()


class IgniteMagics:
    """The magics of one IPython shell. They keep no state between calls."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def ignite_tf(self, line: str, cell: str | None = None) -> Any:
        """Train on an Ignite cluster; `%ignite_tf help` lists all commands."""
        with _short_errors():
            options = parse_line(line)
            if options is None:
                return None
            command = options.command
            if cell is not None and not hasattr(options, "cell"):
                raise ConfigError(f"%{NAME} {command.name} takes no cell; write {NAME} {command.name}")
            if cell is not None:
                options.cell = cell
            screen = NotebookScreen(self._shell.user_ns)
            command.act(options, screen)
            return screen.answer

    def ignite_sql(self, line: str, cell: str | None = None) -> Any:
        """Run a SQL statement; `%ignite_sql --help` shows the usage."""
        with _short_errors():
            options = parse_sql_magic(line, cell)
            if options is None:
                say(SQL_USAGE)
                return None
            screen = NotebookScreen(self._shell.user_ns)
            statements = [bind_names(each, self._shell.user_ns) for each in options.statements]

            def show(result: QueryResult, *, is_last: bool) -> None:
                names = ", ".join(column.name for column in result.columns)
                frame = getattr(result, f"to_{options.to}")()
                if is_last:
                    screen.keep(frame, options.output, f"{len(result):,} rows of {names}")
                else:
                    screen.display(frame)

            run_statements(statements, options, screen, show)
            return screen.answer

    # Do not let IPython expand braces: SQL values are bound as parameters instead.
    ignite_sql._ipython_magic_no_var_expand = True  # type: ignore[attr-defined]


@contextmanager
def _short_errors() -> Iterator[None]:
    """Make IPython show errors as short messages; a caller in Python still gets the exception."""
    try:
        yield
    except (IgniteTfError, KeyboardInterrupt) as error:
        said = (
            f"run {error.run_id} did not succeed; above is why"
            if isinstance(error, RunFailed)
            else str(error)
        )
        _show_as(error, said)
        raise
    except ModuleNotFoundError as error:
        if (told := with_its_extra(error, NAME)) is None:
            raise
        _show_as(told, str(told))
        raise told from error


def _show_as(error: BaseException, said: str) -> None:
    text = f"\x1b[31m{type(error).__name__}\x1b[0m{f': {visible(said)}' if said else ''}"
    setattr(error, "_render_traceback_", lambda: [text])  # noqa: B010  IPython's protocol
