"""Tests of predictions over SSH by workers on the hosts with the rows, also when a worker is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.prediction.predicted import content, expected, linear_model, num_rows, rows_of
from tests.waiting import until

pytestmark = pytest.mark.nightly
ROWS = 6_000


@pytest.fixture
def predicted(session):
    session.load("SSH_PREDICT_IN", rows_of(ROWS), backups=1)
    yield "SSH_PREDICT_OUT"
    for name in ("SSH_PREDICT_IN", "SSH_PREDICT_OUT"):
        session.client.destroy_cache(name)


def check(session, name):
    found = content(session, name)
    assert sorted(found) == list(range(ROWS))
    outputs = np.stack([found[key][0]["prediction"] for key in range(ROWS)])
    assert np.array_equal(outputs, expected(rows_of(ROWS)))


def test_each_host_predicts_its_own_rows(session, predicted, bed):
    """Nightly. Shorter: tests/session/test_predictions.py::test_rows_are_predicted_once_beside_their_keys"""
    outcome = session.predict(linear_model(), "SSH_PREDICT_IN", predicted, fields=["x"])
    info = session.run(outcome.run_id).info()
    assert {worker.host for worker in info.workers} == {host.name for host in bed.hosts}
    assert (outcome.rows, outcome.predicted) == (ROWS, ROWS)
    check(session, predicted)


def test_a_killed_worker_costs_a_restart_and_no_row(session, predicted, bed):
    """Nightly. Shorter: tests/prediction/test_progress.py::test_notes_add_up_until_the_end"""
    killed = []

    def kill():
        until(lambda: num_rows(session, predicted) > ROWS // 4)
        (info,) = [
            each for each in session.runs() if each.cache == "SSH_PREDICT_IN" and not each.state.has_ended
        ]
        worker = info.workers[1]
        (host,) = [host for host in bed.hosts if host.name == worker.host]
        host.run(["kill", "-KILL", str(worker.pid)])
        killed.append(info.id)

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        outcome = session.predict(linear_model(), "SSH_PREDICT_IN", predicted, fields=["x"], batch_size=8)
        killing.result()
    assert session.run(killed[0]).info().restarts == 1
    assert outcome.rows == ROWS
    check(session, predicted)
