"""Sizes and durations: the full benchmark, or a quick one that only shows that everything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cases import Case, mib, mnist, named, numeric

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        seconds: Least duration of the passes of one round.
        rounds: How often each variant gets its turn; the best round counts.
        trial_s: Least duration of a trial of one page or batch size.
        runs: How often a run is started for the time to its first step.
    """

    seconds: float
    rounds: int
    trial_s: float
    runs: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        small_rows: Cases for nodes with a modest heap.
        other_sizes: Cases of the same rows in other numbers, for nodes with enough memory.
        large_rows: Cases for nodes with 1 GiB of heap.
        memory: Cases for measuring the reader's memory.
        load_rows: Rows of the loading case.
        sql_rows: Rows of the table that SQL reads.
        file_mib: Size of igfs's large file.
        checkpoint_mib: Size of the checkpoint saved to igfs.
        num_hosts: Numbers of fake hosts that are reached at once.
        stream_mb: Output of one worker.
        num_lines: Lines whose age is measured when they arrive.
        num_kills: Trainings with a killed worker.
        num_skewed: Trainings on two workers with very different numbers of rows.
        follow_s: How long each run is followed.
        train_rows: Rows of a small net's training.
        train_rounds: Rounds of training in each way.
        num_steps: Steps of small models in each way.
    """

    effort: Effort
    small_rows: tuple[Case, ...]
    other_sizes: tuple[Case, ...]
    large_rows: tuple[Case, ...]
    memory: tuple[Case, ...]
    load_rows: int
    sql_rows: int
    file_mib: int
    checkpoint_mib: int
    num_hosts: tuple[int, ...]
    stream_mb: int
    num_lines: int
    num_kills: int
    num_skewed: int
    follow_s: float
    train_rows: int
    train_rounds: int
    num_steps: int


FULL = Plan(
    effort=Effort(seconds=3.0, rounds=3, trial_s=1.0, runs=3),
    small_rows=(mnist(60_000), numeric(1_000_000)),
    other_sizes=(named(mnist(1_000_000), "mnist_1m"), named(numeric(60_000), "numeric_60k")),
    large_rows=(mib(1_000),),
    memory=(mnist(2_500_000), mib(2_000)),
    load_rows=60_000,
    sql_rows=100_000,
    file_mib=1024,
    checkpoint_mib=100,
    num_hosts=(10, 30, 100),
    stream_mb=100,
    num_lines=200,
    num_kills=20,
    num_skewed=50,
    follow_s=15.0,
    train_rows=20_000,
    train_rounds=7,
    num_steps=300,
)
QUICK = Plan(
    effort=Effort(seconds=0.1, rounds=2, trial_s=0.01, runs=1),
    small_rows=(mnist(4_000), numeric(10_000)),
    other_sizes=(named(mnist(8_000), "mnist_1m"),),
    large_rows=(mib(40),),
    memory=(mnist(150_000),),
    load_rows=2_000,
    sql_rows=2_000,
    file_mib=16,
    checkpoint_mib=10,
    num_hosts=(2, 4),
    stream_mb=2,
    num_lines=20,
    num_kills=1,
    num_skewed=1,
    follow_s=1.0,
    train_rows=1_000,
    train_rounds=2,
    num_steps=20,
)
