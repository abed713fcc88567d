"""Tests that `RUN.history` and `RUN.metrics` have the columns that their docstring lists, as data frames."""

from __future__ import annotations

import inspect
import re

import pandas as pd
import pytest

from ignite_tf_magic.session.training_run import TrainingRun, frame_of
from ignite_tf_magic.training.records import TrainingRecord, WorkerMeasures

KNOWN = WorkerMeasures(memory_bytes=3, cpu_cores=1, gpu_share=0.5)  # numbers from JSON may be int


def kind_of(column: pd.Series) -> str:
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return f"datetime64, {column.dtype.tz}"
    return "str" if pd.api.types.is_string_dtype(column) else str(column.dtype)


@pytest.mark.parametrize("workers", [(KNOWN,), ()], ids=["measured", "unknown"])
def test_a_frame_has_the_columns_of_the_docstring(workers):
    known = {"examples_per_s": 10.0, "data_wait": 0.1} if workers else {}
    records = [
        TrainingRecord(1.5, "fit-0", 0, step, values={"NAME": 1.0}, workers=workers, **known)
        for step in (1, 2)
    ]
    told = dict(
        re.findall(r"^    (\w+): (.+?)\. ", inspect.getdoc(TrainingRun.history) or "", flags=re.MULTILINE)
    )
    if not workers:
        del told["gpu_share"]
    frame = frame_of(records)
    assert {str(name): kind_of(frame[name]) for name in frame} == told
    assert list(frame) == list(told)


def test_before_the_first_record_there_are_no_columns():
    assert frame_of([]).empty
