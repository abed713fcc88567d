"""A widget: the runs of this machine and of the cluster, with a button to stop each. It keeps itself up to date."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from typing import Any

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.session import RunInfo, RunState, list_runs, stop_run
from ignite_tf_magic.ui.render import duration_text, state_html

_INTERVAL_S = 2.0
_IDLE_INTERVAL_S = 5.0  # while no run is live; one may be started elsewhere
_MAX_ENDED = 30
_HEADS = ["Run", "State", "Cache", "Workers", "Duration"]
_COLUMNS = "minmax(12em,2fr) 8em minmax(6em,1fr) 5em 6em"
_FILL = {"flex": "1 1 auto", "width": "auto", "margin": "2px 2px 2px 10px"}
_BUTTON_WIDTH = "5.5em"
_UNSTOPPABLE = {RunState.FINISHING, RunState.STOPPING, RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}
# What can go wrong with files that other processes write and remove.
_ERRORS = (IgniteTfError, OSError, ValueError)


def runs_panel() -> Any:
    """Build the widget: live runs, and those that it has seen live.

    A thread refreshes it, also while a cell runs, until the widget is closed or the kernel ends.
    """
    panel = _Panel()
    panel.refresh()
    threading.Thread(target=panel.keep_fresh, name="ignite-tf-panel", daemon=True).start()
    return panel.box


@dataclass(frozen=True, slots=True)
class _Row:
    """The widgets of one run."""

    box: Any
    button: Any
    text: Any

    def show(self, run: RunInfo, now: datetime) -> None:
        """Take over what changed; widgets send nothing where nothing did."""
        texts = [run.cache, str(run.num_workers), duration_text(run, now)]
        cells = [escape(run.id), state_html(run), *map(escape, texts)]
        self.button.disabled = run.state in _UNSTOPPABLE
        # Of a lost run only what may be left is ended, and its end is written down.
        self.button.description = "Clear" if run.state is RunState.LOST else "Stop"
        self.button.button_style = "" if self.button.disabled else "danger"
        self.text.value = _grid(cells)

    def close(self) -> None:
        """Take the widgets out of the page."""
        for widget in (self.text, self.button, self.box):
            widget.close()


class _Panel:
    """The panel's widgets. The thread and the buttons' handlers both change them, one at a time."""

    def __init__(self) -> None:
        import ipywidgets as widgets

        self._widgets = widgets
        self._lock = threading.Lock()
        self._rows: dict[str, _Row] = {}
        self._seen_live: set[str] = set()
        layout = widgets.Layout
        refresh = widgets.Button(description="Refresh", icon="refresh", layout=layout(width="auto"))
        refresh.on_click(self.refresh)
        self._with_ended = widgets.Checkbox(
            description="with ended runs", indent=False, layout=layout(width="auto", margin="2px 12px")
        )
        self._with_ended.observe(self.refresh, names="value")
        corner = widgets.Label(layout=layout(width=_BUTTON_WIDTH))
        heads = widgets.HTML(_grid(_HEADS, "font-weight:bold"), layout=layout(**_FILL))
        self._head = widgets.HBox([corner, heads])
        self._nothing = widgets.Label("No run is live. A cell starts one: %%ignite_tf start CACHE")
        self._list = widgets.VBox()
        self._outcome = widgets.Label(layout=layout(height="auto"))
        self._trouble = widgets.Label(layout=layout(height="auto"))
        parts = [widgets.HBox([refresh, self._with_ended]), self._list, self._outcome, self._trouble]
        self.box = widgets.VBox(parts, layout=layout(max_width="900px"))
        self._closed = threading.Event()
        self.box.observe(lambda _: self._closed.set(), names="comm")  # closing a widget takes its comm away

    def keep_fresh(self) -> None:
        """Refresh until the widget is closed."""
        any_live = True
        while not self._closed.wait(_INTERVAL_S if any_live else _IDLE_INTERVAL_S):
            any_live = self.refresh()

    def refresh(self, _: Any = None) -> bool:
        """Show the runs as they are now; tells whether any is live."""
        with self._lock:
            try:
                runs = list_runs(include_ended=True).runs
            except _ERRORS as error:
                self._trouble.value = f"the runs cannot be listed: {error}"
                return False
            self._trouble.value = ""
            live = {run.id for run in runs if not run.state.has_ended}
            self._seen_live |= live
            ended = (
                [run for run in runs if run.state.has_ended][-_MAX_ENDED:] if self._with_ended.value else []
            )
            shown = self._seen_live | {run.id for run in ended}
            self._show([run for run in reversed(runs) if run.id in shown])
            return bool(live)

    def _show(self, runs: Sequence[RunInfo]) -> None:
        now = datetime.now(timezone.utc)
        before = self._rows
        self._rows = {run.id: before.get(run.id) or self._new_row(run.id) for run in runs}
        for run in runs:
            self._rows[run.id].show(run, now)
        rows = [self._head, *(row.box for row in self._rows.values())]
        self._list.children = rows if runs else [self._nothing]
        for gone in before.keys() - self._rows.keys():
            before[gone].close()

    def _new_row(self, run_id: str) -> _Row:
        widgets = self._widgets
        # A busy kernel hears of a click when its cell has ended.
        button = widgets.Button(
            description="Stop",
            icon="stop",
            tooltip="End this run. While a cell of this notebook is busy, stop it from another notebook.",
            layout=widgets.Layout(width=_BUTTON_WIDTH),
        )
        button.on_click(lambda clicked: self._stop(clicked, run_id))
        text = widgets.HTML(layout=widgets.Layout(**_FILL))
        return _Row(widgets.HBox([button, text]), button, text)

    def _stop(self, button: Any, run_id: str) -> None:
        button.disabled = True
        self._outcome.value = f"{run_id}: stopping ..."
        try:
            self._outcome.value = f"{run_id}: {stop_run(run_id).kind.value}"
        except _ERRORS as error:
            self._outcome.value = f"{run_id} cannot be stopped: {error}"
        self.refresh()


def _grid(cells: Sequence[str], style: str = "") -> str:
    """Lay out one line of the table; the cells are HTML."""
    columns = "".join(f'<span style="overflow-wrap:anywhere">{cell}</span>' for cell in cells)
    return (
        f'<div style="display:grid;grid-template-columns:{_COLUMNS};column-gap:12px;line-height:28px;{style}">'
        f"{columns}</div>"
    )
