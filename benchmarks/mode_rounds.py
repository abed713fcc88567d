"""One round of `benchmarks.modes`: a run on real hosts, with a task that may be killed during its training."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.fault_stage import Host, Stage
from benchmarks.mode_verdicts import CACHE, CLIENT, FIT, NUM_ROWS, TRAINER, Cell, Evidence, Task, steps_told
from ignite_tf_magic.session import RunRequest, Session, TrainingRun

_SCRIPTS = Path(__file__).parent / "scripts"
_TEMPLATES = ("ps_hosts", "worker_hosts", "job_name", "task_index")
_FITTING = ("mode_fit", FIT)
_WHAT: dict[str, tuple[str, dict[str, Any]]] = {
    "sync": _FITTING,
    "async": _FITTING,
    "standalone": ("mode_client", CLIENT),
    "between": ("mode_trainer", TRAINER),
}
# When to strike, as fractions of the steps; after the first checkpoint where there are checkpoints.
_MOMENTS = {"sync": (0.7, 0.9), "async": (0.7, 0.9), "standalone": (0.2, 0.8), "between": (0.4, 0.8)}
_LASTS_S = 900.0  # on a busy machine, imports alone take minutes
_GONE_S = 20.0


class NotStruck(Exception):
    """The round is void: the training ended before the task could be killed, or no run began."""


class ModeRound:
    """One round; call `play` once.

    Args:
        stage: The hosts, which have the rows.
        cell: The mode of the run, and the task to kill.
        detached: Whether the hosts own the run instead of this process.
    """

    def __init__(self, stage: Stage, cell: Cell, *, detached: bool) -> None:
        self._stage = stage
        self._cell = cell
        self._detached = detached
        self._said: dict[int, str] = defaultdict(str)
        script, told = _WHAT[cell.mode]
        self._told = {"cache": CACHE, "rows": NUM_ROWS, "is_struck": cell.victim is not None, **told}
        self._script = _SCRIPTS / f"{script}.py"
        steps = NUM_ROWS // FIT["batch"] * FIT["epochs"] if told is FIT else told["steps"]
        self._moment = random.uniform(*_MOMENTS[cell.mode]) * steps
        self._is_struck = cell.victim is None
        self.run_id: str | None = None

    def play(self, session: Session) -> Evidence:
        """Play the round.

        Raises:
            NotStruck: The run ended before the strike.
            TimeoutError: The run did not end.
        """
        run = session.start_run(self._request())
        self.run_id = run.id
        try:
            self._follow(run)
        finally:
            if not run.info().state.has_ended:
                run.stop()
        if not self._is_struck and run.failure() is None:
            raise NotStruck(f"{self._cell} ended before step {self._moment:.0f}")
        return self._evidence(run)

    def _request(self) -> RunRequest:
        cell = self._cell
        return RunRequest(
            CACHE,
            self._script.read_text(encoding="utf-8"),
            cell.workers,
            script_name=self._script.stem,
            name=f"modes-{cell.mode}",
            args=tuple(f"--{name}={{{name}}}" for name in _TEMPLATES) if cell.mode == "between" else (),
            strategy=cell.mode,
            num_ps=cell.num_ps,
            detach=self._detached,
            env={"MODES_TOLD": json.dumps(self._told)},
        )

    def _follow(self, run: TrainingRun) -> None:
        deadline = time.monotonic() + _LASTS_S
        for chunk in run.follow(with_pauses=True):
            self._said[chunk.worker] += chunk.text
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run did not end within {_LASTS_S:g} s")
            if chunk.text and not self._is_struck and self._is_time():
                self._strike(run)

    def _is_time(self) -> bool:
        """Return whether the training has come far enough, and all tasks that run the script take part."""
        cell = self._cell
        if max(steps_told(self._said[cell.driver]), default=0) < self._moment:
            return False
        if cell.mode == "between":
            return all(steps_told(self._said[each]) for each in range(cell.workers))
        return cell.mode == "standalone" or "\nSAVED\n" in self._said[cell.driver]

    def _strike(self, run: TrainingRun) -> None:
        """Send SIGKILL to the task's process on its host, by its pid there."""
        victim = self._cell.victim
        assert victim is not None
        worker = run.record().workers[victim]
        host = next(each for each in self._stage.hosts if each.name == worker.host)
        if worker.pid is not None and _is_task(host, worker.pid):
            self._is_struck = True
            host.run(["kill", "-KILL", str(worker.pid)])

    def _evidence(self, run: TrainingRun) -> Evidence:
        info, record = run.wait(_GONE_S), run.record()
        seats = {seat.worker: seat for seat in record.order.seats}
        tasks = []
        for number, role in enumerate(record.spec.roles):
            logs = run.logs(number)
            output = logs[-1].read_text(encoding="utf-8", errors="replace") if logs else ""
            tasks.append(Task(role.name, seats[number].partitions, seats[number].rows, output))
        return Evidence(
            info.state.value,
            [each.cause for each in record.past],
            sum(each.respawns for each in record.workers),
            tasks,
            self._stage.num_left(run.id, _GONE_S),
        )

    def keep_evidence(self, folder: Path) -> None:
        """Keep the output of the run's tasks."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, text in self._said.items():
            (folder / f"task-{number}.txt").write_text(text, encoding="utf-8")


def _is_task(host: Host, pid: int) -> bool:
    return any(each.pid == pid and "ignite_tf_magic.runs.bootstrap" in each.argv for each in host.processes())
