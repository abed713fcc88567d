"""How far a prediction has come: noted beside the facts of the cache that it fills, under the key "prediction".

    {"load": {"state": "loading", "source": "predict ...", ...}, "prediction": {"done": "3fffe", "runs": [...]}}

Each beginning has a mark of its own. A worker's notes are taken only while the mark is that of its own beginning, so
that whoever has begun anew knows all runs that may have written: those that are noted.
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
    """What is noted of a prediction.

    Attributes:
        done: Partitions whose outputs are all written.
        runs: Ids of the runs that have written some.
    """

    done: frozenset[int] = frozenset()
    runs: tuple[str, ...] = ()


def progress_of(facts: Facts) -> PredictionProgress:
    """Return what is noted of a prediction; nothing where nothing is."""
    found = facts.get(_KEY)
    try:
        if isinstance(found, dict):
            return PredictionProgress(_partitions(str(found["done"])), tuple(map(str, found["runs"])))
    except (KeyError, ValueError, TypeError):  # noted by a later version
        pass
    return PredictionProgress()


def begin(client: Client, cache: str, expected_rows: int, source: str, *, goes_on: bool) -> LoadMark:
    """Note that a prediction begins, and that nobody else may note that it goes on.

    Args:
        client: Of the cluster.
        cache: The cache that it fills.
        expected_rows: Rows that this is to have.
        source: Tells the prediction from others.
        goes_on: Whether what an earlier one has noted as done is kept. The runs that have written are in any case.
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
    """Note how a prediction goes on; returns all that is noted then.

    Args:
        client: Of the cluster.
        cache: The cache that it fills.
        mark: That of its beginning.
        run: A run that is about to write.
        done: Partitions whose outputs are written.
        undone: Partitions whose outputs have to be written again.

    Raises:
        PredictionReplaced: Another one has begun meanwhile.
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
            f"something else has begun to fill cache {cache!r}, so this prediction has stopped; look at what it is "
            "(ignite-tf caches, ignite-tf ps), then predict again with --replace, or into another cache"
        )
    return result


def finish(client: Client, cache: str, mark: LoadMark, rows: int) -> None:
    """Note that all outputs are written.

    Raises:
        PredictionReplaced: Another one has begun meanwhile.
    """
    note(client, cache, mark)
    ended = replace(mark, state=LoadState.COMPLETE, rows=rows)

    def change(facts: Facts) -> Facts:
        if load_mark(facts) != mark:
            return facts
        return with_load({name: value for name, value in facts.items() if name != _KEY}, cache, ended)

    update_facts(client, cache, change)


def mark_of(client: Client, cache: str) -> LoadMark | None:
    """Return the mark of a cache; None where nothing is noted."""
    return load_mark(read_facts(client, cache))


def _noted(facts: Facts, progress: PredictionProgress) -> Facts:
    # A bit for each partition; that of a replicated cache, which has but one, is -1.
    bits = sum(1 << (partition + 1) for partition in progress.done)
    return {**facts, _KEY: {"done": f"{bits:x}", "runs": list(progress.runs)}}


def _partitions(text: str) -> frozenset[int]:
    return frozenset(number - 1 for number, bit in enumerate(reversed(f"{int(text, 16):b}")) if bit == "1")
