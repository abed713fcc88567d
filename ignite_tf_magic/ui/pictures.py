"""Draws the loss and metrics of trainings over their steps, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ignite_tf_magic.session import TrainingRecord

_MAX_PANELS = 3
_DPI = 96
_GREY = "#808080"
_HEIGHT_IN, _WIDTH_IN = 2.6, 3.6


def picture_of(runs: Sequence[tuple[str, Sequence[TrainingRecord]]], title: str = "") -> bytes | None:
    """Draw trainings as a PNG, several in the same panels; None without matplotlib or without metrics.

    Args:
        runs: The label and the records of each run; the label of a single run may be empty.
        title: The title above all panels.
    """
    try:
        import matplotlib
    except ImportError:
        return None
    if not (names := _panels([record for _, records in runs for record in records])):
        return None
    # Scripts choose the names: do not parse them as formulas or TeX.
    with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
        return _picture(names, runs, title)


def _picture(names: Sequence[str], runs: Sequence[tuple[str, Sequence[TrainingRecord]]], title: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN * len(names), _HEIGHT_IN), layout="constrained")
    figure.patch.set_alpha(0)  # transparent, for light and dark pages
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for number, (label, records) in enumerate(runs):
            _draw_lines(axes, name, label, records, f"C{number}")
        _label(axes, name)
    figure.suptitle(title, fontsize=9, color=_GREY)
    return png_of(figure)


def png_of(figure: Any) -> bytes:
    """Return a matplotlib figure as a PNG; needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()


def _panels(records: Sequence[TrainingRecord]) -> list[str]:
    """Return the first metrics, one for each panel. A panel also shows the validation values of its metric."""
    names = dict.fromkeys(name for record in records for name in record.values)
    own = [name for name in names if not name.startswith("val_") and name not in ("learning_rate", "lr")]
    return own[:_MAX_PANELS]


def _draw_lines(axes: Any, name: str, label: str, records: Sequence[TrainingRecord], colour: str) -> None:
    own, validation = (
        [(each.step, each.values[kind]) for each in records if kind in each.values]
        for kind in (name, f"val_{name}")
    )
    if own:
        axes.plot(*zip(*own, strict=True), label=label or "training", color=colour, linewidth=1.4)
    if validation:
        steps = {"linestyle": "--", "marker": "o", "markersize": 3, "linewidth": 0.8}
        axes.plot(*zip(*validation, strict=True), label=f"{label} validation".strip(), color=colour, **steps)


def _label(axes: Any, name: str) -> None:
    axes.set_title(name, fontsize=9, color=_GREY)
    axes.set_xlabel("step", fontsize=8, color=_GREY)
    axes.tick_params(labelsize=8, colors=_GREY)
    axes.patch.set_alpha(0)
    for spine in axes.spines.values():
        spine.set_color(_GREY)
    axes.grid(visible=True, alpha=0.3, color=_GREY)
    if len(axes.get_lines()) > 1:
        axes.legend(fontsize=7, labelcolor=_GREY, facecolor="none", edgecolor=_GREY)
