"""Selects the lines of a run's output to send to a front end: bounded, and fair to all workers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.ui.notebook.arguments import NAME

if TYPE_CHECKING:
    from ignite_tf_magic.ui.live_output import LiveOutput

_MOST_LINE_CHARS = 2_000
# Limit of each message: people cannot read more, browsers cannot draw more, and Jupyter's server passes no more.
_MOST_SENT_CHARS = 64_000
_LINE_COST_CHARS = 150  # added to each line's length, which limits a message to some 400 short lines
_KEPT_LINES = 200


class SentLines:
    """The last lines of all workers together and of each worker, with running line numbers."""

    def __init__(self) -> None:
        self._all: deque[str] = deque(maxlen=_KEPT_LINES)
        self._tasks: dict[str, deque[str]] = {}
        self._ends: dict[str, int] = {}
        self.num_lines = 0

    @property
    def last(self) -> Sequence[str]:
        """The last lines of all workers together, each with its worker's name."""
        return tuple(self._all)

    def take(self, lines: Sequence[tuple[int | None, str]], output: LiveOutput) -> dict[str, Any]:
        """Return the message for new lines: those of all workers, and of each worker if there are several."""
        lines = [(worker, text[:_MOST_LINE_CHARS]) for worker, text in lines]
        self.num_lines += len(lines)
        self._all.extend(output.named(*line) for line in lines)
        kept = [lines[place] for place in fair_places(lines)]
        tasks = self._take_tasks(lines, kept, output.tasks) if len(output.tasks) > 1 else {}
        shown = _with_gap(len(lines) - len(kept), (output.named(*line) for line in kept))
        return {"all": {"end": self.num_lines, "lines": shown}, "tasks": tasks}

    def tail(self) -> dict[str, Any]:
        """Return the last lines in the format of `take`, for a front end that redraws everything."""
        lines = [(number, text) for number, texts in enumerate(self._tasks.values()) for text in texts]
        kept: list[list[str]] = [[] for _ in self._tasks]
        for place in fair_places(lines):
            number, text = lines[place]
            kept[number].append(text)
        tasks = {
            name: {"end": self._ends[name], "lines": texts}
            for name, texts in zip(self._tasks, kept, strict=True)
        }
        return {"all": {"end": self.num_lines, "lines": list(self._all)}, "tasks": tasks}

    def _take_tasks(
        self,
        lines: Sequence[tuple[int | None, str]],
        kept: Sequence[tuple[int | None, str]],
        names: Sequence[str],
    ) -> dict[str, Any]:
        sent: dict[str, Any] = {}
        own, own_kept = _by_worker(lines), _by_worker(kept)
        for worker, texts in own.items():
            name, shown = names[worker], own_kept.get(worker, [])
            self._tasks.setdefault(name, deque(maxlen=_KEPT_LINES)).extend(texts)
            self._ends[name] = self._ends.get(name, 0) + len(texts)
            sent[name] = {"end": self._ends[name], "lines": _with_gap(len(texts) - len(shown), shown)}
        return sent


def fair_places(lines: Sequence[tuple[int | None, str]]) -> list[int]:
    """Return the indices of the lines to send, in order: the last lines of each worker.

    Workers with little output get all of it sent. Workers with more output share the remaining room.
    """
    places: dict[int | None, list[int]] = {}
    for place, (worker, _) in enumerate(lines):
        places.setdefault(worker, []).append(place)
    costs = {worker: sum(_cost(lines[place][1]) for place in own) for worker, own in places.items()}
    room, kept = _MOST_SENT_CHARS, list[int]()
    for num_done, worker in enumerate(sorted(costs, key=costs.__getitem__)):
        share = room // (len(costs) - num_done)
        for place in reversed(places[worker]):
            share -= _cost(lines[place][1])
            if share < 0:
                break
            room -= _cost(lines[place][1])
            kept.append(place)
    return sorted(kept)


def _cost(text: str) -> int:
    return len(text) + _LINE_COST_CHARS


def _by_worker(lines: Iterable[tuple[int | None, str]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for worker, text in lines:
        if worker is not None:  # lines that are not from a worker do not appear in a worker's tab
            found.setdefault(worker, []).append(text)
    return found


def _with_gap(num_left_out: int, lines: Iterable[str]) -> list[str]:
    gap = [f"... {num_left_out:,} lines left out; {NAME} logs --all shows them"] if num_left_out else []
    return list(chain(gap, lines))
