"""The registry lists all runs, in a cache of which every node holds a full copy.

It is only an index of the hosts' own directories, which are authoritative. It may be lost and rebuilt. Rows are JSON
texts under these keys:

    index            ids of all runs
    record/RUN       the run's record, with marks of its latest writers; changed by compare-and-set only. The records
                     of detached runs and their hosts' reports are signed, because any client of Ignite can write here
    owner/RUN        the owner's heartbeat; expires if it is not repeated
    hosts/RUN        names of the hosts that have reported
    host/RUN/HOST    a host's report
    request/RUN      requests to the run's supervisor

Reads use primary copies and create nothing; writes wait for all copies. To decide whether another process is alive,
use a counter and a `FailureDetector`, which depends on no clock but the reader's own. Rows that expire are only for
readers that cannot wait for that.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from ignite_tf_magic import client as thin_client
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import (
    CacheNotFound,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    RecordChanged,
    RecordDamaged,
    ServerError,
)
from ignite_tf_magic.protocol.ops import AtomicityMode, CacheMode, Status
from ignite_tf_magic.runs.hosts.topology import ClusterSnapshot, listed_by
from ignite_tf_magic.runs.registry.registry_rows import (
    CACHE,
    Listing,
    Owner,
    RegistryEntry,
    Stored,
    checked_name,
    is_name,
    key_of,
    read_marks,
    read_names,
    read_object,
    read_owner,
    read_stored,
    read_strings,
    to_text,
)
from ignite_tf_magic.runs.seals import Seal
from ignite_tf_magic.runs.timeouts import Timeouts

if TYPE_CHECKING:
    from ignite_tf_magic.client.client import Cache, Client

__all__ = ["CACHE", "FailureDetector", "Listing", "Owner", "Registry", "RegistryEntry", "Stored"]

T = TypeVar("T")
PATIENCE_S = 20.0
_INDEX = "index"
_MAX_MARKS = 16
_REPORT_TTL_S = 7 * 86_400.0  # a report that arrives after its run was removed expires by itself
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.5
_RANDOM = random.SystemRandom()
_PERMANENT = {Status.SECURITY_VIOLATION, Status.AUTH_FAILED}


class _TryAgainError(Exception):
    """Another writer was first, or the cache has been destroyed: the same operation may succeed now."""


class FailureDetector:
    """Detects a dead process by a counter that stops, on the reader's own monotonic clock."""

    def __init__(self) -> None:
        self._counter: object = None
        self._changed_at: float | None = None

    def feed(self, counter: object, now: float) -> float:
        """Pass in a counter that was read; return the time since it last changed, in seconds.

        Args:
            counter: Any other value than the last one is a sign of life; also a smaller one, after the process was
                started anew. None if nothing could be read, which is not a sign of life.
            now: Time on the reader's own monotonic clock.
        """
        if self._changed_at is None or (counter is not None and counter != self._counter):
            self._counter, self._changed_at = counter, now
        return now - self._changed_at


class Registry(Closing):
    """The runs in one cluster. Thread-safe; all calls block, and survive the loss of a node. Close it.

    If no node answers at all, reads raise ConnectionFailed at once, and writes are retried.

    Args:
        client: A client, which the caller closes, or a function that creates one when needed, which is closed here.
        timeouts: Include the validity of an owner's heartbeat.
        patience_s: How long operations are retried while nodes leave and join.
        seal: Key of the single run for which this object is used: rows of the run are signed when written and their
            signatures are checked when read.
    """

    def __init__(
        self,
        client: Client | Callable[[], Client],
        *,
        timeouts: Timeouts | None = None,
        patience_s: float = PATIENCE_S,
        seal: Seal | None = None,
    ) -> None:
        self._source = client
        self._client = client if isinstance(client, thin_client.Client) else None
        self._timeouts = timeouts or Timeouts()
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._exists = False
        self._seal = seal
        self._newest: Stored | None = None

    def sealed(self, seal: Seal | None) -> Registry:
        """Return the same registry for use with the single run that has this key; it need not be closed."""
        return Registry(self._connected(), timeouts=self._timeouts, patience_s=self._patience_s, seal=seal)

    def close(self) -> None:
        """Close the client if it was created here; the next call creates another one."""
        if isinstance(self._source, thin_client.Client):
            return
        with self._lock:
            client, self._client = self._client, None
        if client:
            client.close()

    def standing(self, topology: Sequence[str]) -> uuid.UUID | None:
        """Return the node that answers here if it now sees most of these nodes, else None.

        If two calls return the same node, everything between them was read and written on the side with the majority.
        """
        client = self._connected()
        node = client.router.control_node_id()
        seen = ClusterSnapshot(nodes=listed_by(client.nodes()))
        same = client.router.control_node_id() == node
        return node if same and seen.has_majority_of(topology) else None

    def runs(self) -> Listing:
        """Return all runs, in two requests. A run that is being created or removed may be missing."""
        warnings: list[str] = []
        ids = read_names(self._get(_INDEX), _INDEX, warnings)
        rows = self._get_all([key for run in ids for key in (f"record/{run}", f"owner/{run}")])
        entries = []
        for run in ids:
            if (row := rows.get(f"record/{run}")) is None:
                continue
            try:
                stored = read_stored(run, row)
            except RecordDamaged as error:
                warnings.append(str(error))
                continue
            entries.append(RegistryEntry(stored.record, read_owner(rows.get(f"owner/{run}")), stored.seal))
        return Listing(tuple(entries), tuple(warnings))

    def get(self, run: str, known: Stored | None = None) -> Stored | None:
        """Read a run's record, or return None if the registry has none. A row equal to `known` is not parsed again.

        Raises:
            RecordDamaged: The row is not a record, or, as RecordForged, its signature is wrong; `rebuild` replaces it.
        """
        row = self._get(key_of("record", run))
        if row is None:
            return None
        newest = self._newest or known
        if newest is None or newest.row != row:  # records are read repeatedly and are mostly unchanged
            newest = read_stored(run, row, self._seal)
        self._newest = newest
        return newest

    def create(self, record: Mapping[str, Any]) -> Stored:
        """Write the first record of a run; its version becomes 1 if it has none.

        Raises:
            RecordChanged: The run already has a record.
        """
        run = str(record["run_id"])
        self._update_names(_INDEX, {run})
        return self._set(None, {"version": 1, **record})

    def replace(self, old: Stored, new: Mapping[str, Any]) -> Stored:
        """Replace a record that was read before; its version becomes the next one unless it is already higher.

        If an answer was lost, the marks in the row show whether the write succeeded.

        Raises:
            RecordChanged: It was written or removed by another process in the meantime; read it again and decide anew.
            DeadlineExceeded: No answer came within the registry's patience; the record may have been written.
        """
        version = max(old.version + 1, new.get("version", 0))
        return self._set(old.row, {**new, "run_id": old.run_id, "version": version})

    def touch_owner(self, run: str, owner: Owner, *, detached: bool = False) -> None:
        """Write an owner's heartbeat. It is valid for `Timeouts.owner_lapse_s`, of a detached run `pool_lapse_s`."""
        key, row = key_of("owner", run), to_text(asdict(owner))
        good_for_s = self._timeouts.pool_lapse_s if detached else self._timeouts.owner_lapse_s
        self._write(lambda cache: cache.put(key, row, good_for_s))

    def owner(self, run: str) -> Owner | None:
        """Read the owner's latest heartbeat, or return None if it has expired."""
        return read_owner(self._get(key_of("owner", run)))

    def report(self, run: str, host: str, report: Mapping[str, Any]) -> None:
        """Write a host's report on a run, replacing the previous one."""
        key, sealed = f"{key_of('host', run)}/{checked_name(host)}", dict(report)
        if self._seal is not None:
            sealed["seal"] = self._seal.of(key, report)
        row = to_text(sealed)
        self._update_names(key_of("hosts", run), {host})
        self._write(lambda cache: cache.put(key, row, _REPORT_TTL_S))

    def reports(self, run: str) -> dict[str, dict[str, Any]]:
        """Read the reports on a run, by host; rows that are not reports or lack a valid signature are left out."""
        keys = {f"{key_of('host', run)}/{host}": host for host in self._hosts(run)}
        found = {}
        for key, row in self._get_all(keys).items():
            report = read_object(row)
            mark = None if report is None else report.pop("seal", None)
            if report is not None and (self._seal is None or self._seal.fits(key, report, mark)):
                found[keys[key]] = report
        return found

    def request(self, run: str, **asked: Any) -> None:
        """Add requests to a run's supervisor to earlier ones: `request(run, stop=True)`."""
        self._update(key_of("request", run), lambda found: {**found, **asked})

    def requests(self, run: str) -> dict[str, Any]:
        """Read all requests to a run's supervisor."""
        return read_object(self._get(key_of("request", run))) or {}

    def remove(self, run: str) -> None:
        """Remove all rows of a run; repeat it after an error."""
        keys = [key_of(kind, run) for kind in ("hosts", "owner", "record", "request")]
        keys += [f"{key_of('host', run)}/{host}" for host in self._hosts(run)]
        if self._get(_INDEX) is None:
            return
        self._write(lambda cache: cache.remove_all(sorted(keys)))
        self._update_names(_INDEX, removed={run})

    def rebuild(self, records: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        """Write records from hosts where the registry has none, an older one or a damaged one.

        Returns:
            The ids of the runs whose records were written.
        """
        newest: dict[str, Mapping[str, Any]] = {}
        for record in records:
            known = newest.setdefault(str(record["run_id"]), record)
            if known["version"] < record["version"]:
                newest[str(record["run_id"])] = record
        if newest:
            self._update_names(_INDEX, set(newest))
        return tuple(run for run, record in newest.items() if self._rebuild(run, record))

    def _rebuild(self, run: str, record: Mapping[str, Any]) -> bool:
        while True:
            row = self._get(key_of("record", run))
            with suppress(RecordDamaged):  # a damaged row is overwritten
                if row is not None and read_stored(run, row, self._seal).version >= record["version"]:
                    return False
            with suppress(RecordChanged):
                self._set(row, record)
                return True

    def _hosts(self, run: str) -> list[str]:
        key = key_of("hosts", run)
        return [name for name in read_names(self._get(key), key, []) if is_name(name)]

    def _set(self, old: Any, record: Mapping[str, Any]) -> Stored:
        """Compare and set; if an answer was lost, the marks in the row show whether it was written.

        Repeating the request is harmless, because a row never takes an old value again.
        """
        run, mark = str(record["run_id"]), secrets.token_hex(8)
        key = key_of("record", run)
        content: dict[str, Any] = {"record": record, "marks": [mark, *read_marks(old)][:_MAX_MARKS]}
        if self._seal is not None:
            content["seal"] = self._seal.of(key, record)
        row = to_text(content)

        def send(cache: Cache) -> bool:
            return _compare_and_set(cache, key, old, row) or mark in read_marks(cache.get(key))

        if not self._write(send):
            raise RecordChanged(run)
        return Stored(record, row, content.get("seal", ""))

    def _update_names(self, key: str, added: Iterable[str] = (), removed: Iterable[str] = ()) -> None:
        new, gone = [checked_name(name) for name in sorted(added)], set(removed)

        def change(found: dict[str, Any]) -> dict[str, Any]:
            names = dict.fromkeys([*read_strings(found.get("names")), *new])
            return {"names": [name for name in names if name not in gone]}

        self._update(key, change)

    def _update(self, key: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Change a row by a function that may run repeatedly, if others change the row at the same time."""

        def attempt(cache: Cache) -> None:
            row = cache.get(key)
            new = to_text(change(read_object(row) or {}))
            if row != new and not _compare_and_set(cache, key, row, new):
                raise _TryAgainError("others change it all the time")

        self._write(attempt)

    def _get(self, key: str) -> Any:
        return self._get_all([key]).get(key)

    def _get_all(self, keys: Iterable[str]) -> dict[str, Any]:
        wanted = list(keys)
        if not wanted:
            return {}
        try:
            return self._attempt(
                lambda: thin_client.Cache(self._connected(), CACHE).get_all(wanted), is_reading=True
            )
        except CacheNotFound:
            return {}

    def _write(self, action: Callable[[Cache], T]) -> T:
        def attempt() -> T:
            try:
                return action(self._created())
            except CacheNotFound as error:  # the cache was destroyed in the meantime
                self._exists = False
                raise _TryAgainError(str(error)) from error

        return self._attempt(attempt)

    def _attempt(self, action: Callable[[], T], *, is_reading: bool = False) -> T:
        """Call a function, and retry it while nodes leave and join."""
        deadline, pause_s = time.monotonic() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                return action()
            except (ConnectionLost, ConnectionFailed, ServerError, _TryAgainError) as error:
                if _is_final(error, is_reading=is_reading):
                    raise
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(
                        f"the registry of runs (cache {CACHE}) could not be reached for {self._patience_s:g} s; "
                        f"the last attempt: {error}. Without Ignite, the runs' hosts can be asked over SSH"
                    ) from error
            time.sleep(pause_s * _RANDOM.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _connected(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = (
                    self._source if isinstance(self._source, thin_client.Client) else self._source()
                )
            return self._client

    def _created(self) -> Cache:
        client = self._connected()
        if not self._exists:
            client.get_or_create_cache(
                thin_client.CacheConfig(
                    CACHE,
                    mode=CacheMode.REPLICATED,
                    atomicity=AtomicityMode.TRANSACTIONAL,
                    read_from_backup=False,
                )
            )
            self._exists = True
        return thin_client.Cache(client, CACHE)


def _is_final(error: Exception, *, is_reading: bool) -> bool:
    """Return whether retrying is useless. Readers do not wait if no node answers, because they can look elsewhere."""
    if isinstance(error, ServerError):
        return error.status in _PERMANENT
    return is_reading and isinstance(error, ConnectionFailed)


def _compare_and_set(cache: Cache, key: str, old: Any, new: str) -> bool:
    return cache.put_if_absent(key, new) if old is None else cache.replace_if_equals(key, old, new)
