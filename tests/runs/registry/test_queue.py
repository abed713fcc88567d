"""Tests of the order of queued runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ignite_tf_magic.errors import NoRoom
from ignite_tf_magic.runs.record import RunRecord, RunSpec
from ignite_tf_magic.runs.registry.queue import check_turn
from ignite_tf_magic.runs.registry.registry import Owner, RegistryEntry
from ignite_tf_magic.runs.states import RunState


def queued(name, started_at, **spec) -> RunRecord:
    return RunRecord(name, RunSpec("MNIST", **{"num_gpus": 1, **spec}), RunState.QUEUED, started_at)


OWNER = Owner("h", 1, "i", 1)


def listed(*records, owner=OWNER):
    return [RegistryEntry(record.to_json(), owner) for record in records]


ME = queued("me", 100.0)
NOT_IN_FRONT = [
    queued("me", 100.0),
    queued("later", 200.0),
    queued("low", 50.0, priority=-1),
    queued("needs-nothing", 50.0, num_gpus=0),
    replace(queued("runs", 50.0), state=RunState.RUNNING),
]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (queued("early", 50.0), "run early is ahead of it in the queue"),
        (queued("urgent", 200.0, priority=2), "run urgent with priority 2 is ahead of it in the queue"),
        (queued("here", 50.0, hosts=("db1",)), "run here is ahead of it"),
    ],
)
def test_who_is_in_front_comes_first(other, words):
    with pytest.raises(NoRoom, match=words):
        check_turn(ME, listed(ME, other, *NOT_IN_FRONT))


def test_others_do_not_keep_a_run_waiting():
    check_turn(ME, listed(*NOT_IN_FRONT))
    check_turn(ME, listed(queued("nobody-answers", 50.0), owner=None))
    check_turn(replace(ME, state=RunState.RESTARTING), listed(queued("early", 50.0)))
    elsewhere = replace(ME, spec=replace(ME.spec, hosts=("db2",)))
    check_turn(elsewhere, listed(queued("here", 50.0, hosts=("db1",))))
