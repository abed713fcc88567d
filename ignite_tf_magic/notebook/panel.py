"""A small widget: the runs of this machine with a button to stop each."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.notebook.render import duration_text, state_text
from ignite_tf_magic.session import RunInfo, list_runs, stop_run


def runs_panel() -> Any:
    """Build the widget. It shows what it finds when built, refreshed, or after a stop."""
    import ipywidgets as widgets

    rows = widgets.VBox()
    message = widgets.Label()
    refresh = widgets.Button(description="Refresh", icon="refresh")
    show_ended = widgets.Checkbox(description="also ended runs", indent=False)

    def fill(_: Any = None) -> None:
        found = list_runs(include_ended=show_ended.value)
        rows.children = [row(run) for run in reversed(found)] or [widgets.Label("No runs.")]

    def row(run: RunInfo) -> Any:
        text = (
            f"{run.id}   {state_text(run)}   {run.cache}   {duration_text(run, datetime.now(timezone.utc))}"
        )
        stop = widgets.Button(
            description="Stop", icon="stop", button_style="danger", disabled=run.state.has_ended
        )
        stop.on_click(lambda _: end(run))
        return widgets.HBox([stop, widgets.Label(text)])

    def end(run: RunInfo) -> None:
        try:
            message.value = f"{run.id}: {stop_run(run.id).kind.value}"
        except IgniteTfError as error:
            message.value = str(error)
        fill()

    refresh.on_click(fill)
    show_ended.observe(fill, names="value")
    fill()
    return widgets.VBox([widgets.HBox([refresh, show_ended]), rows, message])
