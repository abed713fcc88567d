"""`results/follow.json`: the cost of following a run of 1,024 partitions, also while nothing happens."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.plan import Report
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.runs.directory import RunDirectory, create_directory
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.hosts.topology import connect_to_most
from ignite_tf_magic.runs.logs.mirror import seen_directory
from ignite_tf_magic.runs.orders import Order, Phase, TaskSlot
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec, WorkerRecord, this_process
from ignite_tf_magic.runs.registry.origins import LocalRun, RemoteRun
from ignite_tf_magic.runs.registry.publisher import new_owner
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.session import OutputChunk, TrainingRun
from ignite_tf_magic.settings.options import ConnectOptions
from ignite_tf_magic.ui.following import show_output
from ignite_tf_magic.ui.shell.screen import ShellScreen

ROOT = Path(__file__).parent.parent
NUM_PARTITIONS, NUM_WORKERS = 1024, 3
_PAUSES_S = {"idle": 0.0, "lines": 0.1}
_WARM_UP_S = 2.0
_OWNER = Path(__file__).parent / "scripts" / "own_run.py"


@dataclass(slots=True)
class _Meter:
    """Processor time of this process while it follows a run."""

    seconds: float
    share: float = 0.0

    def watch(self, chunks: Iterable[OutputChunk]) -> Iterator[OutputChunk]:
        """Pass output on for the measured time, after a warm-up that is not measured."""
        begin, end = time.monotonic() + _WARM_UP_S, time.monotonic() + _WARM_UP_S + self.seconds
        before: tuple[float, float] | None = None
        for chunk in chunks:
            now = time.monotonic()
            if before is None and now >= begin:
                before = now, time.process_time()
            if before is not None and now >= end:
                self.share = (time.process_time() - before[1]) / (now - before[0])
                return
            yield chunk


def run(options: ConnectOptions, seconds: float, report: Report) -> list[dict[str, Any]]:
    """Follow an attached and a detached run as a shell does, each while it is silent and while it writes."""
    rows = []
    for case in ("attached", "detached"):
        for variant, pause_s in _PAUSES_S.items():
            with tempfile.TemporaryDirectory(prefix="bench-follow-") as folder:
                share = _share(Path(folder), options, seconds, pause_s, is_detached=case == "detached")
            rows.append(
                {
                    "case": case,
                    "variant": variant,
                    "cpu_percent": round(100 * share, 2),
                    "partitions": NUM_PARTITIONS,
                    "lines_per_s": round(NUM_WORKERS / pause_s) if pause_s else 0,
                }
            )
            report(f"{case}, {variant}: {100 * share:.2f} % of a core")
    return rows


def _share(
    state: Path, options: ConnectOptions, seconds: float, pause_s: float, *, is_detached: bool
) -> float:
    meter = _Meter(seconds)
    with _going_on(state, options, is_detached=is_detached) as run, owner(run.directory, pause_s):
        training = TrainingRun.of(run, lambda: options)
        with (
            training.tail() as tail,
            closing(training.follow(with_pauses=True)) as chunks,
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
        ):
            screen = ShellScreen("ignite-tf")
            show_output(training, meter.watch(chunks), range(NUM_WORKERS), screen.run_view(), screen, tail)
    return meter.share


@contextmanager
def _going_on(state: Path, options: ConnectOptions, *, is_detached: bool) -> Iterator[Run]:
    """Make a run that appears to be running; a detached one has a live owner in the registry."""
    reach = Reach(state)
    if not is_detached:
        directory = create_directory(state / "runs", "followed")
        record_of(directory).write(directory)
        yield Run(directory, LocalRun(directory, reach), reach)
        return
    directory = seen_directory(state, f"followed-{os.getpid()}-{time.monotonic_ns()}")
    # Without hosts: copying from them depends on their output, and launch.json measures it.
    record = replace(record_of(directory), detached=True, hosts=())
    record.write(directory)
    registry = partial(Registry, partial(connect_to_most, options))
    with connect(options) as client, Registry(client, timeouts=Timeouts(pool_lapse_s=3600.0)) as told:
        told.create(record.to_json())
        told.touch_owner(record.run_id, new_owner(), detached=True)
        yield Run(directory, RemoteRun(directory, reach, registry), reach)
        told.remove(record.run_id)


def record_of(directory: RunDirectory) -> RunRecord:
    """Return the record of a running run of this process with 1,024 partitions."""
    shares = [tuple(range(worker, NUM_PARTITIONS, NUM_WORKERS)) for worker in range(NUM_WORKERS)]
    slots = tuple(
        TaskSlot(worker, "localhost", "127.0.0.1:10800", share, {str(each): (1000, 800) for each in share})
        for worker, share in enumerate(shares)
    )
    return RunRecord(
        directory.run_id,
        RunSpec("FOLLOWED", NUM_WORKERS),
        RunState.RUNNING,
        time.time(),
        hosts=(HostRecord("localhost"),),
        order=Order(1, Phase.RUN, slots),
        workers=tuple(WorkerRecord(worker, "localhost", 1000) for worker in range(NUM_WORKERS)),
        **this_process(),
    )


@contextmanager
def owner(directory: RunDirectory, pause_s: float) -> Iterator[None]:
    """Start a process that holds the run's lock and writes its logs, as its owner does."""
    logs = [str(directory.log(worker, 1)) for worker in range(NUM_WORKERS)]
    command = [sys.executable, str(_OWNER), str(directory.owner_lock), str(pause_s), *logs]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdout.readline()
            yield
        finally:
            process.stdin.close()
            process.wait()
