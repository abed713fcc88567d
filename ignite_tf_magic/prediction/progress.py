"""The progress of a prediction, stored with the facts of the cache that it fills, under the key "prediction".

    {"load": {"state": "loading", "source": "predict ...", ...}, "prediction": {"done": "3fffe", "runs": [...]}}

Each start of a prediction writes a new mark. A worker's progress is accepted only while the stored mark is that of its
own start. So a new start finds all runs that may have written in the stored list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ignite_tf_magic.client.cache_facts import (
    Facts,
    LoadMark,
    LoadState,
    load_mark,
    new_mark,
    read_facts,
    update_facts,
    with_load,
)
from ignite_tf_magic.client.client import Client
from ignite_tf_magic.errors import PredictionReplaced

_KEY = "prediction"
WAY = "predict"


@dataclass(frozen=True, slots=True)
class PredictionProgress:
    """The stored progress of a prediction.

    Attributes:
        done: Partitions whose outputs are all written.
        runs: IDs of the runs that have written outputs.
    """

    done: frozenset[int] = frozenset()
    runs: tuple[str, ...] = ()


def progress_of(facts: Facts) -> PredictionProgress:
    """Return the stored progress of a prediction; empty progress if there is none."""
    found = facts.get(_KEY)
    try:
        if isinstance(found, dict):
            return PredictionProgress(_partitions(str(found["done"])), tuple(map(str, found["runs"])))
    except (KeyError, ValueError, TypeError):  # written by a later version
        pass
    return PredictionProgress()


def begin(client: Client, cache: str, expected_rows: int, source: str, *, goes_on: bool) -> LoadMark:
    """Record the start of a prediction; earlier predictions can then no longer record progress.

    Args:
        client: The cluster.
        cache: The cache that it fills.
        expected_rows: Number of rows that the cache will have.
        source: Distinguishes the prediction from others.
        goes_on: Whether to keep the partitions that are recorded as done. The recorded runs are always kept.
    """
    mark = new_mark(expected_rows, source=source, way=WAY)

    def change(facts: Facts) -> Facts:
        known = progress_of(facts)
        kept = known if goes_on else replace(known, done=frozenset())
        return _noted(with_load(facts if goes_on else {}, cache, mark), kept)

    update_facts(client, cache, change)
    return mark


def note(
    client: Client,
    cache: str,
    mark: LoadMark,
    *,
    run: str | None = None,
    done: Iterable[int] = (),
    undone: Iterable[int] = (),
) -> PredictionProgress:
    """Record the progress of a prediction; returns the whole progress stored after that.

    Args:
        client: The cluster.
        cache: The cache that it fills.
        mark: The mark of the prediction's start.
        run: A run that is about to write.
        done: Partitions whose outputs are written.
        undone: Partitions whose outputs must be written again.

    Raises:
        PredictionReplaced: Another prediction or load has begun meanwhile.
    """
    result: PredictionProgress | None = None

    def change(facts: Facts) -> Facts:
        nonlocal result
        result = None
        if load_mark(facts) != mark:
            return facts
        known = progress_of(facts)
        runs = known.runs if run is None or run in known.runs else (*known.runs, run)
        result = PredictionProgress((known.done | frozenset(done)) - frozenset(undone), runs)
        return _noted(facts, result)

    update_facts(client, cache, change)
    if result is None:
        raise PredictionReplaced(
            f"another program has begun to fill cache {cache!r}, so this prediction has stopped; find out which "
            "(ignite-tf caches, ignite-tf ps), then predict again with --replace, or into another cache"
        )
    return result


def finish(client: Client, cache: str, mark: LoadMark, rows: int) -> None:
    """Record that all outputs are written.

    Raises:
        PredictionReplaced: Another prediction or load has begun meanwhile.
    """
    note(client, cache, mark)
    ended = replace(mark, state=LoadState.COMPLETE, rows=rows)

    def change(facts: Facts) -> Facts:
        if load_mark(facts) != mark:
            return facts
        return with_load({name: value for name, value in facts.items() if name != _KEY}, cache, ended)

    update_facts(client, cache, change)


def mark_of(client: Client, cache: str) -> LoadMark | None:
    """Return the mark of a cache; None if there is none."""
    return load_mark(read_facts(client, cache))


def _noted(facts: Facts, progress: PredictionProgress) -> Facts:
    # One bit per partition. A replicated cache has a single partition, with number -1.
    bits = sum(1 << (partition + 1) for partition in progress.done)
    return {**facts, _KEY: {"done": f"{bits:x}", "runs": list(progress.runs)}}


def _partitions(text: str) -> frozenset[int]:
    return frozenset(number - 1 for number, bit in enumerate(reversed(f"{int(text, 16):b}")) if bit == "1")
