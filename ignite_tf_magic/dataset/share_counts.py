"""Counts the rows of workers' shards if the launcher has not.

Each worker counts its own shard, close to the data. The workers note the counts in the cluster, with the facts of the
cache, so that all workers know all counts:

    {"shares": {"RUN/GENERATION": {"at": ..., "rows": {"0": 25000}, "claims": {"1": "NAME:3"}}}}

A worker claims a shard before counting it, and renews the claim while it counts. If a shard's claim is missing or no
longer renewed, because its worker starts to read later or not at all, another worker that has waited for it counts it.
The first noted count holds, so all workers use the same numbers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ignite_tf_magic.client.cache_facts import CACHE, PATIENCE_S, Facts, read_facts, update_facts
from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.dataset.partition_ranges import parse_partitions
from ignite_tf_magic.errors import (
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    IgniteTfError,
    ServerError,
    format_ranges,
)

_KEY = "shares"
_KEPT_S, _MOST_KEPT = 86_400.0, 64
# Seconds to wait for others, once this worker has nothing else to do: until they start, and between renewals.
_PATIENCE_S, _RENEWED_S = 60.0, 15.0
_PARTITIONS_AT_ONCE = 8
_LOOK_S, _TELL_S = 0.1, 10.0
_UNEVEN = 2.0


@dataclass(frozen=True, slots=True)
class SharesToCount:
    """Shards of a cache whose numbers of rows are unknown.

    Attributes:
        worker: The number of this process's worker.
        shares: Partitions of each worker, as ranges.
        run: Distinguishes this start of the workers from every other one.
    """

    worker: int
    shares: tuple[str, ...]
    run: str

    def count(self, client: Client, cache: str) -> tuple[int, ...]:
        """Count this worker's rows, and learn those of the others; blocks until all are known.

        Raises:
            ConnectionFailed, PartitionsLost: The rows cannot be read.
            IgniteTfError: The counts cannot be noted.
        """
        found = _counted.get((cache, self))
        if found is None:
            found = _counted[cache, self] = _Counting(client, cache, self).rows()
        return found


# A process uses the same numbers for all of its datasets, whenever it makes them.
_counted: dict[tuple[str, SharesToCount], tuple[int, ...]] = {}


@dataclass
class _Counting:
    client: Client
    cache: str
    of: SharesToCount
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    known: dict[int, int] = field(default_factory=dict)
    claims: dict[int, str] = field(default_factory=dict)
    since: dict[tuple[int, str | None], float] = field(default_factory=dict)

    def rows(self) -> tuple[int, ...]:
        self._look()
        if self.of.worker not in self.known:
            self._count(self.of.worker)
        told_at = time.monotonic()
        while missing := [number for number in range(len(self.of.shares)) if number not in self.known]:
            if due := [number for number in missing if self._is_due(number)]:
                self._count(due[0])
                continue
            if time.monotonic() - told_at > _TELL_S:
                told_at = time.monotonic()
                whom = f"workers {format_ranges(missing)}"
                _tell(f"waiting for {whom}, which count their rows of cache {self.cache}")
            time.sleep(_LOOK_S)
            self._look()
        found = tuple(self.known[number] for number in range(len(self.of.shares)))
        if self.of.worker == 0 and max(found) > _UNEVEN * sum(found) / len(found):
            _tell(
                f"few partitions hold the rows of cache {self.cache}: its workers have "
                f"{', '.join(f'{rows:,}' for rows in found)}, and each step waits for the one with the most. With a "
                "SQL table, or one worker for each node, rows are divided by their number"
            )
        return found

    def _is_due(self, number: int) -> bool:
        """Return whether to count a shard now: this worker's own at once, others after waiting.

        Each new claim of a shard restarts the wait.
        """
        since = self.since.setdefault((number, self.claims.get(number)), time.monotonic())
        return number == self.of.worker or time.monotonic() - since > _PATIENCE_S

    def _count(self, number: int) -> None:
        """Count the rows of a shard, unless another worker claims or counts it."""
        before, renewals = self.claims.get(number), 0

        def claim(noted: dict[str, Any]) -> None:
            current = noted["claims"].get(str(number))
            if current == before or (current or "").startswith(self.name) or number == self.of.worker:
                noted["claims"][str(number)] = f"{self.name}:{renewals}"

        partitions = parse_partitions(self.of.shares[number]) or ()
        rows, began = 0, time.monotonic()
        for first in range(0, len(partitions), _PARTITIONS_AT_ONCE):
            if not renewals or time.monotonic() - began > renewals * _RENEWED_S:
                renewals += 1
                self._note(claim)
                if number in self.known or not self.claims.get(number, "").startswith(self.name):
                    return
            chosen = partitions[first : first + _PARTITIONS_AT_ONCE]
            found = self.client.cache(self.cache).partition_stats(chosen)
            rows += sum(each.rows for each in found.values())
        if time.monotonic() - began > _TELL_S:
            _tell(f"counted {rows:,} rows of worker {number} in {time.monotonic() - began:.0f} s")
        self._note(lambda noted: noted["rows"].setdefault(str(number), rows))

    def _note(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the notes of this run. `change` may run several times, if others write at the same time."""

        def changed(facts: Facts) -> Facts:
            now, runs = time.time(), _runs(facts)
            noted = runs.pop(self.of.run, {"rows": {}, "claims": {}})
            mine = {str(number): rows for number, rows in self.known.items()}
            noted = {"at": now, "rows": {**mine, **noted["rows"]}, "claims": dict(noted["claims"])}
            change(noted)
            recent = [(run, each) for run, each in runs.items() if now - each["at"] < _KEPT_S]
            return {**facts, _KEY: {**dict(recent[1 - _MOST_KEPT :]), self.of.run: noted}}

        try:
            update_facts(self.client, self.cache, changed)
        except (ServerError, DeadlineExceeded) as error:
            raise IgniteTfError(
                f"the workers of the run count the rows of cache {self.cache!r}, but could not write the counts to "
                f"cache {CACHE}: {error}. Let this user write to it, start no more workers than there are nodes, or "
                "give the cache a SQL table"
            ) from error
        self._look()

    def _look(self) -> None:
        """Read the notes, even while nodes join and leave."""

        def read() -> Facts | None:
            try:
                return read_facts(self.client, self.cache)
            except (ServerError, ConnectionFailed, ConnectionLost):
                return None

        found = wait_for(read, PATIENCE_S)
        facts = read_facts(self.client, self.cache) if found is None else found
        noted = _runs(facts).get(self.of.run, {"rows": {}, "claims": {}})
        self.known |= {int(number): int(rows) for number, rows in noted["rows"].items()}
        self.claims = {int(number): str(claim) for number, claim in noted["claims"].items()}


def _runs(facts: Facts) -> dict[str, dict[str, Any]]:
    """Return the notes of runs; notes that a later version wrote in another form are skipped."""
    found = facts.get(_KEY)
    return {
        run: each
        for run, each in (found.items() if isinstance(found, dict) else ())
        if isinstance(each, dict)
        and isinstance(each.get("at"), int | float)
        and isinstance(each.get("rows"), dict)
        and isinstance(each.get("claims"), dict)
    }


def _tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a worker's output
