"""Batches of NumPy arrays: equal steps, every row once, seeded orders, and resuming in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

from ignite_tf_magic import batches
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.errors import ConfigError, EmptyCache
from ignite_tf_magic.protocol.messages import CacheConfig

SHARES = [list(range(100)), list(range(100, 300)), list(range(300, 1024))]


def keys_of(found) -> list[list[int]]:
    return [batch["key"].tolist() for batch in found]


def joined(steps) -> list[int]:
    return list(chain.from_iterable(steps))


@pytest.mark.smoke
def test_batches_are_the_caches_rows(digits):
    found = list(batches(digits.name, 128, **digits.where()))
    assert [len(batch["key"]) for batch in found][:-1] == [128] * (len(found) - 1)
    keys = np.concatenate([batch["key"] for batch in found])
    assert sorted(keys) == list(digits.keys)
    for batch in found:
        assert batch["val"]["pixels"].dtype == np.uint8
        np.testing.assert_array_equal(batch["val"]["pixels"], digits.columns["pixels"][batch["key"]])
        np.testing.assert_array_equal(batch["val"]["label"], digits.columns["label"][batch["key"]])


def test_workers_make_equal_steps_and_see_every_row_once(as_worker, digits):
    parts = []
    for worker in range(3):
        as_worker(worker, SHARES)
        rows = batches(digits.name, 60)
        assert rows.num_steps == len(rows) == -(-len(digits.keys) // 60)
        parts.append(keys_of(rows))
        assert len(parts[-1]) == rows.num_steps
    sizes = [sum(map(len, step)) for step in zip(*parts, strict=True)]
    assert sizes == [60] * (len(sizes) - 1) + [len(digits.keys) - 60 * (len(sizes) - 1)]
    assert sorted(key for part in parts for step in part for key in step) == list(digits.keys)


@pytest.mark.parametrize("policy", ["drop", "repeat"])
def test_the_last_batch_is_left_out_or_filled_up(as_worker, digits, policy):
    total = 0
    for worker in range(3):
        as_worker(worker, SHARES)
        found = keys_of(batches(digits.name, 300, equal_steps=policy))
        total += len(found[-1])
        assert len(found) == len(digits.keys) // 300 + (policy == "repeat")
    assert total == 300


def test_a_worker_without_rows_gets_batches_without_any(as_worker, digits):
    as_worker(0, [[], list(range(1024))])
    found = list(batches(digits.name, 100))
    assert {len(batch["key"]) for batch in found} == {0}
    assert found[0]["val"]["pixels"].shape == (0, 64)
    assert found[0]["val"]["pixels"].dtype == np.uint8


def test_orders_follow_from_the_seed_and_differ_by_epoch(as_worker, digits):
    as_worker(2, SHARES)
    rows = batches(digits.name, 100, shuffle=400, seed=3)
    first, second = keys_of(rows), keys_of(rows)
    assert first != second
    assert sorted(joined(first)) == sorted(joined(second))
    assert joined(first) != sorted(joined(first))
    again = batches(digits.name, 100, shuffle=400, seed=3)
    assert [keys_of(again), keys_of(again)] == [first, second]
    assert keys_of(batches(digits.name, 100, shuffle=400, seed=4)) != first


def test_it_goes_on_in_the_middle_of_an_epoch(as_worker, digits):
    as_worker(2, SHARES)
    rows = batches(digits.name, 100, shuffle=400, seed=3)
    epochs = [keys_of(rows) for _ in range(3)]
    rows = batches(digits.name, 100, shuffle=400, seed=3)
    list(rows)
    for step, _ in enumerate(rows, 1):
        if step == 4:
            break
    saved = json.loads(json.dumps(rows.state()))
    assert (saved["epoch"], saved["step"]) == (1, 4)

    later = batches(digits.name, 100, shuffle=400, seed=3)
    later.restore(saved)
    assert later.state() == saved
    assert keys_of(later) == epochs[1][4:]
    assert keys_of(later) == epochs[2]
    assert later.state() == {"epoch": 3, "step": 0, "rows_by_worker": [], "record": None}


def test_with_other_partitions_the_rest_of_the_epoch_is_that_which_is_left(as_worker, digits):
    given, states = [], []
    for worker in range(2):
        as_worker(worker, [list(range(200)), list(range(200, 1024))])
        rows = batches(digits.name, 100, shuffle=400, seed=3)
        for step, batch in enumerate(rows, 1):
            given += batch["key"].tolist()
            if step == 3:
                break
        states.append(rows.state())
    moved = [list(range(900, 1024)), list(range(900))]
    for worker in range(2):
        as_worker(worker, moved)
        rows = batches(digits.name, 100, shuffle=400, seed=3)
        with pytest.raises(ConfigError, match="the states of all workers are needed"):
            rows.restore(states[worker])
        rows.restore(*states)
        given += joined(keys_of(rows))
    assert sorted(given) == list(digits.keys)


def test_states_that_do_not_fit_are_refused(as_worker, digits, make_cache):
    as_worker(0, SHARES)
    rows = batches(digits.name, 100)
    next(iter(rows))
    state = rows.state()
    with pytest.raises(ConfigError, match="different steps"):
        rows.restore(state, {**state, "step": 2})
    as_worker(0, [list(range(512)), list(range(512, 1024))])
    with pytest.raises(ConfigError, match="do not fit the rows"):
        batches(digits.name, 100).restore(state, state, state)


def test_texts_and_arrays_of_different_lengths(make_cache):
    texts = np.array(["a", "bb", "", "cccc", "é"], object)
    lists = np.array([np.arange(n, dtype=np.int32) for n in (3, 0, 1, 2, 0)], object)
    cache = make_cache({"text": texts, "numbers": lists})
    found = list(batches(cache.name, 2, **cache.where()))
    assert [len(batch["key"]) for batch in found] == [2, 2, 1]
    for batch in found:
        for key, text, numbers in zip(
            batch["key"], batch["val"]["text"], batch["val"]["numbers"], strict=True
        ):
            assert text.decode() == texts[key]
            np.testing.assert_array_equal(numbers, lists[key])


def test_what_cannot_be(digits, make_cache):
    for arguments in ({"batch_size": 0}, {"batch_size": 2.5}, {"batch_size": 8, "shuffle": -1}):
        with pytest.raises(ConfigError, match="a whole number from"):
            batches(digits.name, **arguments, **digits.where())
    with pytest.raises(ConfigError, match="choose one of"):
        batches(digits.name, 8, equal_steps="all", **digits.where())
    with pytest.raises(TypeError, match="outside of a run"):
        len(batches(digits.name, 8, **digits.where()))
    assert list(batches(make_cache({"x": np.zeros(0)}).name, 8, **digits.where())) == []


def test_of_a_cache_of_which_nothing_tells_the_types(ignite, digits):
    with connect(ignite.connect_options) as client:
        client.create_cache(CacheConfig(name="NOTHING_KNOWN"))
        try:
            with pytest.raises(EmptyCache, match="NOTHING_KNOWN"):
                batches("NOTHING_KNOWN", 8, **digits.where())
        finally:
            client.destroy_cache("NOTHING_KNOWN")


def test_without_tensorflow_and_to_jax_without_a_copy(digits):
    script = f"""
import sys
sys.modules["tensorflow"] = None
import ignite_tf_magic
total = 0
for batch in ignite_tf_magic.batches({digits.name!r}, 100, **{digits.where()!r}):
    total += int(batch["val"]["label"].sum())
assert "pandas" not in sys.modules and "IPython" not in sys.modules
import jax.numpy as jnp
labels = jnp.from_dlpack(batch["val"]["label"])
print(total, int(labels.sum()) == int(batch["val"]["label"].sum()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(digits.columns["label"].sum()), "True"]
