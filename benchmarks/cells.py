"""Waiting times in a notebook, with workers on three hosts behind real sshds: start, ps, stop, and output.

Hosts, nodes and the kernel share this machine's cores and clock.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.fault_stage import CACHE, ROOT, Stage
from benchmarks.plan import Report
from tests.ui.notebook.kernels import CellResult, Kernel

_GONE_S = 60.0
_SILENCE_S = 300.0
_STAMP = re.compile(r"began ([0-9.]+) came up ([0-9.]+)")

_COME_UP = """
import os, time
came_up = time.time()
ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
began = came_up - float(open("/proc/uptime").read().split()[0]) + ticks
print("began", began, "came up", came_up, flush=True)
"""
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
_WAIT = "time.sleep(1000)\n"
_STAMPS = """
import random, time
for _ in range({number}):
    time.sleep(random.uniform(0.05, 0.2))
    print(time.time(), flush=True)
"""
_STREAM = """
line = b"0123456789" * 10 + b"\\n"
import sys
for _ in range({megabytes} * 1_000_000 // (1000 * len(line))):
    sys.stdout.buffer.write(1000 * line)
print("the end")
"""


def run(num_rounds: int, num_stamps: int, megabytes: int, report: Report) -> list[dict[str, Any]]:
    """Measure several starts and stops, then the age of lines in the cell, then a stream."""
    with _desk(4 * megabytes + 64, report) as (stage, kernel):
        rounds = [start_and_stop(stage, kernel, "", report) for _ in range(num_rounds)]
        deaf = start_and_stop(stage, kernel, _DEAF, report)
        first, later = rounds[0], rounds[1:] or rounds
        return [
            {"case": "cell", "variant": "3 hosts, the first run", **first},
            {"case": "cell", "variant": "3 hosts, median of later ones", **_medians(later)},
            {"case": "cell", "variant": "3 hosts, workers that ignore SIGTERM", **deaf},
            _doctor(kernel, report),
            _latency(kernel, num_stamps, report),
            _stream(kernel, megabytes, report),
            _interrupted(kernel, megabytes, report),
        ]


@contextmanager
def _desk(disk_mb: int, report: Report) -> Iterator[tuple[Stage, Kernel]]:
    """Start three hosts, and a notebook that uses their configuration."""
    with desks({"new": ROOT}, disk_mb, report) as (stage, kernels):
        yield stage, kernels["new"]


@contextmanager
def desks(
    trees: Mapping[str, Path], disk_mb: int, report: Report
) -> Iterator[tuple[Stage, dict[str, Kernel]]]:
    """Start three hosts, and for each tree a notebook that uses their configuration."""
    with (
        tempfile.TemporaryDirectory(prefix="cells-", ignore_cleanup_errors=True) as name,
        closing(Stage(Path(name), report, disk_mb=disk_mb)) as stage,
        ExitStack() as ends,
    ):
        stage.bed  # noqa: B018 - the property makes the bed
        kernels = {}
        for tree_name, tree in trees.items():
            home = stage.folder / f"home-{tree_name}"
            home.mkdir(mode=0o700)
            path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
            kernel = Kernel({**os.environ, "IGNITE_TF_HOME": str(home), "PYTHONPATH": path}, stage.folder)
            ends.callback(kernel.close)
            kernel.run("%load_ext ignite_tf_magic")
            kernels[tree_name] = kernel
        yield stage, kernels


def start_and_stop(stage: Stage, kernel: Kernel, more: str, report: Report) -> dict[str, Any]:
    """Start a run of three workers that first execute `more`, list it, and stop it. Returns the figures."""
    script = more + _COME_UP + _WAIT
    began = time.time()
    shown = kernel.run(
        f"%%ignite_tf start {CACHE} --workers 3\n{script}", on_stdout=_once(kernel, lambda s: _ups(s) >= 3)
    )
    stamps = [tuple(map(float, found)) for found in _STAMP.findall(shown.stdout)]
    ps_s, listed = _timed(kernel, "%ignite_tf ps")
    run_id = _run_id(listed)
    stop_s, _ = _timed(kernel, f"%ignite_tf stop {run_id}")
    left = stage.num_left(run_id, _GONE_S)
    row = {
        "running_s": round(max(stamp[0] for stamp in stamps) - began, 3),
        "first_lines_s": round(max(stamp[1] for stamp in stamps) - began, 3),
        "ps_s": round(ps_s, 3),
        "stop_s": round(stop_s, 3),
        "processes_left": left,
    }
    report(f"3 hosts: {row}")
    return row


def _doctor(kernel: Kernel, report: Report) -> dict[str, Any]:
    seconds, _ = _timed(kernel, f"%ignite_tf doctor {CACHE}")
    report(f"doctor, 3 hosts: {seconds:.2f} s")
    return {"case": "doctor", "variant": "3 hosts", "seconds": round(seconds, 3)}


def _ups(text: str) -> int:
    return len(_STAMP.findall(text))


def _once(kernel: Kernel, is_enough: Callable[[str], bool]) -> Callable[[str], None]:
    """Return a callback that interrupts the cell once its output is enough; the run continues."""
    is_done = False

    def look(text: str) -> None:
        nonlocal is_done
        if not is_done and is_enough(text):
            is_done = True
            kernel.manager.interrupt_kernel()

    return look


def _timed(kernel: Kernel, code: str) -> tuple[float, CellResult]:
    began = time.monotonic()
    shown = kernel.run(code)
    if shown.error:
        raise RuntimeError(f"{code}: {shown.error['evalue']}")
    return time.monotonic() - began, shown


def _run_id(listed: CellResult) -> str:
    found = re.search(rf"{CACHE.lower()}-\S+", listed.text)
    if found is None:
        raise RuntimeError(f"no run is listed: {listed}")
    return found[0]


def _medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: round(statistics.median(row[name] for row in rows), 3)
        if name.endswith("_s")
        else max(row[name] for row in rows)
        for name in rows[0]
    }


def _latency(kernel: Kernel, number: int, report: Report) -> dict[str, Any]:
    ages_ms: list[float] = []
    seen = 0

    def note(text: str) -> None:
        nonlocal seen
        now, whole = time.time(), text.rpartition("\n")[0] + "\n"
        for line in whole[seen:].splitlines():
            with suppress(ValueError):
                ages_ms.append((now - float(line)) * 1000)
        seen = len(whole)

    kernel.run(f"%%ignite_tf start {CACHE} --workers 1\n{_STAMPS.format(number=number)}", on_stdout=note)
    ages_ms.sort()
    if len(ages_ms) != number:
        raise RuntimeError(f"{len(ages_ms)} of {number} lines came")
    row = {
        "case": "cell_latency",
        "variant": "a worker's flush to the front end",
        "median_ms": round(statistics.median(ages_ms), 1),
        "p95_ms": round(ages_ms[int(number * 0.95)], 1),
        "max_ms": round(ages_ms[-1], 1),
    }
    report(f"a line reaches the front end after {row['median_ms']} ms (median), {row['p95_ms']} ms (95 %)")
    return row


def _memory_mb(kernel: Kernel) -> float:
    shown = kernel.run("import os; print(os.getpid())")
    return float(psutil.Process(int(shown.stdout)).memory_info().rss / 1e6)


def _stream(kernel: Kernel, megabytes: int, report: Report) -> dict[str, Any]:
    before_mb, began = _memory_mb(kernel), time.monotonic()
    num_chars = num_lines = 0
    for text in _output(
        kernel, f"%%ignite_tf start {CACHE} --workers 1\n{_STREAM.format(megabytes=megabytes)}"
    ):
        num_chars, num_lines = num_chars + len(text), num_lines + text.count("\n")
    took_s = time.monotonic() - began
    wanted = megabytes * 1_000_000 // (1000 * 101) * 1000
    row = {
        "case": "cell_stream",
        "variant": f"{megabytes} MB into a cell",
        "seconds": round(took_s, 2),
        "mb_per_s": round(num_chars / 1e6 / took_s, 2),
        "lines_lost": max(wanted - num_lines, 0),
        "memory_grown_mb": round(_memory_mb(kernel) - before_mb, 1),
    }
    report(f"{megabytes} MB into a cell: {took_s:.1f} s, {row['lines_lost']} lines lost")
    return row


def _interrupted(kernel: Kernel, megabytes: int, report: Report) -> dict[str, Any]:
    asked_at, num_chars = None, 0
    for text in _output(
        kernel, f"%%ignite_tf start {CACHE} --workers 1\n{_STREAM.format(megabytes=megabytes)}"
    ):
        num_chars += len(text)
        if asked_at is None and num_chars > megabytes * 50_000:
            asked_at = time.monotonic()
            kernel.manager.interrupt_kernel()
    if asked_at is None:
        raise RuntimeError(f"the stream ended after {num_chars} characters")
    ended_s = time.monotonic() - asked_at
    report(f"an interrupted stream frees the kernel after {ended_s:.2f} s")
    return {"case": "cell_stream", "variant": "interrupted in the middle", "seconds": round(ended_s, 3)}


def _output(kernel: Kernel, code: str) -> Iterator[str]:
    """Yield a cell's output piece by piece until the cell ends, without storing it."""
    message = kernel.client.execute(code)
    while True:
        reply = kernel.client.get_iopub_msg(timeout=_SILENCE_S)
        if reply["parent_header"].get("msg_id") != message:
            continue
        if reply["msg_type"] == "stream" and reply["content"]["name"] == "stdout":
            yield reply["content"]["text"]
        elif reply["msg_type"] == "status" and reply["content"]["execution_state"] == "idle":
            return
