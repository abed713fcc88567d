"""Measures one worker while it trains: rows, time, waiting for data, memory, processors and GPUs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.waiting import counted

_GPU_INTERVAL_S = 5.0
_GPU_TIMEOUT_S = 10.0
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Sample:
    """The measures of a worker since its last sample. NaN means unknown.

    Attributes:
        rows: Rows that it trained on.
        seconds: Time that it spent on them, without validation.
        waited_s: The part of that time in which it waited for data.
        memory_bytes: Current memory of the process.
        gpu_share: Utilization of its GPUs, from 0 to 1.
        gpu_memory_bytes: Memory currently in use on its GPUs.
        cpu_s: Processor time of all threads of the process during `seconds`.
    """

    rows: float = 0.0
    seconds: float = 0.0
    waited_s: float = 0.0
    memory_bytes: float = _NAN
    gpu_share: float = _NAN
    gpu_memory_bytes: float = _NAN
    cpu_s: float = 0.0

    def to_array(self) -> np.ndarray:
        """Return the sample as float64[NUM_NUMBERS], for the exchange between workers."""
        return np.array(astuple(self), np.float64)

    def after(self, earlier: Sample) -> Sample:
        """Return this sample combined with the one before it."""
        return replace(
            self,
            rows=self.rows + earlier.rows,
            seconds=self.seconds + earlier.seconds,
            waited_s=self.waited_s + earlier.waited_s,
            cpu_s=self.cpu_s + earlier.cpu_s,
        )

    @classmethod
    def from_array(cls, numbers: Sequence[float]) -> Sample:
        """Make a sample from the numbers of `to_array`."""
        return cls(*map(float, numbers))


NUM_NUMBERS = len(Sample().to_array())


class Meter:
    """A meter for one training. Used in one thread."""

    def __init__(self) -> None:
        self._gpus = GpuWatch() if tf.config.list_physical_devices("GPU") else None
        self._spent_s = self._cpu_s = 0.0
        self._since: tuple[float, float] | None = None
        self._waited_s, self._rows = counted()

    def go(self) -> None:
        """Start or resume counting the time."""
        if self._since is None:
            self._since = time.monotonic(), time.process_time()

    def pause(self) -> None:
        """Stop counting the time, for example during validation."""
        if self._since is not None:
            began, cpu_began = self._since
            self._spent_s += time.monotonic() - began
            self._cpu_s += time.process_time() - cpu_began
            self._since = None

    def take(self) -> Sample:
        """Return the measures since the last call."""
        is_going = self._since is not None
        self.pause()
        waited_s, rows = counted()
        busy, used = self._gpus.latest() if self._gpus else (_NAN, _NAN)
        waited_s, self._waited_s = waited_s - self._waited_s, waited_s
        rows, self._rows = rows - self._rows, rows
        found = Sample(rows, self._spent_s, waited_s, memory_bytes(), busy, used, self._cpu_s)
        self._spent_s = self._cpu_s = 0.0
        if is_going:
            self.go()
        return found


def memory_bytes() -> float:
    """Return the memory in use by this process, or NaN if /proc/self/statm cannot be read."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - called every second
            return float(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return _NAN


class GpuWatch:
    """A thread that regularly asks nvidia-smi about the GPUs that this process may use."""

    def __init__(self) -> None:
        self._latest = (_NAN, _NAN)
        threading.Thread(target=self._watch, name="gpus", daemon=True).start()

    def latest(self) -> tuple[float, float]:
        """Return the utilization of the GPUs, from 0 to 1, and their memory in use, in bytes."""
        return self._latest

    def _watch(self) -> None:
        while (found := ask_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))) is not None:
            self._latest = found
            time.sleep(_GPU_INTERVAL_S)


def ask_gpus(visible: str | None) -> tuple[float, float] | None:
    """Ask nvidia-smi once for the utilization, from 0 to 1, and the bytes in use; None if that fails.

    Args:
        visible: GPUs in the format of CUDA_VISIBLE_DEVICES; None means all.
    """
    command = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    command += [f"--id={visible}"] if visible else []
    options: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL, "check": True}
    try:
        done = subprocess.run(command, timeout=_GPU_TIMEOUT_S, **options)
        rows = [tuple(map(float, line.split(","))) for line in done.stdout.decode().splitlines() if line]
        busy, used_mib = np.mean([row[0] for row in rows]), sum(row[1] for row in rows)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return float(busy) / 100, float(used_mib) * 2**20
