"""Sums over all workers, of many sizes, in graphs, branches and loops, and eagerly: sums_on.py FOLDER."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import as_worker  # noqa: F401
import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.group import worker_group

NUM_CALLS = 2000
group = worker_group()
place = group.place
group.connect()
own, total = place.index + 1, place.size * (place.size + 1) / 2


def memory_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@tf.function(reduce_retracing=True)
def many(x, is_one_way):
    first = group.sum([x])[0]
    if is_one_way:  # noqa: SIM108 - a branch of the graph
        other = group.sum([2.0 * x, tf.constant([1, 2])])[0]
    else:
        other = group.sum([3.0 * x])[0]
    turns = tf.zeros_like(x)
    for _ in tf.range(4):
        turns += group.sum([x])[0]
    # Two independent sums of the same size.
    one, another = group.sum([5.0 * x])[0], group.sum([7.0 * x])[0]
    return first, other, turns, one, another


random, are_right = np.random.default_rng(0), True
for number in range(60):
    x = random.normal(size=int(random.integers(1, 9)))
    for dtype in (np.float32, np.float64, np.int32, np.int64):
        sums = group.sum([(x * own).astype(dtype), np.zeros((2, 0), dtype)])
        are_right &= np.allclose(sums[0], sum((x * (each + 1)).astype(dtype) for each in range(place.size)))
    found = many(tf.constant(x * own), tf.constant(number % 3 == 0))
    factors = (1, 2 if number % 3 == 0 else 3, 4, 5, 7)
    are_right &= all(
        np.allclose(each, x * total * factor) for each, factor in zip(found, factors, strict=True)
    )


@tf.function
def averaged(weight, values):
    tensors = [
        tf.fill([300_000], values),
        tf.fill([2, 3], values),
        tf.cast(values, tf.float64),
        tf.zeros([0]),
    ]
    tensors.append(tf.cast(tf.fill([4], values), tf.bfloat16))
    return group.weighted_means(tensors, tf.stack([1.0, weight]), 1)


# Two workers with rows; one without rows and with values that are not numbers; none with rows.
for weights, values, expected in (
    ((1, 3), (2.0, 4.0), 3.5),
    ((2, 0), (5.0, np.nan), 5.0),
    ((0, 0), (np.nan, np.inf), 0.0),
):
    index = place.index
    means, along = averaged(tf.constant(float(weights[index])), tf.constant(values[index]))
    are_right &= [each.shape.as_list() for each in means] == [[300_000], [2, 3], [], [0], [4]]
    are_right &= all(np.all(np.asarray(each, np.float64) == expected) for each in means)
    are_right &= float(along[1]) == sum(weights)


@tf.function
def once(x):
    return group.sum([x])[0]


tensor = tf.ones([1000])
grown = {}
for name, call in {"graph": once, "eager": lambda x: group.sum([x])}.items():
    for _ in range(200):
        call(tensor)
    before = memory_kib()
    for _ in range(NUM_CALLS):
        call(tensor)
    grown[name] = memory_kib() - before
path = Path(sys.argv[1]) / f"sums-{place.index}.json"
path.write_text(json.dumps({"are_right": bool(are_right), "grown_kib": grown}))
group.settle()
