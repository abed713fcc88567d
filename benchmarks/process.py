"""One variant in a process of its own: the harness's side and the measured side.

The process is started with a JSON object as its only argument. It prepares itself and answers one line with
its choices. Then, for each line with a number of seconds, it repeats passes for at least that long and answers one
line with the measurement. It exits when its standard input closes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """The cost of some passes.

    Attributes:
        seconds: Wall-clock time of the passes.
        cpu_s: Processor time of the whole process during them.
        peak_rss_mb: The process's peak memory so far.
    """

    rows: int
    seconds: float
    cpu_s: float
    peak_rss_mb: float

    @property
    def rows_per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


@dataclass(slots=True)
class Stopwatch:
    """Sums the time inside `with stopwatch:`, so that a pass can exclude its preparations."""

    seconds: float = 0.0
    cpu_s: float = 0.0

    def __enter__(self) -> None:
        self.seconds -= time.perf_counter()
        self.cpu_s -= time.process_time()

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_s += time.process_time()


class VariantFailed(Exception):
    """A variant's process ended or reported an error."""


class Variant:
    """A measured process, as the harness sees it. Leaving the context manager ends the process."""

    def __init__(self, name: str, argv: Sequence[str], tree: Path = _ROOT) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("IGNITE_DATASET_")
        }
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        environment["PYTHONPATH"] = str(tree)
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=tree,
            env=environment,
        )

    def __enter__(self) -> Variant:
        return self

    def __exit__(self, *exception: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def answer(self) -> dict[str, Any]:
        """Wait for the next line of the process.

        Raises:
            VariantFailed: It ended instead; the message contains its last output.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            self._process.wait(_END_TIMEOUT_S)
            self._errors.seek(0)
            said = self._errors.read()[-4000:]
            raise VariantFailed(f"{self.name} ended with exit code {self._process.returncode}:\n{said}")
        return dict(json.loads(line))

    def measure(self, seconds: float) -> Measurement:
        """Let the process repeat passes for at least this many seconds."""
        if self._process.stdin:
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        return Measurement(**self.answer())


def python_variant(name: str, module: str, task: Mapping[str, Any], tree: Path = _ROOT) -> Variant:
    """Start a module of this tree's or another tree's `benchmarks` as a variant."""
    return Variant(name, [sys.executable, "-m", f"benchmarks.{module}", json.dumps(task)], tree)


def task_of_this_process() -> dict[str, Any]:
    """Return the task that the harness passed to this process."""
    return dict(json.loads(sys.argv[1]))


def tell(answer: Mapping[str, Any]) -> None:
    """Send one line to the harness."""
    print(json.dumps(answer), flush=True)


def serve(one_pass: Callable[[Stopwatch], int], num_rows: int, chosen: Mapping[str, Any]) -> None:
    """Serve the harness until it closes standard input.

    Args:
        one_pass: Moves all rows once, with the measured part inside `with stopwatch:`. Returns the number of
            rows that it moved.
        num_rows: The required number of rows.
        chosen: What the variant chose while it prepared itself.
    """
    tell(chosen)
    for line in sys.stdin:
        tell(asdict(repeat(one_pass, num_rows, float(line))))


def repeat(one_pass: Callable[[Stopwatch], int], num_rows: int, seconds: float) -> Measurement:
    """Repeat passes for at least this many seconds. Raises if a pass moves another number of rows."""
    watch = Stopwatch()
    rows = 0
    while not rows or watch.seconds < seconds:
        moved = one_pass(watch)
        if moved != num_rows:
            raise VariantFailed(f"a pass gave {moved} rows, and there are {num_rows}")
        rows += moved
    return Measurement(rows, watch.seconds, watch.cpu_s, peak_rss_mb())


def best_of(candidates: Sequence[int], trial: Callable[[int], float]) -> int:
    """Return the candidate whose trial reaches the highest rate."""
    return max(candidates, key=trial)


def peak_rss_mb() -> float:
    """Return the peak memory of this process in MB (10^6 bytes)."""
    kib = _status_kib("VmHWM")
    if kib is None:  # not Linux, where the number below would also count the parent's memory
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
    return kib * 1024 / 1e6


def rss_mb() -> float:
    """Return the current memory of this process in MB (10^6 bytes). Linux only; elsewhere the peak."""
    kib = _status_kib("VmRSS")
    return peak_rss_mb() if kib is None else kib * 1024 / 1e6


def _status_kib(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
