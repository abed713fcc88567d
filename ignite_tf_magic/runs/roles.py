"""The tasks of a run's cluster: which there are, what each of them does, and what it is told of the others. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from ignite_tf_magic.errors import ConfigError

_TEMPLATE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_TEMPLATES = ("ps_hosts", "worker_hosts", "job_name", "task_index")


class Strategy(Enum):
    """How a run's tasks work together, in the words of TensorFlow's guides."""

    SYNC = "sync"  # every worker runs the script, and all take each step together
    ASYNC = "async"  # workers and parameter servers are driven by a chief, which alone runs the script
    STANDALONE = "standalone"  # plain servers, and the script as their client
    BETWEEN = (
        "between"  # between-graph replication: the script runs once for each worker and parameter server
    )


@dataclass(frozen=True, slots=True)
class Role:
    """What one task of a run does.

    Attributes:
        job: Its job in the cluster spec: "worker", "ps", "chief" or "evaluator".
        index: Its number in that job.
        name: What people read: "worker 0", "ps 1", "chief".
        runs_script: Whether it runs the script; else it is a TensorFlow server that others drive.
        has_share: Whether it reads a part of the cache's partitions, and has what workers have: GPUs, memory.
        decides: Whether the run waits for its success; the others are ended when all who decide have succeeded.
        must_join: Whether the other tasks may wait for its server for ever.
        respawns: Whether the others go on without it while its process, which a signal has ended, is started again.
    """

    job: str
    index: int
    name: str
    runs_script: bool = True
    has_share: bool = False
    decides: bool = False
    must_join: bool = False
    respawns: bool = False


@cache
def roles_of(
    strategy: Strategy, num_workers: int, num_ps: int = 0, has_evaluator: bool = False
) -> tuple[Role, ...]:
    """List the tasks of a run. Workers come first, so that a worker's number is that of its task."""
    is_sync, has_chief = strategy is Strategy.SYNC, strategy in (Strategy.ASYNC, Strategy.STANDALONE)
    found = [
        Role(
            "worker",
            index,
            f"worker {index}",
            runs_script=not has_chief,
            has_share=True,
            decides=not has_chief,
            must_join=is_sync and num_workers > 1,
            respawns=strategy is Strategy.ASYNC,
        )
        for index in range(num_workers)
    ]
    found += [Role("ps", index, f"ps {index}", runs_script=not has_chief) for index in range(num_ps)]
    found += [Role("chief", 0, "chief", decides=True)] * has_chief
    found += [Role("evaluator", 0, "evaluator")] * has_evaluator
    return tuple(found)


def check_roles(strategy: Strategy, num_ps: int, has_evaluator: bool, chief: str) -> None:
    """Refuse tasks that a strategy has no use for.

    Raises:
        ConfigError: Says which option contradicts it, and what would go with it.
    """
    name = strategy.value
    if num_ps < 0:
        raise ConfigError(f"--ps {num_ps}: a number of parameter servers, 0 or more, is needed")
    if strategy is Strategy.ASYNC and num_ps == 0:
        raise ConfigError("--strategy async keeps the variables on parameter servers: give --ps 1 or more")
    if strategy is Strategy.SYNC and num_ps:
        raise ConfigError(
            f"--ps {num_ps}: with --strategy sync every worker has all variables; leave it out, or use async"
        )
    if chief and strategy not in (Strategy.ASYNC, Strategy.STANDALONE):
        raise ConfigError(
            f"--chief {chief}: with --strategy {name} the workers run the script, and there is no chief"
        )
    if has_evaluator and strategy not in (Strategy.SYNC, Strategy.ASYNC):
        raise ConfigError(
            f"--evaluator: with --strategy {name} nobody starts one; it goes with sync and async"
        )


def choose_strategy(wanted: str, num_ps: int, arguments: Sequence[str]) -> Strategy:
    """Turn what a person asked for into a strategy: "auto" goes by the templates in the arguments, and by --ps.

    Raises:
        ConfigError: There is no such strategy.
    """
    if wanted != "auto":
        try:
            return Strategy(wanted)
        except ValueError:
            known = ", ".join(each.value for each in Strategy)
            raise ConfigError(f"--strategy {wanted[:40]}: there are auto, {known}") from None
    if any(match[1] in _TEMPLATES for text in arguments for match in _TEMPLATE.finditer(text)):
        return Strategy.BETWEEN
    return Strategy.ASYNC if num_ps else Strategy.SYNC


# What a task is told


def cluster_spec(
    strategy: Strategy, roles: Sequence[Role], addresses: Sequence[str], *, of_servers: bool = False
) -> dict[str, list[str]]:
    """Return "host:port" of the tasks by their jobs; an evaluator is in no cluster.

    Args:
        strategy: The run's.
        roles: Of all tasks.
        addresses: Of all tasks, in the same order.
        of_servers: Whether servers are told. They wait for all whom they know, and a standalone client never listens.
    """
    hidden = {"evaluator", "chief"} if of_servers and strategy is Strategy.STANDALONE else {"evaluator"}
    found: dict[str, list[str]] = {}
    for role, address in sorted(zip(roles, addresses, strict=True), key=lambda pair: pair[0].job):
        if role.job not in hidden:
            found.setdefault(role.job, []).append(address)
    return found


def tf_config(strategy: Strategy, roles: Sequence[Role], addresses: Sequence[str], task: int) -> str:
    """Write TF_CONFIG for one task."""
    own = roles[task]
    spec = cluster_spec(strategy, roles, addresses, of_servers=not own.runs_script)
    return json.dumps({"cluster": spec, "task": {"type": own.job, "index": own.index}})


# Arguments of scripts that are started once for each task


def check_templates(arguments: Sequence[str]) -> None:
    """Refuse templates that nothing can fill.

    Raises:
        ConfigError: Says which, and how a brace is written that is no template.
    """
    for text in arguments:
        for match in _TEMPLATE.finditer(text):
            if match[1] is not None and match[1] not in _TEMPLATES:
                known = ", ".join(f"{{{name}}}" for name in _TEMPLATES)
                raise ConfigError(
                    f"{match[0][:40]} in {text[:80]!r}: a script of --strategy between is told {known}; braces of "
                    "its own are written {{ and }}"
                )


def filled(text: str, values: Mapping[str, str]) -> str:
    """Put a task's values in the place of the templates."""

    def put(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else values[match[1]]

    return _TEMPLATE.sub(put, text)


def template_values(roles: Sequence[Role], addresses: Sequence[str], task: int) -> dict[str, str]:
    """Return what templates stand for in one task's arguments."""
    by_job = cluster_spec(Strategy.BETWEEN, roles, addresses)
    return {
        "ps_hosts": ",".join(by_job.get("ps", ())),
        "worker_hosts": ",".join(by_job["worker"]),
        "job_name": roles[task].job,
        "task_index": str(roles[task].index),
    }
