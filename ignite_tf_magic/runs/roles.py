"""The tasks of a run's cluster: their roles, and the cluster description that each task receives. Pure."""

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
    """How a run's tasks work together, in the terms of TensorFlow's guides."""

    SYNC = "sync"  # every worker runs the script, and all take each step together
    ASYNC = "async"  # a chief, which alone runs the script, drives workers and parameter servers
    STANDALONE = "standalone"  # plain servers, and the script as their client
    BETWEEN = (
        "between"  # between-graph replication: the script runs once for each worker and parameter server
    )


@dataclass(frozen=True, slots=True)
class Role:
    """The role of one task of a run.

    Attributes:
        job: Its job in the cluster spec: "worker", "ps", "chief" or "evaluator".
        index: Its number in that job.
        name: Name for users: "worker 0", "ps 1", "chief".
        runs_script: Whether it runs the script; else it is a TensorFlow server that others drive.
        has_share: Whether it reads a part of the cache's partitions and has a worker's resources: GPUs and memory.
        decides: Whether the run waits for its success. When all such tasks have succeeded, the others are ended.
        must_join: Whether the other tasks may wait for its server forever.
        respawns: Whether its process is started again after a signal has ended it, while the other tasks continue.
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
    """Return the tasks of a run. Workers come first, so a worker's number is also its task's number."""
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
    """Check that a strategy can use these tasks.

    Raises:
        ConfigError: It cannot; the message names the conflicting option and the alternatives.
    """
    name = strategy.value
    if num_ps < 0:
        raise ConfigError(f"--ps {num_ps} is not a number of parameter servers; pass 0 or more")
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
        raise ConfigError(f"--evaluator is not available with --strategy {name}, only with sync and async")


def choose_strategy(wanted: str, num_ps: int, arguments: Sequence[str]) -> Strategy:
    """Return the strategy that a user asked for; "auto" decides by the templates in the arguments, and by --ps.

    Raises:
        ConfigError: There is no such strategy.
    """
    if wanted != "auto":
        try:
            return Strategy(wanted)
        except ValueError:
            known = ", ".join(each.value for each in Strategy)
            raise ConfigError(f"--strategy {wanted[:40]} is unknown; use one of auto, {known}") from None
    if any(match[1] in _TEMPLATES for text in arguments for match in _TEMPLATE.finditer(text)):
        return Strategy.BETWEEN
    return Strategy.ASYNC if num_ps else Strategy.SYNC


# The cluster description that a task receives


def cluster_spec(
    strategy: Strategy, roles: Sequence[Role], addresses: Sequence[str], *, of_servers: bool = False
) -> dict[str, list[str]]:
    """Return "host:port" of the tasks by job; an evaluator does not belong to the cluster.

    Args:
        strategy: The run's strategy.
        roles: Roles of all tasks.
        addresses: Addresses of all tasks, in the same order.
        of_servers: Whether the result is for servers. Servers wait for all tasks they know, so they must not know the
            client of a standalone cluster, which never listens.
    """
    hidden = {"evaluator", "chief"} if of_servers and strategy is Strategy.STANDALONE else {"evaluator"}
    found: dict[str, list[str]] = {}
    for role, address in sorted(zip(roles, addresses, strict=True), key=lambda pair: pair[0].job):
        if role.job not in hidden:
            found.setdefault(role.job, []).append(address)
    return found


def tf_config(strategy: Strategy, roles: Sequence[Role], addresses: Sequence[str], task: int) -> str:
    """Return the TF_CONFIG of one task."""
    own = roles[task]
    spec = cluster_spec(strategy, roles, addresses, of_servers=not own.runs_script)
    return json.dumps({"cluster": spec, "task": {"type": own.job, "index": own.index}})


# Arguments of scripts that are started once per task


def check_templates(arguments: Sequence[str]) -> None:
    """Check that all templates in the arguments are known.

    Raises:
        ConfigError: One is not; the message names it and shows how to write a literal brace.
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
    """Replace the templates in a text by a task's values."""

    def put(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else values[match[1]]

    return _TEMPLATE.sub(put, text)


def template_values(roles: Sequence[Role], addresses: Sequence[str], task: int) -> dict[str, str]:
    """Return the values that replace the templates in one task's arguments."""
    by_job = cluster_spec(Strategy.BETWEEN, roles, addresses)
    return {
        "ps_hosts": ",".join(by_job.get("ps", ())),
        "worker_hosts": ",".join(by_job["worker"]),
        "job_name": roles[task].job,
        "task_index": str(roles[task].index),
    }
