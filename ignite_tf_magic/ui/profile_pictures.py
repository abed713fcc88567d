"""Draws the profile of a cache: class counts of columns with few distinct values, and histograms of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ignite_tf_magic.ui.cache_views import short_text
from ignite_tf_magic.ui.pictures import png_of
from ignite_tf_magic.ui.profile_views import number_text

if TYPE_CHECKING:
    from ignite_tf_magic.session import CacheProfile, ColumnProfile

_MAX_PANELS, _PANELS_IN_ROW = 24, 4
_WIDTH_IN, _HEIGHT_IN = 2.5, 1.9
_DATES = ("date", "timestamp")
_MAX_LABEL_CHARS, _MAX_UPRIGHT_LABELS = 12, 6


def picture_of_profile(profile: CacheProfile) -> bytes | None:
    """Draw the columns as a PNG; None without matplotlib, or if there is nothing to draw."""
    try:
        import matplotlib
    except ImportError:
        return None
    columns = [each for each in profile.columns if each.histogram or each.classes][:_MAX_PANELS]
    if not columns:
        return None
    # Names and values come from others: do not parse them as formulas or TeX.
    with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
        return _picture(columns)


def _picture(columns: list[ColumnProfile]) -> bytes:
    from matplotlib.figure import Figure

    num_in_row = min(_PANELS_IN_ROW, len(columns))
    num_rows = -(-len(columns) // num_in_row)
    figure = Figure(figsize=(_WIDTH_IN * num_in_row, _HEIGHT_IN * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, num_in_row, squeeze=False).ravel()
    for axes, column in zip(panels, columns, strict=False):
        _draw(axes, column)
    for axes in panels[len(columns) :]:
        axes.set_axis_off()
    return png_of(figure)


def _draw(axes: Any, column: ColumnProfile) -> None:
    if column.classes:
        _draw_classes(axes, column)
    elif column.histogram:
        _draw_histogram(axes, column)
    mark = "~ " if {"histogram", "classes"} & column.estimated else ""
    axes.set_title(f"{mark}{short_text(column.name)}", fontsize=9)
    axes.tick_params(labelsize=7)
    axes.margins(x=0.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.get_major_locator().set_params(nbins=4, integer=True)


def _draw_classes(axes: Any, column: ColumnProfile) -> None:
    places = range(len(column.classes))
    axes.bar(places, [each.count for each in column.classes], color="C0")
    labels = [short_text(each.value)[:_MAX_LABEL_CHARS] for each in column.classes]
    are_short = len(labels) <= _MAX_UPRIGHT_LABELS or max(map(len, labels)) <= 1
    axes.set_xticks(places, labels, rotation=0 if are_short and max(map(len, labels)) <= 5 else 90)


def _draw_histogram(axes: Any, column: ColumnProfile) -> None:
    histogram = column.histogram
    if histogram is None:
        return
    edges = histogram.edges
    if column.kind in _DATES:
        numbers = [float(edge.astype("M8[us]").astype("i8")) for edge in edges]
    else:
        numbers = [float(edge) for edge in edges]
    if numbers[0] == numbers[-1]:
        axes.bar([0], histogram.counts, color="C0")
        axes.set_xticks([0], [number_text(edges[0])])
        return
    is_of_whole_numbers = isinstance(edges[0], int)
    axes.stairs(histogram.counts, [edge - is_of_whole_numbers / 2 for edge in numbers], fill=True, color="C0")
    if column.kind in _DATES:
        ends = (0, len(edges) // 2, len(edges) - 1)
        axes.set_xticks([numbers[end] for end in ends], _moment_labels([edges[end] for end in ends]))
    else:
        axes.xaxis.get_major_locator().set_params(nbins=4, integer=is_of_whole_numbers)


def _moment_labels(moments: list[Any]) -> list[str]:
    """Return labels with dates, and with the time of day on a second line if dates repeat."""
    texts = [number_text(moment) for moment in moments]
    is_short = len({text.partition(" ")[0] for text in texts}) < len(texts)
    return [text.replace(" ", "\n") if is_short else text.partition(" ")[0] for text in texts]
