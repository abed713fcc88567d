"""Variants `dataset_*`: rows through `IgniteDataset`, iterated as in a training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.process import Stopwatch, repeat, serve, task_of_this_process
from ignite_tf_magic.dataset.ignite import IgniteDataset

SHUFFLED_ROWS = 10_000


def scale_and_one_hot(row: Any) -> tuple[Any, Any]:
    """Convert a digit to model input."""
    return tf.cast(row["val"]["pixels"], tf.float32) / 255.0, tf.one_hot(row["val"]["label"], 10)


def scale(row: Any) -> tuple[Any, Any]:
    """Convert a row of numbers to model input."""
    value = row["val"]
    return tf.cast(tf.stack([value["x"], value["y"]]), tf.float32) / 2.0, value["n"]


def batches_of(dataset: Any, variant: str, batch_rows: int) -> Any:
    """Return the batches of a variant."""
    if variant == "dataset_map_batch":
        is_digit = "pixels" in dataset.element_spec["val"]
        dataset = dataset.map(scale_and_one_hot if is_digit else scale)
    elif variant == "dataset_shuffle_batch":
        dataset = dataset.shuffle(SHUFFLED_ROWS)
    return dataset.batch(batch_rows)


def counting_pass(batches: Any) -> Callable[[Stopwatch], int]:
    """Return a pass that takes each batch and counts its rows."""

    def one_pass(watch: Stopwatch) -> int:
        with watch:
            return sum(tf.nest.flatten(batch)[0].shape[0] for batch in batches)

    return one_pass


def first_pass(task: dict[str, Any]) -> Callable[[Stopwatch], int]:
    """Return a pass that opens the dataset anew, untimed, and reads it for the first time."""

    def one_pass(watch: Stopwatch) -> int:
        return counting_pass(batches_of(_open(task), task["variant"], task["batch_rows"]))(watch)

    return one_pass


def _open(task: dict[str, Any]) -> Any:
    return IgniteDataset(task["cache"], task["host"], task["port"], part=task.get("part"))


def main(task: dict[str, Any]) -> None:
    """Serve the harness."""
    if task["variant"] == "dataset_first_batch":
        one_pass = first_pass(task)
    else:
        one_pass = counting_pass(batches_of(_open(task), task["variant"], task["batch_rows"]))
    for _ in range(2):  # the first pass measures the row sizes
        repeat(one_pass, task["num_rows"], 0)
    serve(one_pass, task["num_rows"], {"batch_rows": task["batch_rows"]})


if __name__ == "__main__":
    main(task_of_this_process())
