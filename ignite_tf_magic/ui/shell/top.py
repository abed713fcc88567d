"""`ignite-tf top`: shows the runs of a notebook's panel in a terminal, and a line about nodes and caches."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from functools import partial
from typing import Any

from ignite_tf_magic import session
from ignite_tf_magic.errors import ConfigError, IgniteTfError
from ignite_tf_magic.serialization.terminal_text import plain, visible_line
from ignite_tf_magic.ui.panel_actions import act
from ignite_tf_magic.ui.panel_views import panel_as_json

_INTERVAL_S = 2.0
_BARS = " ▁▂▃▄▅▆▇█"
_SPARK_CHARS = 12
_HEADS = ("run", "state", "progress", "metric", "", "workers", "duration", "cache")


def make_app(command_name: str, feed: session.PanelFeed | None = None) -> Any:
    """Create the textual application; its `run` shows it until the person quits.

    Args:
        command_name: How a person types our command.
        feed: The source of the data; by default that of the configured cluster. The application closes it.

    Raises:
        ConfigError: The package textual is not installed.
    """
    try:
        from rich.text import Text
        from textual.app import App, ComposeResult
        from textual.binding import Binding
        from textual.containers import VerticalScroll
        from textual.widgets import DataTable, Footer, Header, Input, Static
        from textual.worker import get_current_worker
    except ImportError as error:
        raise ConfigError("top needs the package textual: pip install 'ignite_tf_magic[top]'") from error

    class TopApp(App[None]):
        """A table of runs, with details of one run below."""

        TITLE = "ignite-tf"
        CSS = """
        #runs { height: 1fr; }
        #cluster { height: auto; color: $text-muted; padding: 0 1; }
        #detail { height: auto; max-height: 50%; border-top: solid $primary; padding: 0 1; }
        #search { display: none; }
        #search.shown { display: block; }
        """
        BINDINGS = [  # noqa: RUF012 - textual's protocol
            Binding("s", "stop", "Stop"),
            Binding("l", "about('logs')", "Logs"),
            Binding("d", "about('describe')", "Describe"),
            Binding("b", "about('tensorboard')", "TensorBoard"),
            Binding("e", "ended", "Ended runs"),
            Binding("slash", "search", "Search"),
            Binding("escape", "leave", "Back", show=False),
            Binding("q", "quit", "Quit"),
        ]

        def __init__(self) -> None:
            super().__init__()
            self._feed = feed or session.PanelFeed()
            self._seen: dict[str, Any] = {}
            self._with_ended = False
            self._asked = ""
            self._is_looking = False

        def compose(self) -> ComposeResult:
            """Create the widgets."""
            yield Header(show_clock=True)
            yield Input(placeholder="search", id="search")
            yield DataTable(id="runs", cursor_type="row")
            yield Static(id="cluster", markup=False)
            with VerticalScroll(id="detail"):
                yield Static(id="told", markup=False)
            yield Footer()

        def on_mount(self) -> None:
            """Start to refresh the table."""
            self.query_one(DataTable).add_columns(*_HEADS)
            self.query_one(DataTable).focus()
            self.look()
            self.set_interval(_INTERVAL_S, self.look)

        def on_unmount(self) -> None:
            """Close the feed in a thread, which waits for a running refresh."""
            threading.Thread(target=self._feed.close, daemon=True).start()

        def look(self) -> None:
            """Refresh in a thread, because a cluster may answer slowly; do nothing if a refresh runs already."""
            if not self._is_looking:
                self._is_looking = True
                self.run_worker(self._look, thread=True, group="look", exit_on_error=False)

        def _look(self) -> None:
            worker = get_current_worker()
            try:
                seen = panel_as_json(self._feed.look(), datetime.now(timezone.utc))
            except (IgniteTfError, OSError, ValueError) as error:
                seen = {**self._seen, "trouble": str(error)}
            finally:
                self._is_looking = False
            if not worker.is_cancelled:
                self.call_from_thread(self._show, seen)

        def _show(self, seen: dict[str, Any]) -> None:
            self._seen = seen
            table = self.query_one(DataTable)
            chosen = self._chosen()
            table.clear()
            wanted = self.query_one("#search", Input).value.lower()
            for run in seen.get("runs", []):
                text = " ".join([run["id"], run["cache"], run["state"], *run["tags"]]).lower()
                if (run["live"] or self._with_ended) and wanted in text:
                    table.add_row(*map(Text, _cells(run)), key=run["id"])
                    if run["id"] == chosen:
                        table.move_cursor(row=table.row_count - 1)
            self.query_one("#cluster", Static).update(_cluster_line(seen))

        def _chosen(self) -> str:
            table = self.query_one(DataTable)
            if not table.row_count:
                return ""
            return str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)

        def action_stop(self) -> None:
            """Ask for a second key press, then stop the run."""
            run_id = self._chosen()
            if not run_id:
                return
            if self._asked != run_id:
                self._asked = run_id
                self._tell({"note": f"press s again to end run {run_id}"})
                return
            self._asked = ""
            self.action_about("stop")

        def action_about(self, action: str) -> None:
            """Perform an action on the run under the cursor, and show the answer below."""
            if run_id := self._chosen():
                self._tell({"note": f"{action} {run_id} ..."})
                done = partial(self._act, action, run_id)
                self.run_worker(done, thread=True, exclusive=True, group="act", exit_on_error=False)

        def _act(self, action: str, run_id: str) -> None:
            self.call_from_thread(self._tell, act(action, run_id, command_name))
            self.call_from_thread(self.look)

        def _tell(self, told: dict[str, Any]) -> None:
            text = "\n".join(filter(None, [told.get("note"), told.get("url"), told.get("detail")]))
            self.query_one("#told", Static).update(plain(text))

        def action_ended(self) -> None:
            """Show or hide runs that have ended."""
            self._with_ended = not self._with_ended
            self._show(self._seen)

        def action_search(self) -> None:
            """Open the search field."""
            search = self.query_one("#search", Input)
            search.add_class("shown")
            search.focus()

        def action_leave(self) -> None:
            """Close the search field and the details."""
            search = self.query_one("#search", Input)
            search.value = ""
            search.remove_class("shown")
            self._asked = ""
            self._tell({})
            self.query_one(DataTable).focus()

        def on_input_changed(self, _: Input.Changed) -> None:
            """Show the runs that match the search."""
            if self._seen:
                self._show(self._seen)

        def on_input_submitted(self, _: Input.Submitted) -> None:
            """Move the focus to the table."""
            self.query_one(DataTable).focus()

    return TopApp()


def _cells(run: dict[str, Any]) -> list[str]:
    words = run["words"] if run["live"] else run["state_text"]
    told = f"{run['metric']} {run['last']}".strip()
    where = f"{run['workers']} on {', '.join(run['hosts'])}"
    found = [run["id"], run["state"], words, told, spark(run["spark"]), where, run["duration"], run["cache"]]
    return [visible_line(cell) for cell in found]


def spark(values: list[float]) -> str:
    """Draw values as a sparkline of block characters."""
    if len(values) < 2:
        return ""
    shown = [values[round(place * (len(values) - 1) / (_SPARK_CHARS - 1))] for place in range(_SPARK_CHARS)]
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    return "".join(_BARS[1 + round((len(_BARS) - 2) * (value - low) / span)] for value in shown)


def _cluster_line(seen: dict[str, Any]) -> str:
    if seen.get("trouble"):
        return f"the cluster does not answer: {visible_line(seen['trouble'])}"
    if not seen.get("cluster"):
        return "no cluster yet: Ignite nodes are started on this machine when they are needed"
    nodes = ", ".join(f"{node['name']} {node['memory']}".strip() for node in seen["nodes"])
    num_nodes, num_caches = len(seen["nodes"]), len(seen["caches"])
    return f"{num_nodes} node{'s' * (num_nodes != 1)}: {nodes}; {num_caches} cache{'s' * (num_caches != 1)}"
