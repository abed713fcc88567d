"""Reads this process's task in the cluster from TF_CONFIG. Does not import TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ignite_tf_magic.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a run. A process outside of runs is a single worker.

    Attributes:
        kind: "worker", "chief", "ps" or "evaluator".
        index: The task's number among those of its kind.
        addresses: "host:port" of all tasks, by kind.
    """

    kind: str = "worker"
    index: int = 0
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def num_workers(self) -> int:
        """The number of workers in the run."""
        return max(len(self.addresses.get("worker", ())), 1)

    @property
    def is_chief(self) -> bool:
        """Whether this task saves and reports: it is the chief, or without a chief the first worker."""
        return self.kind == ("chief" if "chief" in self.addresses else "worker") and self.index == 0


def task() -> Task:
    """Return the task of this process in its run, for example to write one file per worker.

    Raises:
        ConfigError: TF_CONFIG cannot be read.
    """
    return task_from(os.environ)


def task_from(environment: Mapping[str, str]) -> Task:
    """Return the task that TF_CONFIG in an environment describes.

    Raises:
        ConfigError: TF_CONFIG cannot be read.
    """
    text = environment.get("TF_CONFIG", "")
    if not text:
        return Task()
    try:
        config = json.loads(text)
        addresses = {kind: tuple(map(str, listed)) for kind, listed in config.get("cluster", {}).items()}
        own = config.get("task", {})
        return Task(str(own.get("type", "worker")), int(own.get("index", 0)), addresses)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG cannot be read: {error!r}: {text[:200]}") from error


@dataclass(frozen=True, slots=True)
class Place:
    """The position of this process among the workers that train one model together.

    Attributes:
        addresses: "host:port" of each worker's TensorFlow server, by worker number. A single worker has one empty
            address.
        index: This worker's number.
    """

    addresses: tuple[str, ...] = ("",)
    index: int = 0

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this worker saves and reports."""
        return self.index == 0


def place_of(task: Task) -> Place:
    """Return a task's place. An evaluator, and each task of a cluster with other kinds than workers, is alone."""
    workers = task.addresses.get("worker", ())
    if set(task.addresses) != {"worker"} or len(workers) < 2 or task.kind != "worker":
        return Place()
    return Place(workers, task.index)


def hands_steps_out(task: Task) -> bool:
    """Return whether a task is a chief whose `fit` runs its steps on workers, with parameter servers."""
    return task.kind == "chief" and bool(task.addresses.get("ps")) and bool(task.addresses.get("worker"))


def why_alone(task: Task) -> str | None:
    """Return a warning that `fit` trains in this task alone, if a user may expect otherwise; else None."""
    jobs = [job for job, addresses in task.addresses.items() if addresses and job != task.kind]
    if task.kind == "evaluator":
        return "this fit trains a model in the evaluator alone, separate from the other tasks"
    if not jobs or task.kind == "ps":
        return None
    if task.kind == "chief":
        return (
            f"this fit trains in the chief alone, with all rows of the cache, and the {task.num_workers} "
            "workers do not help: a script must place operations on them (docs/strategies.md). With "
            "--strategy sync fit trains one model on all workers; with --ps 1 it distributes its steps to "
            "them"
        )
    return (
        f"this fit trains a model of worker {task.index} alone, on its own rows. With --strategy sync, and no --ps, "
        "fit trains one model on all workers"
    )
