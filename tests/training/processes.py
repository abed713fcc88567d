"""Runs cases.py in one process and in several workers connected by TF_CONFIG, and compares the results."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
# tf_keras 2.16 prints this message about one of its own functions in any program.
_IS_BEYOND_AUTOGRAPH = re.compile(r"AutoGraph could not transform <(?!function create_autocast_variable)")
_CASES = Path(__file__).with_name("cases.py")


@dataclass(frozen=True)
class Comparison:
    """The results of a case on several workers compared with one process.

    Attributes:
        identical: Whether the results of all workers are identical to the bit.
        differences: The largest difference from the one process, by name of the weight or history value.
    """

    identical: bool
    differences: dict[str, float]

    @property
    def of_weights(self) -> float:
        return max(
            (found for name, found in self.differences.items() if name.startswith("weight")), default=0.0
        )

    @property
    def largest(self) -> float:
        return max(self.differences.values(), default=0.0)


def run_cases(
    framework: str,
    num_workers: int,
    names: Sequence[str],
    folder: Path,
    *,
    together: bool = True,
    python: str = sys.executable,
    timeout_s: float = 1400.0,
) -> None:
    """Run cases one after the other. With `together` False, one process uses the batches of that many workers.

    Raises:
        RuntimeError: A process failed; the message contains the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = num_workers if together else 1
    ports = free_ports(size)
    with ExitStack() as ending:
        processes = []
        for index in range(size):
            of_run = {"CASES_WORKERS": str(num_workers), "IGNITE_TF_RUN_ID": "cases"}
            env = {**os.environ, **of_run, **worker_environment(index, ports)}
            output = ending.enter_context((folder / f"output-{index}.txt").open("w+"))
            argv = [python, str(_CASES), framework, str(folder), *names]
            process = subprocess.Popen(argv, env=env, stdout=output, stderr=subprocess.STDOUT)
            ending.callback(process.wait)
            ending.callback(process.kill)
            processes.append((process, output))
        for process, output in processes:
            if process.wait(timeout_s):
                output.seek(0)
                raise RuntimeError(f"{framework}, {num_workers} workers: {output.read()[-3000:]}")
            output.seek(0)
            if told := _IS_BEYOND_AUTOGRAPH.search(text := output.read()):
                raise RuntimeError(f"{framework}: {text[told.start() :][:1000]}")


class Workers:
    """The workers of a run without a cluster, which can be restarted in one directory.

    Args:
        folder: The script's first argument; its `igfs` is the run's directory.
        arguments: More arguments for the script.
        python: The interpreter of all workers, or one for each.
    """

    def __init__(
        self,
        folder: Path,
        num_workers: int,
        script: Path,
        *,
        arguments: Sequence[str] = (),
        python: str | Sequence[str] = sys.executable,
    ) -> None:
        self.folder = folder
        self.num_workers = num_workers
        self._pythons = [python] * num_workers if isinstance(python, str) else python
        self._arguments = [str(script), str(folder), *arguments]

    def start(self, **environment: str) -> list[subprocess.Popen[bytes]]:
        """Start all workers. The caller must end the processes."""
        ports = free_ports(self.num_workers)
        run = {"IGNITE_TF_RUN_ID": "run", "IGNITE_TF_RUN_URI": str(self.folder / "igfs")}
        processes = []
        for index in range(self.num_workers):
            env = {**os.environ, **run, **worker_environment(index, ports), **environment}
            with (self.folder / f"output-{index}.txt").open("ab") as output:
                argv = [self._pythons[index], *self._arguments]
                processes.append(subprocess.Popen(argv, env=env, stdout=output, stderr=output))
        return processes

    def run(self, **environment: str) -> None:
        """Start all workers and wait until all have succeeded."""
        processes = self.start(**environment)
        try:
            codes = [process.wait(800) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert codes == [0] * self.num_workers, self.words()

    def steps(self, index: int) -> int:
        """Return a worker's last completed step, which scripts append to steps-WORKER."""
        path = self.folder / f"steps-{index}"
        told = path.read_text().split() if path.exists() else []
        return int(told[-1]) if told else 0

    def words(self) -> str:
        """Return the end of the workers' output."""
        return "".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("output-*.txt"))


def compare(name: str, alone: Path, together: Path, num_workers: int) -> Comparison:
    """Compare the result files of workers with those of one process."""
    one = dict(np.load(alone / f"{name}-0.npz"))
    found = [dict(np.load(together / f"{name}-{index}.npz")) for index in range(num_workers)]
    identical = all(np.array_equal(found[0][key], each[key]) for each in found for key in one)
    differences = {key: float(np.abs(found[0][key] - value).max(initial=0.0)) for key, value in one.items()}
    return Comparison(identical, differences)


def worker_environment(index: int, ports: Sequence[int]) -> dict[str, str]:
    """Return the variables that locate this package and the other workers, if there are any."""
    found = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    if len(ports) > 1:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        found["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
    return found


def free_ports(number: int) -> list[int]:
    with ExitStack() as closing:
        probes = [closing.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
