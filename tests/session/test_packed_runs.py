"""Tests of runs on a packed cache: each worker knows its number of rows, and reads exactly its own rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ignite_tf_magic.client.cache_facts import forget
from ignite_tf_magic.session import RunRequest, RunState, open_session

CACHE, ROWS = "PACKED_RUN", 1000
READ = """
import json, os
import ignite_tf_magic
rows = json.load(open(os.environ["IGNITE_DATASET_ASSIGNMENT_FILE"]))["rows_by_worker"]
taken = [batch["key"].tolist() for batch in ignite_tf_magic.batches("PACKED_RUN", 96)]
print(json.dumps([rows, [len(each) for each in taken], sorted(sum(taken, []))]))
"""


@pytest.fixture
def session(ignite, tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened
        opened.client.destroy_cache(CACHE)
        forget(opened.client, CACHE)


def test_each_worker_reads_the_rows_it_was_told(session):
    session.load(CACHE, {"x": np.arange(ROWS)}, packed=True)
    request = RunRequest(CACHE, READ, num_workers=2)
    plan = session.plan_run(request)
    assert sum(seat.rows for seat in plan.seats) == sum(row.rows for row in plan.rows) == ROWS
    run = session.start_run(request)
    texts = {0: "", 1: ""}
    for chunk in run.follow():
        texts[chunk.worker] += chunk.text
    assert run.info().state is RunState.SUCCEEDED, texts
    (rows, steps, mine), (rows_again, steps_again, others) = (json.loads(texts[worker]) for worker in (0, 1))
    assert rows == rows_again == [len(mine), len(others)] and min(rows) > ROWS // 4
    assert sorted(mine + others) == list(range(ROWS))
    assert [sum(step) for step in zip(steps, steps_again, strict=True)] == [96] * 10 + [40]
