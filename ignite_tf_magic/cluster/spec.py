"""What a run consists of, and what its workers find in their environment. Pure."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ignite_tf_magic.config import ConnectOptions, Endpoint
from ignite_tf_magic.errors import ScriptError, format_ranges


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one worker reads, and where.

    Attributes:
        endpoint: The node at which it knocks first, the one of its own host.
        partitions: Ascending; None reads the cache whole.
        sizes: (rows, bytes of the largest row) of each of these partitions.
    """

    host: str
    endpoint: Endpoint
    partitions: tuple[int, ...] | None
    sizes: Mapping[int, tuple[int, int]]

    @property
    def rows(self) -> int:
        """Rows that the worker reads."""
        return sum(rows for rows, _ in self.sizes.values())


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All that is decided before a run starts.

    Attributes:
        script: Its source.
        script_name: What tracebacks call it; need not be a file name.
        cwd: Directory in which the workers run.
        shares: One for each worker.
        connect: How workers reach the cluster; only the credentials are used.
        start_timeout_s: How long the workers of a run with several may take to come up; None has no limit.
        python: Interpreter of the workers.
        after_import: Functions, as "package.module:function", that workers call when a module has been imported.
    """

    cache: str
    script: str
    cwd: PurePath
    shares: tuple[WorkerShare, ...]
    connect: ConnectOptions
    script_name: str = "cell"
    args: tuple[str, ...] = ()
    name: str | None = None
    start_timeout_s: float | None = 180.0
    python: str = field(default=sys.executable)
    after_import: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return len(self.shares)


def tf_config(addresses: Sequence[Endpoint], worker: int) -> str | None:
    """Write TF_CONFIG for one worker; a single worker has none, and trains without a cluster."""
    if len(addresses) < 2:
        return None
    cluster = {"worker": [str(address) for address in addresses]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": worker}})


def assignment(plan: RunPlan, worker: int) -> dict[str, Any]:
    """Tell a worker the size of its partitions, and the rows of all workers, which make steps equal."""
    sizes = plan.shares[worker].sizes
    return {
        "cache": plan.cache,
        "worker": worker,
        "rows_by_worker": [share.rows for share in plan.shares],
        "partitions": {str(partition): list(sizes[partition]) for partition in sorted(sizes)},
    }


def credentials(connect: ConnectOptions) -> dict[str, Any]:
    """Collect what a worker needs to be let in; empty when everybody is."""
    found: dict[str, Any] = {"username": connect.username, "password": connect.password}
    if connect.tls:
        found |= {
            "certfile": connect.tls.certfile,
            "keyfile": connect.tls.keyfile,
            "cert_password": connect.tls.key_password,
            "cafile": connect.tls.cafile,
            "check_hostname": "true" if connect.tls.check_hostname else "false",
        }
    return {name: value for name, value in found.items() if value is not None}


def worker_environment(
    plan: RunPlan,
    worker: int,
    addresses: Sequence[Endpoint],
    assignment_file: str,
    credentials_file: str | None,
) -> dict[str, str | None]:
    """Give the variables of one worker; None takes away what it would inherit."""
    share = plan.shares[worker]
    config = tf_config(addresses, worker)
    return {
        "TF_CONFIG": config,
        # Lets TensorFlow's server share a port with the socket that keeps it free for this run.
        "TF_GRPC_REUSE_PORT": "1" if config else None,
        "IGNITE_DATASET_HOST": share.endpoint.host,
        "IGNITE_DATASET_PORT": str(share.endpoint.port),
        "IGNITE_DATASET_PART": None if share.partitions is None else format_ranges(share.partitions),
        "IGNITE_DATASET_ASSIGNED_CACHE": plan.cache,
        "IGNITE_DATASET_ASSIGNMENT_FILE": assignment_file,
        "IGNITE_DATASET_CREDENTIALS_FILE": credentials_file,
    }


def check_script(source: str, name: str, python: str) -> None:
    """Compile a script, which runs nothing, unless another interpreter will: its grammar may differ.

    Raises:
        ScriptError: It is not Python; the message shows the line, with a mark below the fault.
    """
    if python != sys.executable:
        return
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the worker compiles it again, and shows them
            source.encode()
            compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        shown = "".join(traceback.format_exception_only(error)).rstrip()
        magic = (error.text or "").lstrip().startswith(("%", "!"))
        advice = "a worker runs plain Python: % and ! are the notebook's. " if magic else ""
        raise ScriptError(f"{shown}\n{advice}No worker was started.", error.lineno, error.offset) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ScriptError(f"{name} cannot be compiled: {error}. No worker was started.") from error
