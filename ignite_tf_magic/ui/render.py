"""Renders answers as text and HTML; a shell shows only the text. Pure: uses no IPython, clock, file or network."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.serialization.terminal_text import plain, visible, visible_line
from ignite_tf_magic.session import (
    Health,
    RunState,
)

if TYPE_CHECKING:
    from ignite_tf_magic.session import (
        CacheInfo,
        EmbeddedNode,
        Failure,
        Pruned,
        RunInfo,
    )
    from ignite_tf_magic.session.files import FileInfo, Usage
    from ignite_tf_magic.session.tensorboards import LogSource, TensorBoardInfo

# Colours of medium lightness, for light and dark pages. Text keeps the colour of the page.
_RED, _GREEN, _BLUE, _GREY, _AMBER = "#e53935", "#43a047", "#1e88e5", "#9e9e9e", "#fb8c00"
_STATE_COLOURS = {"succeeded": _GREEN, "failed": _RED, "failing": _RED, "lost": _RED, "stopped": _GREY}
_FONT = "font-size:var(--jp-ui-font-size1,13px);line-height:1.5"
_BARS = f"white-space:pre;font-family:monospace;color:{_BLUE}"
_MARGIN = "margin:6px 0 2px 0"
MARK_CHARS = 3


@dataclass(frozen=True, slots=True)
class View:
    """One thing to show, as text and as HTML."""

    text: str
    html: str

    def __post_init__(self) -> None:
        """Make terminal control codes in the text, which may come from others, harmless and visible."""
        object.__setattr__(self, "text", visible(self.text))

    def bundle(self) -> dict[str, str]:
        """Return the view as a MIME bundle for IPython's `display(..., raw=True)`."""
        return {"text/plain": self.text, "text/html": self.html}


def pruned_text(pruned: Sequence[Pruned], keep: int, *, dry_run: bool) -> str:
    """Return text that lists the runs that were removed, or would be, and what remains."""
    lines = [f"{run.run_id}  {run.num_bytes / 2**20:,.1f} MiB in igfs" for run in pruned]
    verb = "would be removed" if dry_run else "removed"
    return "\n".join(
        [
            *lines,
            f"{len(pruned)} run{'s' * (len(pruned) != 1)} {verb}; the newest {keep} of those that ended stay",
        ]
    )


def runs_view(runs: Sequence[RunInfo], now: datetime) -> View:
    """List runs in the given order."""
    if not runs:
        return message_view("No runs. The command that starts one: start CACHE")
    with_tags = any(run.tags for run in runs)
    head = ["Run", "State", "Cache", "Workers", "Started", "Duration", *["Tags"] * with_tags, "Hosts"]
    rows = [
        [
            run.id,
            state_text(run),
            run.cache,
            str(run.num_workers),
            f"{run.started_at.astimezone():%Y-%m-%d %H:%M}",
            duration_text(run, now),
            *[", ".join(run.tags)] * with_tags,
            ", ".join(run.hosts),
        ]
        for run in runs
    ]
    return table_view(head, rows, right={3, 5}, dots={1: [state_colour(run.state) for run in runs]})


def caches_view(caches: Sequence[CacheInfo]) -> View:
    """List caches with their sizes and SQL tables."""
    if not caches:
        return message_view("This cluster has no caches. Load one: ignite-tf load DIGITS digits")
    head = ["Cache", "Rows", "Mode", "Backups", "SQL table"]
    rows = [
        [
            cache.name,
            f"{cache.rows:,}"
            if cache.expected_rows is None
            else f"{cache.rows:,} of {cache.expected_rows:,}",
            cache.mode,
            str(cache.backups) if cache.mode == "partitioned" else "all",
            ", ".join(cache.tables),
        ]
        for cache in caches
    ]
    return table_view(head, rows, right={1, 3})


def nodes_view(nodes: Sequence[EmbeddedNode]) -> View:
    """List the embedded nodes."""
    if not nodes:
        return message_view("No embedded nodes run. Start some: %ignite_tf local up")
    rows = [
        [
            str(node.index),
            f"{node.host}:{node.port}",
            str(node.pid or ""),
            "running" if node.alive else "ended",
            str(node.log),
        ]
        for node in nodes
    ]
    return table_view(["Node", "Address", "PID", "State", "Log"], rows)


def tensorboards_view(boards: Sequence[TensorBoardInfo]) -> View:
    """List TensorBoards and what they show."""
    if not boards:
        return message_view("No TensorBoard runs. To open one: %ignite_tf tensorboard")
    rows = [
        [str(board.port), str(board.pid), ", ".join(dict.fromkeys(map(_shown, board.logdirs))), board.url]
        for board in boards
    ]
    return table_view(["Port", "PID", "Shows", "URL"], rows, right={0, 1})


def scalar_as_json(value: object) -> object:
    """Return a scalar that JSON can represent; convert others, such as NaN, to text."""
    is_plain = value is None or isinstance(value, bool | int | str)
    is_finite = isinstance(value, float) and math.isfinite(value)
    return value if is_plain or is_finite else str(value)


def tensorboards_as_json(boards: Sequence[TensorBoardInfo]) -> list[dict[str, Any]]:
    """Return TensorBoards for JSON output."""
    return [
        {
            "url": board.url,
            "host": board.host,
            "port": board.port,
            "pid": board.pid,
            "logdirs": [source.uri for source in board.logdirs],
            "notes": list(board.notes),
        }
        for board in boards
    ]


def _shown(source: LogSource) -> str:
    return source.name or source.uri


# Browsers deny storage to frames from another site, and TensorBoard shows nothing without storage. To a page from
# 127.0.0.1, localhost is another site.
_SAME_SITE = """<script>
for (const frame of document.querySelectorAll("iframe.ignite-tf-tensorboard")) {
  const url = new URL(frame.src);
  if (url.hostname === "localhost" && location.hostname === "127.0.0.1") {
    url.hostname = location.hostname;
    frame.src = url.href;
  }
}
</script>"""


def files_view(files: Sequence[FileInfo], now: datetime) -> View:
    """List files with their sizes and times; a directory's name ends in a slash."""
    rows = [
        [
            "" if file.num_bytes is None else size_text(file.num_bytes),
            time_text(file.mtime_ns, now),
            file.path + "/" * file.is_directory,
        ]
        for file in files
    ]
    return table_view(["Size", "Modified", "Path"], rows, right={0})


def usage_view(usages: Sequence[Usage]) -> View:
    """List the number of files and bytes below each path."""
    rows = [[size_text(usage.num_bytes), f"{usage.num_files:,}", usage.path] for usage in usages]
    return table_view(["Size", "Files", "Path"], rows, right={0, 1})


def size_text(num_bytes: int) -> str:
    """Format a number of bytes for people, such as 1.5 MiB."""
    size, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1000 or unit == "TiB":
            break
        size /= 1024
    return f"{num_bytes} B" if unit == "B" else f"{size:.3g} {unit}"


def time_text(time_ns: int, now: datetime) -> str:
    """Format a time in the time zone of `now`; 0, the time of a file system's root, gives an empty text."""
    return f"{datetime.fromtimestamp(time_ns / 1e9, now.tzinfo):%Y-%m-%d %H:%M:%S}" if time_ns else ""


def tensorboard_view(board: TensorBoardInfo, height_px: int) -> View:
    """Show a TensorBoard in a frame of the page."""
    url = escape(board.url)
    notes = "".join(f"<br>{escape(note)}" for note in board.notes)
    html = (
        f'<div style="{_MARGIN};{_FONT}">TensorBoard: <a href="{url}" target="_blank">{url}</a>{notes}</div>'
        f'<iframe class="ignite-tf-tensorboard" src="{url}" width="100%" height="{height_px}" '
        f'style="border:0" allowfullscreen></iframe>{_SAME_SITE}'
    )
    return View("\n".join([f"TensorBoard: {board.url}", *board.notes]), html)


def table_view(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: set[int] | None = None,
    dots: dict[int, list[str]] | None = None,
    *,
    bars: Set[int] = frozenset(),
    upper: bool = True,
) -> View:
    """Lay out a table.

    `right` has the columns to align right, and `dots` the CSS colours of dots, by column and row. `bars` has the
    columns of block characters, whose spaces are significant. `upper` writes the head of the text in capitals.
    """
    right, dots = right or set(), dots or {}
    head, rows = [visible_line(name) for name in head], [[visible_line(cell) for cell in row] for row in rows]
    text_head = [name.upper() if upper else name for name in head]
    widths = [max(map(len, column)) for column in zip(text_head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    def cell(tag: str, html: str, column: int) -> str:
        align = "right" if column in right else "left"
        style = _BARS if column in bars and tag == "td" else "white-space:nowrap"
        return f'<{tag} style="text-align:{align};{style};padding:2px 12px 2px 4px">{html}</{tag}>'

    def body_cell(text: str, row: int, column: int) -> str:
        return cell("td", (dot(dots[column][row]) if column in dots else "") + escape(text), column)

    heads = "".join(cell("th", escape(name), i) for i, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(body_cell(text, i, j) for j, text in enumerate(row)) + "</tr>"
        for i, row in enumerate(rows)
    )
    html = f'<div style="overflow-x:auto"><table style="margin:4px 0"><tr>{heads}</tr>{body}</table></div>'
    return View("\n".join(map(line, [text_head, *rows])), html)


def message_view(text: str) -> View:
    """Show one line or paragraph."""
    return View(text, f'<div style="white-space:pre-wrap;{_MARGIN};{_FONT}">{escape(text)}</div>')


def dot(colour: str) -> str:
    """Return HTML of a coloured dot, to put in front of a word."""
    return f'<span style="color:{colour}">\u25cf</span> '


def mark_of(run_id: str) -> str:
    """Return the shortest name of a run: the mark at the beginning of its id, or else the whole id."""
    mark = run_id.partition("-")[0]
    return mark if len(mark) == MARK_CHARS else run_id


def where_it_runs(run: RunInfo) -> str:
    """Return a phrase with the workers, hosts and cache of a run."""
    return f"{run.counted_workers} on {', '.join(run.hosts)}, reading {run.cache}"


def state_text(run: RunInfo) -> str:
    """Return a run's state, with the exit code of a failed run, or the time until which it waits for a new owner."""
    if run.left_until is not None and run.state is not RunState.LOST:
        return f"{run.state.value} (left until {run.left_until.astimezone():%H:%M})"
    failed = run.state is RunState.FAILED and run.exit_code is not None
    return f"{run.state.value} ({run.exit_code})" if failed else run.state.value


def duration_text(run: RunInfo, now: datetime) -> str:
    """Return how long a run has lasted, such as 0:03:20; a lost run lasted until it last wrote anything."""
    if run.state is RunState.LOST:
        return _span(run.seen_at - run.started_at) if run.seen_at else "unknown"
    return _span((run.ended_at or now) - run.started_at)


def _span(lasted: timedelta) -> str:
    return str(timedelta(seconds=max(round(lasted.total_seconds()), 0)))


def state_colour(state: RunState) -> str:
    """Return the CSS colour of a run's state."""
    return _STATE_COLOURS.get(state.value, _BLUE)


def health_colour(health: Health) -> str:
    """Return the CSS colour of a check's result."""
    return {Health.GOOD: _GREEN, Health.DOUBTFUL: _AMBER, Health.BAD: _RED}[health]


def end_view(run: RunInfo, notes: Sequence[str]) -> View:
    """Show how a run ended, where its logs are, and notes on what to do next."""
    first = f"run {run.id}: {state_text(run)} after {duration_text(run, run.ended_at or run.started_at)}"
    lines = [f"logs: {run.directory}/worker-*.log", *notes]
    if run.reason and run.state is not RunState.SUCCEEDED:
        lines.insert(0, run.reason)
    html = (
        f'<div style="border-left:4px solid {state_colour(run.state)};padding-left:10px;{_MARGIN};{_FONT}">'
        f"<b>{escape(first)}</b>" + "".join(f"<br>{escape(line)}" for line in lines) + "</div>"
    )
    return View("\n".join([first, *(f"  {line}" for line in lines)]), html)


def failure_view(run: RunInfo, failure: Failure) -> View:
    """Show why a run failed: the first failed worker, its traceback or last lines, and a hint."""
    title = f"run {run.id}: {failure.summary}"
    said = failure.traceback or "\n".join(failure.last_lines)
    said = plain(said).rstrip()
    notes = [f"hint: {failure.hint}"] if failure.hint else []
    notes.append(f"all output of {failure.task}: {failure.log}")
    blocks = [f'<b style="color:{_RED}">{escape(title)}</b>']
    if said:
        style = "margin:6px 0;padding:0;max-height:24em;overflow:auto;white-space:pre-wrap;background:none"
        blocks.append(f'<pre style="{style}">{escape(said)}</pre>')
    blocks += [f"<div>{escape(note)}</div>" for note in notes]
    border = f"border:1px solid {_RED};border-left-width:4px;padding:6px 10px"
    text = "\n".join(part for part in [title, said, *notes] if part)
    return View(text, f'<div style="{border};{_MARGIN};{_FONT}">{"".join(blocks)}</div>')
