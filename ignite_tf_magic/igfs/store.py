"""The caches of one file system: reads rows, and changes them by transactions.

There are three caches: `NAME-meta` (directory entries and names) and `NAME-journal` (current work), both on every node,
and `NAME-blocks` (content, with backups). All reads are of primary copies, all writes wait for all copies.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import TypeVar

from ignite_tf_magic.client.client import Cache, Client, connect
from ignite_tf_magic.client.pipeline import Pipeline, Routes
from ignite_tf_magic.client.transaction import Transaction
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import (
    CacheNotFound,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    FileSystemNotFound,
    NoSpace,
    ServerError,
)
from ignite_tf_magic.igfs.journal import GARBAGE
from ignite_tf_magic.igfs.layout import BLOCK_BYTES
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.ops import AtomicityMode, CacheMode, Concurrency, Isolation, Status
from ignite_tf_magic.settings.options import ConnectOptions

T = TypeVar("T")
DEFAULT_NAME = "igfs"
_META, _JOURNAL, _BLOCKS = "-meta", "-journal", "-blocks"
RETRY_S = 60.0
_TRANSACTION_S = 10.0
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.5
_RANDOM = random.SystemRandom()
_PERMANENT = {Status.SECURITY_VIOLATION, Status.AUTH_FAILED}


def caches_of_file_systems(names: Iterable[str]) -> set[str]:
    """Return those of a cluster's caches that contain files: three for each file system."""
    known = set(names)
    stems = {name.removesuffix(_BLOCKS) for name in known if name.endswith(_BLOCKS)}
    threes = ({stem + _META, stem + _JOURNAL, stem + _BLOCKS} for stem in stems)
    return {name for three in threes if three <= known for name in three}


class Swap(Enum):
    """The outcome of a compare-and-set of a row.

    REFUSED: The row had another value. UNKNOWN: It has another value now, but may have been set before.
    """

    DONE = auto()
    REFUSED = auto()
    UNKNOWN = auto()


class Changes:
    """One transaction. Its commit validates what it read, and few requests send what it writes."""

    def __init__(self, meta: Cache, journal: Cache, *, uncertain: bool) -> None:
        self._meta = meta
        self._journal = journal
        self._rows: dict[str, bytes | None] = {}
        self._writes: tuple[dict[str, bytes | None], dict[str, bytes | None]] = ({}, {})
        self.uncertain = uncertain
        """Whether an earlier attempt may have been carried out."""

    def read(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Read rows of the metadata as they were before this transaction; those that do not exist are left out."""
        wanted = set(keys)
        unknown = sorted(wanted - self._rows.keys())
        if unknown:
            self._rows.update(dict.fromkeys(unknown))
            self._rows.update(self._meta.get_all(unknown))
        rows = ((key, self._rows[key]) for key in wanted)
        return {key: row for key, row in rows if row is not None}

    def read_journal(self, key: str) -> bytes | None:
        """Read a record of the journal."""
        value: bytes | None = self._journal.get(key)
        return value

    def write(self, rows: Mapping[str, bytes | None]) -> None:
        """Register rows of the metadata for `send`; None removes a row."""
        self._writes[0].update(rows)

    def write_journal(self, rows: Mapping[str, bytes | None]) -> None:
        """Register records of the journal for `send`; None removes a record."""
        self._writes[1].update(rows)

    def send(self) -> bool:
        """Send all registered writes; return whether there were any."""
        for cache, rows in zip((self._meta, self._journal), self._writes, strict=True):
            written = {key: value for key, value in sorted(rows.items()) if value is not None}
            removed = sorted(key for key, value in rows.items() if value is None)
            if written:
                cache.put_all(written)
            if removed:
                cache.remove_all(removed)
        return any(self._writes)

    def makes_garbage(self) -> bool:
        """Return whether a garbage record was written."""
        return any(key.startswith(GARBAGE) and row is not None for key, row in self._writes[1].items())


class ProcessLock:
    """A lock that is free in a forked child, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self.__init__()  # type: ignore[misc]
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Store(Closing):
    """The rows of one file system. Thread-safe. The caller closes it.

    It connects at first use, also after a fork.

    Args:
        options: Returns how to reach the cluster; called when a connection is opened.
        name: First part of the caches' names.
        create: Whether the first write creates the caches. Reading never does.
        block_bytes: Size of new blocks; existing blocks may have another size.
    """

    def __init__(
        self,
        options: Callable[[], ConnectOptions],
        name: str = DEFAULT_NAME,
        *,
        create: bool = True,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._options = options
        self.name = name
        self.block_bytes = block_bytes
        self._create = create
        self.on_garbage: Callable[[], None] = lambda: None
        """Called when a transaction has left something to be removed."""
        self._forget_connections()

    def _forget_connections(self) -> None:
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._process = os.getpid()
        self._exists = False
        self._routes: Routes | None = None

    def close(self) -> None:
        """Close the connections; the next use opens them again."""
        if self._process != os.getpid():
            return  # they belong to the parent
        with self._lock:
            client, self._client, self._routes = self._client, None, None
        if client:
            client.close()

    @property
    def is_connected(self) -> bool:
        """Whether connections are open."""
        return self._client is not None and self._process == os.getpid()

    def client(self) -> Client:
        """Return the connected client.

        Raises:
            ConnectionFailed: No node answers.
            AuthenticationError: User name or password were refused.
        """
        if self._process != os.getpid():
            self._forget_connections()
        with self._lock:
            if self._client is None:
                self._client = connect(self._options())
                self._exists = False
            return self._client

    @property
    def meta(self) -> Cache:
        """The cache of directory entries and names."""
        return Cache(self.client(), f"{self.name}{_META}")

    @property
    def journal(self) -> Cache:
        """The cache of intents, garbage and leases."""
        return Cache(self.client(), f"{self.name}{_JOURNAL}")

    @property
    def blocks(self) -> Cache:
        """The cache of blocks."""
        return Cache(self.client(), f"{self.name}{_BLOCKS}")

    def exists(self) -> bool:
        """Return whether the file system has been created.

        Raises:
            FileSystemNotFound: It has not, and a first write would not create it.
        """
        client = self.client()
        if not self._exists:
            self._exists = f"{self.name}{_BLOCKS}" in client.cache_names()
            if not self._exists and not self._create:
                raise FileSystemNotFound(
                    f"the cluster has no igfs file system {self.name!r}; create it: "
                    f"ignite-tf fs mkfs {self.name}"
                )
        return self._exists

    def create(self) -> None:
        """Create the file system unless it exists. Blocks for up to some seconds."""
        client = self.client()
        for part in ("meta", "journal"):
            client.get_or_create_cache(
                CacheConfig(
                    f"{self.name}-{part}",
                    mode=CacheMode.REPLICATED,
                    atomicity=AtomicityMode.TRANSACTIONAL,
                    read_from_backup=False,
                )
            )
        client.get_or_create_cache(CacheConfig(f"{self.name}{_BLOCKS}", backups=1, read_from_backup=False))
        self._exists = True

    def prepare_to_write(self) -> None:
        """Create the file system if it does not exist.

        Raises:
            FileSystemNotFound: It does not exist, and writing does not create it.
        """
        if not self.exists():
            self.create()

    def read(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Read rows of the metadata, in one request; those that do not exist are left out."""
        wanted = sorted(set(keys))
        if not self.exists():
            return {}
        try:
            return self.meta.get_all(wanted)
        except CacheNotFound:  # the cluster was emptied since
            self._exists = False
            return self.meta.get_all(wanted) if self.exists() else {}

    def compare_and_set(self, key: str, old: bytes, new: bytes, *, in_journal: bool = False) -> Swap:
        """Write a row of the metadata, or of the journal, if its value is `old`.

        A write that failed with an error may have been made anyway, so the next attempt reads the row first.

        Raises:
            DeadlineExceeded: For a minute it could not be done or confirmed.
        """
        may_be_done = False
        for attempt in _attempts():
            try:
                cache = self.journal if in_journal else self.meta
                if may_be_done and cache.get(key) == new:
                    return Swap.DONE
                attempt.committing = True
                if cache.replace_if_equals(key, old, new):
                    return Swap.DONE
                if not may_be_done:
                    return Swap.REFUSED
                return Swap.DONE if cache.get(key) == new else Swap.UNKNOWN
            except (ConnectionLost, ConnectionFailed) as error:
                attempt.failed(error)
            except ServerError as error:
                _raise_if_permanent(error)
                attempt.failed(error)
            may_be_done = may_be_done or attempt.committing
            attempt.committing = may_be_done
        raise AssertionError("attempts end by an exception")

    def transact(self, action: Callable[[Changes], T]) -> T:
        """Do reads and writes as one step. Retries if another client was first, or a node left.

        Args:
            action: Reads and decides; called once for each attempt. If it raises, nothing is written.

        Returns:
            What the action returned in the attempt that was committed.

        Raises:
            DeadlineExceeded: It could not be done for a minute.
        """
        self.prepare_to_write()
        uncertain = False
        for attempt in _attempts():
            try:
                return self._attempt(action, uncertain, attempt)
            except (ConnectionLost, ConnectionFailed) as error:
                attempt.failed(error)
            except ServerError as error:
                if error.status == Status.CACHE_DOES_NOT_EXIST:  # the cluster was emptied since
                    self._exists = False
                    self.prepare_to_write()
                _raise_if_permanent(error)
                attempt.failed(error)
                attempt.committing &= not _says_that_another_was_first(error)
            uncertain = uncertain or attempt.committing
            attempt.committing = uncertain
        raise AssertionError("attempts end by an exception")

    def _attempt(self, action: Callable[[Changes], T], uncertain: bool, attempt: _Retry) -> T:
        client = self.client()
        with client.transaction(
            Concurrency.OPTIMISTIC, Isolation.SERIALIZABLE, _TRANSACTION_S
        ) as transaction:
            changes = self._changes(transaction, uncertain)
            result = action(changes)
            if changes.send():
                attempt.committing = True
                transaction.commit()
                if changes.makes_garbage():
                    self.on_garbage()
            else:
                transaction.roll_back()
        return result

    def _changes(self, transaction: Transaction, uncertain: bool) -> Changes:
        return Changes(self.meta.within(transaction), self.journal.within(transaction), uncertain=uncertain)

    def pipeline(self) -> Pipeline:
        """Open a pipeline of blocks, which the caller closes."""
        with self._lock:
            blocks = self.blocks
            if self._routes is None:
                self._routes = Routes(blocks)
            return Pipeline(blocks, self._routes)


class _Retry:
    """One of several attempts.

    Attributes:
        error: The error that ended it.
        committing: Whether it, or an earlier attempt, may have been committed.
    """

    error: Exception | None = None
    committing = False

    def failed(self, error: Exception) -> None:
        """Remember the error that ended the attempt."""
        self.error = error


def _attempts() -> Iterator[_Retry]:
    """Yield attempts with growing pauses between them.

    Raises:
        DeadlineExceeded: The time is over.
    """
    deadline, pause_s = time.monotonic() + RETRY_S, _FIRST_PAUSE_S
    while True:
        attempt = _Retry()
        yield attempt
        if time.monotonic() > deadline:
            doubt = "; it may have succeeded nevertheless" if attempt.committing else ""
            raise DeadlineExceeded(
                f"igfs could not be changed for {RETRY_S:g} s{doubt}; the last attempt: {attempt.error}"
            ) from attempt.error
        time.sleep(pause_s * _RANDOM.uniform(0.5, 1.5))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _says_that_another_was_first(error: ServerError) -> bool:
    """Return whether the error proves that nothing was written.

    The messages are "(lock conflict)", or "read/write conflict" with the key.
    """
    message = error.server_message
    return message.startswith("Failed to prepare transaction") and " conflict" in message


def _raise_if_permanent(error: ServerError) -> None:
    if error.status in _PERMANENT:
        raise error
    if "IgniteOutOfMemory" in error.server_message or "Out of memory" in error.server_message:
        raise NoSpace(f"an Ignite node has no memory left for data: {error.server_message}") from error
