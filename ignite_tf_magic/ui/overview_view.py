"""Renders the status in a few lines, and three suggestions for the next command. Pure functions, as in `render`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.session import RunState
from ignite_tf_magic.ui.render import View, mark_of, message_view, runs_view, state_text
from ignite_tf_magic.ui.run_views import run_as_json

if TYPE_CHECKING:
    from ignite_tf_magic.session import Overview, RunInfo

_MOST_CACHES = 6
_MOST_RUNS = 5


def overview_as_json(seen: Overview) -> dict[str, Any]:
    """Return the overview for JSON output."""
    return {
        "cluster": list(seen.cluster),
        "embedded": seen.is_embedded,
        "trouble": seen.trouble or None,
        "caches": list(seen.caches),
        "live": [run_as_json(run) for run in seen.live],
        "newest": run_as_json(seen.newest) if seen.newest else None,
    }


def overview_view(seen: Overview, now: datetime, name: str) -> View:
    """Show the cluster, its caches and live runs, then suggestions; a person types our command as `name`."""
    views = [message_view("\n".join([_cluster(seen), *_caches(seen), *_newest(seen)]))]
    if seen.live:
        views.append(runs_view(seen.live[-_MOST_RUNS:], now))
    views.append(_next_view(next_steps(seen, name)))
    return View("\n\n".join(view.text for view in views), "".join(view.html for view in views))


def next_steps(seen: Overview, name: str) -> list[tuple[str, str]]:
    """Return three commands that are useful in this state, each with what it does."""
    cell = f"%{name}" if name.startswith("%") else name
    script = "" if name.startswith("%") else " --script train.py"
    if seen.trouble:
        return [
            (f"{name} doctor", "checks all that runs need, and shows how to fix it"),
            (f"{name} ps --all", "lists runs, also while Ignite is down"),
            (f"{name} local up", "starts Ignite nodes on this machine, if yours cannot be reached"),
        ]
    if not seen.caches:
        return [
            (f"{name} load DIGITS digits", "loads a small set of handwritten digits into a cache"),
            (f"{name} load NAME FILE", "loads your own rows: .csv, .parquet, .npz, .jsonl"),
            (f"{name} help", "lists all commands"),
        ]
    cache = next(filter(_is_plain, seen.caches), "CACHE")
    if seen.live:
        run_id = mark_of(seen.live[-1].id) if len(seen.live) > 1 else ""
        return [
            (f"{name} attach {run_id}".rstrip(), "shows the run's output from its beginning"),
            (f"{name} stop {run_id}".rstrip(), "ends it"),
            (
                f"{name} panel" if name.startswith("%") else f"{name} describe {run_id}".rstrip(),
                "shows more of it",
            ),
        ]
    if seen.newest is None:
        return [
            (f"{name} sample {cache}", "shows some of its rows"),
            (f"{name} profile {cache}", "shows its columns in numbers and pictures"),
            (f"{cell} start {cache}{script}", "trains on it"),
        ]
    return [
        _after(seen.newest, name),
        (f"{name} tensorboard", "shows and compares runs"),
        (f"{cell} start {cache}{script}", "trains again"),
    ]


def _is_plain(name: str) -> bool:
    """Return whether a name, which others may have chosen, is a single word for a shell and for IPython."""
    return name.isidentifier()


def _after(run: RunInfo, name: str) -> tuple[str, str]:
    """Return the suggestion for a run that has ended."""
    mark = mark_of(run.id)
    if run.state is RunState.SUCCEEDED:
        return f"{name} history {mark}", "shows its training metrics"
    return f"{name} describe {mark}", "shows why it ended"


def _cluster(seen: Overview) -> str:
    if not seen.cluster:
        return "cluster   none yet: Ignite nodes are started on this machine when they are needed"
    kind = "embedded, on this machine" if seen.is_embedded else "configured"
    told = f"cluster   {', '.join(seen.cluster)} ({kind})"
    return f"{told}\n          does not answer: {seen.trouble}" if seen.trouble else told


def _caches(seen: Overview) -> list[str]:
    if not seen.cluster or seen.trouble:
        return []
    shown = ", ".join(seen.caches[:_MOST_CACHES])
    more = len(seen.caches) - _MOST_CACHES
    return [f"caches    {shown or 'none'}{f', and {more} more' if more > 0 else ''}"]


def _newest(seen: Overview) -> list[str]:
    if seen.live:
        return []
    if seen.newest is None:
        return ["runs      none yet"]
    return [f"runs      none is live; the last one: {seen.newest.id}, {state_text(seen.newest)}"]


def _next_view(steps: Sequence[tuple[str, str]]) -> View:
    width = max(len(command) for command, _ in steps)
    text = "\n".join(["next:", *(f"  {command.ljust(width)}  {what}" for command, what in steps)])
    rows = "".join(
        f'<tr><td style="text-align:left"><code>{escape(command)}</code></td>'
        f'<td style="text-align:left">{escape(what)}</td></tr>'
        for command, what in steps
    )
    return View(
        text,
        f'<table style="margin:4px 0"><tr><th style="text-align:left" colspan="2">next</th></tr>{rows}</table>',
    )
