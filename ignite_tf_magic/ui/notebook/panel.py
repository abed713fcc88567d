"""A widget that shows runs, nodes and caches, and stays up to date even while a cell is busy."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from functools import cache
from typing import Any

from ignite_tf_magic.errors import ConfigError, IgniteTfError
from ignite_tf_magic.session import PanelFeed
from ignite_tf_magic.ui.assets import joined
from ignite_tf_magic.ui.notebook.arguments import NAME
from ignite_tf_magic.ui.notebook.comms import beat, hear_while_busy
from ignite_tf_magic.ui.panel_actions import act
from ignite_tf_magic.ui.panel_views import panel_as_json

_INTERVAL_S = 2.0
_IDLE_INTERVAL_S = 5.0  # while no run is live; another process may start one
# Errors of files that other processes write and remove.
_ERRORS = (IgniteTfError, OSError, ValueError)


def runs_panel() -> Any:
    """Create the panel's widget.

    A thread refreshes it until the widget is closed or the kernel ends.

    Raises:
        ConfigError: The package anywidget is not installed.
    """
    panel = _Panel()
    panel.refresh()
    threading.Thread(target=panel.keep_fresh, name="ignite-tf-panel", daemon=True).start()
    return panel.widget


@cache
def _widget_class() -> type[Any]:
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ConfigError(
            "the panel needs the package anywidget: pip install 'ignite_tf_magic[notebook]'"
        ) from error

    class PanelWidget(anywidget.AnyWidget):
        """The widget that the front end draws."""

        _esm = joined("connection.js", "panel.js", "panel_widget.js")
        _css = joined("run_view.css", "panel.css")
        seen = traitlets.Dict().tag(sync=True)
        told = traitlets.Dict().tag(sync=True)

        def __repr__(self) -> str:  # the text in a saved notebook
            return f"the runs' panel; {NAME} panel shows it"

    return PanelWidget


# All panels of this process share one feed. It disconnects when the last panel is closed.
_feed = cache(PanelFeed)
_open: set[_Panel] = set()
_open_lock = threading.Lock()


class _Panel:
    """A widget and the code that refreshes it. A lock separates refreshes by the thread and by clicks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.widget = _widget_class()(seen={}, told={})
        self.widget.on_msg(self._heard)
        self.widget.observe(lambda _: self._closed.set(), names="comm")  # closing a widget removes its comm
        hear_while_busy(self.widget)
        beat(self.widget, self._closed)

    def keep_fresh(self) -> None:
        """Refresh until the widget is closed."""
        any_live = True
        with _open_lock:
            _open.add(self)
        try:
            while not self._closed.wait(_INTERVAL_S if any_live else _IDLE_INTERVAL_S):
                any_live = self.refresh(_INTERVAL_S / 2)
        finally:
            with _open_lock:
                _open.discard(self)
                if not _open:
                    _feed().close()

    def refresh(self, max_age_s: float = 0.0) -> bool:
        """Show data that is at most `max_age_s` old, and return whether any run is live."""
        with self._lock:
            now = datetime.now(timezone.utc)
            try:
                seen = panel_as_json(_feed().look(max_age_s), now)
            except _ERRORS as error:
                seen = {**self.widget.seen, "runs": self.widget.seen.get("runs", []), "trouble": str(error)}
            self.widget.seen = seen
            return any(run["live"] for run in seen["runs"])

    def _heard(self, _: Any, message: Any, __: Any) -> None:
        if not isinstance(message, dict):
            return
        action, about = str(message.get("action")), str(message.get("about"))
        if action != "close":
            self.widget.told = {
                **self.widget.told,
                "note": str(message.get("note") or f"{action} {about} ..."),
            }
        # Keep the form open for another draft.
        form = {"form": self.widget.told.get("form")} if action == "draft" else {}
        self.widget.told = form | act(action, about, NAME)
        if not self._closed.is_set():
            self.refresh()
