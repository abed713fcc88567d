"""Shows a followed run in a widget: its state, buttons, an interactive chart, and its output by worker.

When the run ends or the person stops watching, a picture and the last lines replace the widget, so that a saved
notebook contains them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.session import RunState
from ignite_tf_magic.session.tensorboards import open_tensorboard
from ignite_tf_magic.ui.assets import joined, kept_chart
from ignite_tf_magic.ui.metrics_views import KEPT_POINTS, series_of
from ignite_tf_magic.ui.notebook.arguments import NAME
from ignite_tf_magic.ui.notebook.comms import beat, hear_while_busy
from ignite_tf_magic.ui.notebook.run_area import picture_of_training
from ignite_tf_magic.ui.notebook.sent_lines import SentLines
from ignite_tf_magic.ui.progress import Progress
from ignite_tf_magic.ui.render import state_colour, where_it_runs
from ignite_tf_magic.ui.run_html import RunPicture

if TYPE_CHECKING:
    from ignite_tf_magic.session import TrainingRecord, TrainingRun
    from ignite_tf_magic.ui.live_output import LiveOutput

_SEND_INTERVAL_S = 0.2
_TICK_S = 1.0
_MOST_KEPT_OPEN = 3
_STOPPABLE = {RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.RESTARTING}
# Environment variables of Jupyter's servers, VS Code, Colab, Kaggle and Databricks.
_TRACES = (
    *("JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD", "COLAB_RELEASE_TAG"),
    *("KAGGLE_KERNEL_RUN_TYPE", "DATABRICKS_RUNTIME_VERSION"),
)
_ERRORS = (IgniteTfError, OSError, ValueError)


def shows_widgets(kernel: Any) -> bool:
    """Return whether a person uses this kernel through a front end that draws widgets.

    Programs that run notebooks unattended, such as nbclient and papermill, do not allow input requests. Consoles allow
    them, but draw no widgets. Servers and editors with front ends that draw widgets set variables in the kernel's
    environment. IGNITE_TF_VIEW=widget or text overrides these rules; widgets always need anywidget.
    """
    wanted = os.environ.get("IGNITE_TF_VIEW", "")
    if find_spec("anywidget") is None or wanted == "text":
        return False
    is_drawn = any(name in os.environ for name in _TRACES)
    return wanted == "widget" or (is_drawn and bool(getattr(kernel, "_allow_stdin", False)))


def prepare_widgets() -> None:
    """Import the packages that a widget needs.

    Raises:
        ImportError: A package is not installed.
    """
    _widget_class()


@cache
def _widget_class() -> type[Any]:
    import anywidget
    import traitlets

    class RunWidget(anywidget.AnyWidget):
        """The widget that the front end draws."""

        _esm = joined("uPlot.iife.min.js", "chart.js", "ansi.js", "connection.js", "run_view.js")
        _css = joined("uPlot.min.css", "run_view.css")
        state = traitlets.Dict().tag(sync=True)
        series = traitlets.Dict().tag(sync=True)
        tail = traitlets.Dict().tag(sync=True)

        def __repr__(self) -> str:  # the text in a notebook that is saved during the run
            return f"output of a run; {NAME} ps lists runs, {NAME} attach RUN shows one"

    return RunWidget


_ended: deque[Any] = deque()


def _keep_open(widget: Any) -> None:
    """Keep the widget of an ended run open for a reloaded page, which cannot update displays from before.

    JupyterLab's page learns of its widgets when the cell has ended. Closes all but the last three such widgets, because
    a page requests the state of all open ones.
    """
    _ended.append(widget)
    while len(_ended) > _MOST_KEPT_OPEN:
        _ended.popleft().close()


class WidgetRunView:
    """The widget of one cell. Its buttons act in the thread in which the kernel handles a click."""

    tells_where = tells_failures_once = is_rewritable = True

    def __init__(self, kernel: Any, *, with_chart: bool) -> None:
        from IPython.display import display

        self.is_left = False
        self._with_chart = with_chart
        self._run: TrainingRun | None = None
        # Without subshells, the kernel handles a click only after the cell has ended, when it is useless.
        self._state: dict[str, Any] = {
            "hears": bool(getattr(kernel, "_supports_kernel_subshells", False)),
            "run": "",
            "words": "starting",
            "colour": state_colour(RunState.STARTING),
            "live": True,
            "can_leave": True,
        }
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._lines = SentLines()
        self._num_sent = self._num_synced = 0
        self._sent_at = float("-inf")
        self._widget = _widget_class()(state=self._state, series={}, tail=self._lines.tail())
        self._handle = display(self._widget, display_id=True)  # first: shows something at once
        self._widget.on_msg(self._heard)
        hear_while_busy(self._widget)
        beat(self._widget, self._ended)

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Show `words` with the elapsed seconds until the block ends."""
        done, began = threading.Event(), time.monotonic()

        def tick() -> None:
            while True:
                self._set(words=f"{words}, {time.monotonic() - began:.0f} s")
                if done.wait(_TICK_S):
                    return

        ticking = threading.Thread(target=tick, name="ignite-tf-busy", daemon=True)
        ticking.start()
        is_well = False
        try:
            yield
            is_well = True
        finally:
            done.set()
            ticking.join()
            if not is_well:  # there is no run; the error appears below
                self._keep(Progress("not started", None, RunState.FAILED), [])

    def keep_watching(self) -> None:
        """Do not let the person stop watching before the run has ended."""
        self._set(can_leave=False)

    def begin(self, run: TrainingRun) -> None:
        """Set the run, and show its id, workers, hosts and cache."""
        self._run = run
        self._set(run=f"run {run.id}", note=where_it_runs(run.info()))

    def write(self, output: LiveOutput) -> None:
        """Send new output at most five times a second; if it is too much, the last lines."""
        now = time.monotonic()
        if now - self._sent_at < _SEND_INTERVAL_S:
            return
        self._sent_at = now
        self._send(output)

    def show(self, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Show the progress of the run and the chart of its training."""
        self._set(
            words=progress.words,
            share=progress.share,
            colour=state_colour(progress.state),
            can_stop=progress.state in _STOPPABLE,
        )
        self._sync_tail()
        if self._with_chart and len(records) != self._num_sent:
            self._num_sent = len(records)
            self._widget.series = series_of([("", records)])

    def close(self, output: LiveOutput, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        """Replace the widget by a picture."""
        output.end_lines()
        self._send(output)
        self._keep(progress, records)

    def _keep(self, progress: Progress, records: Sequence[TrainingRecord]) -> None:
        title = f"run {self._run.id}" if self._run else ""
        whole = f"{NAME} logs {self._run.id} --all" if self._run else ""
        png = picture_of_training(records) if self._with_chart else None
        chart = kept_chart(series_of([("", records)], KEPT_POINTS)) if png else ""
        picture = RunPicture(title, progress, png, chart, self._lines.last, self._lines.num_lines, whole)
        self._handle.update(picture.bundle(), raw=True)
        self._show_end(progress)
        self._ended.set()
        _keep_open(self._widget)

    def _show_end(self, progress: Progress) -> None:
        note = ""
        if self._run is not None and not progress.state.has_ended:
            note = f"no longer watching: {NAME} attach {self._run.id} shows the run again"
        self._sync_tail()
        self._set(
            words=progress.words,
            share=progress.share,
            colour=state_colour(progress.state),
            live=False,
            note=note,
        )

    def _send(self, output: LiveOutput) -> None:
        lines, last = output.take_lines()
        self._widget.send({"kind": "output", "last": last, **self._lines.take(lines, output)})

    def _sync_tail(self) -> None:
        """Sync the last lines for front ends that redraw the widget, or draw it after the first lines."""
        if self._num_synced != self._lines.num_lines:
            self._num_synced = self._lines.num_lines
            self._widget.tail = self._lines.tail()

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._state = {**self._state, **changes}
            self._widget.state = self._state

    def _heard(self, _: Any, message: Any, __: Any) -> None:
        if self._run is not None and isinstance(message, dict):
            self._act(str(message.get("action")))

    def _act(self, action: str) -> None:
        acts: dict[str, Callable[[], None]] = {
            "stop": self._stop,
            "detach": self._leave,
            "tensorboard": self._open_board,
        }
        try:
            if action in acts:
                acts[action]()
        except _ERRORS as error:
            self._set(note=str(error))

    def _stop(self) -> None:
        if self._run is not None:
            self._set(note="stopping ...")
            self._run.stop()

    def _leave(self) -> None:
        self.is_left = True

    def _open_board(self) -> None:
        if self._run is not None:
            self._set(note="starting TensorBoard ...")
            board = open_tensorboard([self._run.id], report=lambda line: self._set(note=line))
            self._set(note="TensorBoard:", url=board.url)
