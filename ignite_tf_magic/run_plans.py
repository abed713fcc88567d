"""From what a person asks for to what a run is: which worker reads what, where."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.page_sizes import PartitionStats
from ignite_tf_magic.cluster.spec import RunPlan, WorkerShare, check_script
from ignite_tf_magic.config import ConnectOptions, Endpoint
from ignite_tf_magic.errors import LaunchError, PlacementError
from ignite_tf_magic.launch.local import LOCAL_HOST
from ignite_tf_magic.placement import place

# What workers do when they have imported a module: it then knows igfs://.
_AFTER_IMPORT = {
    "tensorflow": "ignite_tf_magic.registration:register_or_warn",
    "fsspec": "ignite_tf_magic.registration:register_fsspec",
}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run, on what, with how many workers.

    Attributes:
        script: Source of the script; every worker runs it.
        script_name: What tracebacks call it.
        args: Its arguments.
        start_timeout_s: Several workers that are not all up by then end the run; None has no limit.
        name: First part of the run's id; the cache's name by default.
        python: Interpreter of the workers, this process's by default.
    """

    cache: str
    script: str
    num_workers: int = 1
    script_name: str = "cell"
    args: tuple[str, ...] = ()
    start_timeout_s: float | None = 180.0
    name: str | None = None
    python: str | None = None


def plan_run(client: Client, options: ConnectOptions, request: RunRequest) -> RunPlan:
    """Decide all that a run needs to start. Reads the cache once, to count its rows.

    Raises:
        ScriptError: The script is not Python.
        CacheNotFound: There is no such cache.
        PlacementError: Fewer partitions hold rows than workers were asked for.
        LaunchError: The workers' interpreter cannot be started.
    """
    python = _interpreter(request.python)
    check_script(request.script, request.script_name, python)
    return RunPlan(
        cache=request.cache,
        script=request.script,
        cwd=Path.cwd(),
        shares=_shares(client, options, client.cache(request.cache), request.num_workers),
        connect=options,
        script_name=request.script_name,
        args=request.args,
        name=request.name,
        start_timeout_s=request.start_timeout_s,
        python=python,
        after_import=_AFTER_IMPORT,
    )


def _shares(
    client: Client, options: ConnectOptions, cache: Cache, num_workers: int
) -> tuple[WorkerShare, ...]:
    partition_map = cache.partition_map()
    stats = cache.partition_stats()
    # Asked for after the count, which has found out which of a node's addresses lead to it from here.
    endpoints = {node.node_id: node.endpoints[0] for node in client.nodes()}
    if not partition_map.partitioned:
        return (_whole_share(cache, stats, next(iter(endpoints.values())), num_workers),)
    assignments = place(
        partition_map.owners,
        {partition: stats[partition].rows for partition in stats},
        dict.fromkeys(partition_map.owners, LOCAL_HOST),
        num_workers,
    )
    seed = options.endpoints[0]  # for a node that has left since
    return tuple(
        WorkerShare(
            each.host, endpoints.get(each.node, seed), each.partitions, _sizes(stats, each.partitions)
        )
        for each in assignments
    )


def _whole_share(
    cache: Cache, stats: dict[int, PartitionStats], endpoint: Endpoint, num_workers: int
) -> WorkerShare:
    if num_workers != 1:
        raise PlacementError(
            f"cache {cache.name!r} is replicated: every node holds all of it and it cannot be read by partition. "
            "Use one worker, or load the data into a partitioned cache"
        )
    return WorkerShare(LOCAL_HOST, endpoint, None, _sizes(stats, stats))


def _sizes(stats: Mapping[int, PartitionStats], partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    return {partition: (stats[partition].rows, stats[partition].max_row_bytes) for partition in partitions}


def _interpreter(python: str | None) -> str:
    if python is None:
        return sys.executable
    found = shutil.which(str(Path(python).expanduser()))
    if found is None:
        raise LaunchError(
            f"{python!r} is not a program that can be started; give the path of a Python interpreter"
        )
    return str(Path.cwd() / found)
