"""Serves caches as record files for TensorFlow: ignite://CACHE/assigned, .../all, .../part-7.

A stock TFRecordDataset reads them in a TensorFlow server, where no Python of a graph runs. A file is a stream of one
pass over partitions, with one record per chunk of rows (`tfrecord_encoding`). Nobody writes it, and its length is
unknown. Its bytes are the same each time as long as the data and the owners are the same.
"""

from __future__ import annotations

import errno
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

import numpy as np

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.dataset import kept_secrets
from ignite_tf_magic.dataset.options import ReadOptions, read_options
from ignite_tf_magic.dataset.reader import ChunkReader, random_order
from ignite_tf_magic.dataset.snapshot import Snapshot
from ignite_tf_magic.dataset.source import Source, open_source
from ignite_tf_magic.dataset.tfrecord_address import (
    ALL,
    ASSIGNED,
    PARTITION_PREFIX,
    SCHEME,
    THIS_PROCESS,
    RecordAddress,
)
from ignite_tf_magic.dataset.tfrecord_encoding import FramedRecord, page_record
from ignite_tf_magic.errors import AuthenticationError, ConfigError, IgniteTfError, PluginUnavailable
from ignite_tf_magic.tfplugin.handler import FileSystem, ReadFile, Stat, WriteFile
from ignite_tf_magic.tfplugin.registration import is_registered, register_schemes

_KEPT_SOURCES = 16
_WHERE = (
    "this process asks where IGNITE_DATASET_HOST, _PORT and _CREDENTIALS_FILE or its configuration say; "
    "passwords and certificates given to IgniteDataset do not travel"
)


def record_file_system() -> FileSystem:
    """Return the handler of ignite:// paths in this process, for `registration.register_schemes`."""
    return _RecordFileSystem()


def register_records() -> None:
    """Let TensorFlow in this process read ignite://, unless it already can; warn if that fails.

    A warning is enough, because the rows may be read by another process.
    """
    if is_registered(SCHEME):
        return
    try:
        register_schemes({SCHEME: record_file_system()})
    except PluginUnavailable as error:
        warnings.warn(f"TensorFlow cannot read {SCHEME}:// in this process: {error}", stacklevel=2)


class RecordFile:
    """A record file open for reading; it holds one record in memory, besides the reader's own memory.

    Reading at an earlier offset than the current record's restarts the pass.

    Args:
        open_pass: Starts a pass.
    """

    def __init__(self, open_pass: Callable[[], ChunkReader]) -> None:
        self._open_pass = open_pass
        self._lock = threading.Lock()
        self._reader: ChunkReader | None = None
        self._records: Iterator[FramedRecord] = iter(())
        self._record: FramedRecord | None = None
        self._start = 0
        self._failure: BaseException | None = None
        self._process = os.getpid()
        with _understood():
            self._restart()

    def read_into(self, offset: int, space: memoryview) -> int:
        """See `ReadFile.read_into`. Blocks until the rows have arrived."""
        if self._process != os.getpid():  # a fork does not copy the reading threads
            raise OSError(errno.ESTALE, "opened before a fork; a forked process has to open its own")
        target = np.frombuffer(space, np.uint8)
        copied = 0
        with self._lock, _understood():
            if self._failure:
                raise self._failure
            try:
                if offset < self._start:
                    self._restart()
                while copied < target.nbytes and self._move_to(offset + copied) and self._record:
                    copied += self._record.copy_to(target[copied:], offset + copied - self._start)
            except BaseException as error:
                self._failure = (
                    error  # else the next read would find an ended pass, which looks like all rows
                )
                raise
        return copied

    def close(self) -> None:
        """End the pass, even in the middle."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._record, self._records = None, iter(())
            if self._reader:
                self._reader.close()
                self._reader = None

    def _restart(self) -> None:
        reader, self._reader = self._reader, None
        if reader:
            reader.close()
        self._reader = self._open_pass()
        self._records = map(page_record, self._reader.chunks())
        self._record, self._start = None, 0

    def _move_to(self, offset: int) -> bool:
        """Advance to the record of that offset; return False after the last one."""
        while self._record is None or offset >= self._start + self._record.num_bytes:
            last, self._record = self._record, None  # frees its memory before the next one comes
            self._start += last.num_bytes if last else 0
            self._record = next(self._records, None)
            if self._record is None:
                return False
        return True


class _RecordFileSystem:
    """Serves record files. Keeps what it learned of a cache from one pass to the next, as datasets do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: OrderedDict[RecordAddress, Source] = OrderedDict()

    def open_read(self, uri: str) -> ReadFile:
        """Start reading. Errors of the cluster are raised here or by reading."""
        address = RecordAddress.parse(uri)
        if not address.name:
            raise IsADirectoryError(
                f"{uri} holds the files of a cache: {ASSIGNED}, {ALL}, {PARTITION_PREFIX}0"
            )
        if address.not_in == THIS_PROCESS:
            raise ConfigError(
                "a worker was to read this IgniteDataset, but it lives in the process that made it: make it inside "
                "tf.device('/job:worker/task:N') or inside the function given to create_per_worker_dataset; to "
                "have this process read on purpose, make it with read_by='caller' (or 'worker', "
                "where it is a TensorFlow server itself)"
            )
        with _understood(has_secrets=not address.secrets or kept_secrets.find(address.secrets) is not None):
            source = self._source(address)
        order = None if address.order is None else random_order(address.order)
        return RecordFile(lambda: ChunkReader(source, order))

    def _source(self, address: RecordAddress) -> Source:
        key = replace(address, order=None)
        with self._lock:
            found = self._sources.get(key)
            if found:
                self._sources.move_to_end(key)
                return found
        snapshot = Snapshot.from_text(address.snapshot) if address.snapshot else None
        source = open_source(_read_options(address), snapshot)
        if snapshot:  # without one, nothing shows whether the cache is still the one seen before
            with self._lock:
                self._sources[key] = source
                while len(self._sources) > _KEPT_SOURCES:
                    self._sources.popitem(last=False)
        return source

    def stat(self, uri: str) -> Stat:
        """Describe a path; a file's length is 0, because it is unknown before the rows were read."""
        address = RecordAddress.parse(uri)
        with _understood():
            partitions = _partitions(address)
        if address.partition is not None and address.partition not in partitions:
            raise FileNotFoundError(f"cache {address.cache!r} has no partition {address.partition}")
        return Stat(0, 0, is_directory=not address.name)

    def list_directory(self, uri: str) -> list[str]:
        """List the files of a cache."""
        address = RecordAddress.parse(uri)
        if address.name:
            raise NotADirectoryError(f"{uri} is a file")
        with _understood():
            partitions = _partitions(address)
        return [ASSIGNED, ALL, *(f"{PARTITION_PREFIX}{partition}" for partition in partitions)]

    def open_write(self, uri: str, *, append: bool) -> WriteFile:
        """Raise PermissionError: rows are not loaded by writing files."""
        del append
        _refuse(uri)

    def make_directory(self, uri: str) -> None:
        """Raise PermissionError."""
        _refuse(uri)

    def make_directories(self, uri: str) -> None:
        """Raise PermissionError."""
        _refuse(uri)

    def remove_file(self, uri: str) -> None:
        """Raise PermissionError."""
        _refuse(uri)

    def remove_directory(self, uri: str) -> None:
        """Raise PermissionError."""
        _refuse(uri)

    def remove_tree(self, uri: str) -> None:
        """Raise PermissionError."""
        _refuse(uri)

    def rename(self, source: str, target: str) -> None:
        """Raise PermissionError."""
        del target
        _refuse(source)

    def copy(self, source: str, target: str) -> None:
        """Raise PermissionError."""
        del source
        _refuse(target)


def _refuse(uri: str) -> NoReturn:
    raise PermissionError(
        f"{uri} cannot be changed: ignite:// reads the rows of caches. Load rows with ignite-tf load, and keep "
        "files under igfs://"
    )


def _read_options(address: RecordAddress) -> ReadOptions:
    at = address.endpoint
    part = address.part if address.partition is None else address.partition
    given = kept_secrets.find(address.secrets) or kept_secrets.Given()
    return read_options(
        address.cache,
        host=at.host if at else None,
        port=at.port if at else None,
        local=address.local,
        part=part,
        page_size=address.page_size,
        username=given.username,
        password=given.password,
        certfile=given.certfile,
        keyfile=given.keyfile,
        cert_password=given.cert_password,
        assigned=address.name == ASSIGNED,
    )


def _partitions(address: RecordAddress) -> list[int]:
    options = _read_options(replace(address, name=ALL, part=None))
    with connect(options.connect) as client:
        return sorted(client.find_cache(options.cache).baseline().owners)


@contextmanager
def _understood(*, has_secrets: bool = True) -> Iterator[None]:
    """Translate errors so that TensorFlow does not mistake them for lost workers.

    TensorFlow's ClusterCoordinator takes UNAVAILABLE and DEADLINE_EXCEEDED for the loss of a worker and waits forever
    for another one. An Ignite that does not answer must not look like that.

    Args:
        has_secrets: Whether this process has the password and certificate that the dataset was given, if any.
    """
    try:
        yield
    except AuthenticationError as error:
        raise PermissionError(f"{error} ({_WHERE})") from error
    except (ConnectionError, TimeoutError) as error:
        if not has_secrets:
            raise PermissionError(f"{error} ({_WHERE})") from error
        raise IgniteTfError(f"{type(error).__name__}: {error} ({_WHERE})") from error
