"""Starts a run and owns it: one thread per run watches its processes until none is left.

The owner is this process. While it lives it holds the run's lock; when it ends, however it ends, the
workers see the lock free and end as well.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ignite_tf_magic.cluster import spec
from ignite_tf_magic.cluster.directory import RunDirectory, create_directory
from ignite_tf_magic.cluster.failure import describe_missing, first_failing, found_port_taken, normal_exit
from ignite_tf_magic.cluster.ports import is_listening, reserved_ports
from ignite_tf_magic.cluster.record import RunRecord, WorkerRecord, this_process
from ignite_tf_magic.cluster.runs import Run
from ignite_tf_magic.cluster.spec import RunPlan
from ignite_tf_magic.cluster.states import RunEvent, RunState, after
from ignite_tf_magic.cluster.task import GRACE_S, ExitReport, Task
from ignite_tf_magic.config import Endpoint
from ignite_tf_magic.launch.base import Command, Launcher, Process
from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.launch.lock import HeldLock

_POLL_S = 0.05
_PROBE_S = 0.2
_MAX_GENERATIONS = 3
_EXIT_DEADLINE, _EXIT_STOPPED, _EXIT_NOT_STARTED = 124, 143, 126
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def start_run(plan: RunPlan, runs_dir: Path, launcher: Launcher) -> Run:
    """Start the processes of a run; returns when they run, which does not mean that they are up.

    This process owns the run from now on: the run ends with it. Follow its output with `Run.follow`.

    Raises:
        ScriptError: The script is not Python; nothing was started.
        LaunchError: A process could not be started; those before it were ended.
    """
    spec.check_script(plan.script, plan.script_name, plan.python)
    directory = create_directory(runs_dir, plan.name or plan.cache)
    owner = _Owner(plan, directory, launcher, HeldLock(directory.owner_lock))
    owner.start()
    return Run(directory)


class _Owner:
    def __init__(self, plan: RunPlan, directory: RunDirectory, launcher: Launcher, lock: HeldLock) -> None:
        self._plan = plan
        self._directory = directory
        self._launcher = launcher
        self._lock = lock
        self._ports = ExitStack()
        self._addresses: tuple[Endpoint, ...] = ()
        self._running: dict[int, Process] = {}
        self._up: set[int] = set()
        self._started = self._probed = time.monotonic()
        self._ending_since: float | None = None
        self._thread = threading.Thread(target=self._watch, name=f"run-{directory.run_id}", daemon=True)
        self._record = RunRecord(
            run_id=directory.run_id,
            cache=plan.cache,
            script_name=plan.script_name,
            script_file=str(directory.script(plan.script_name)),
            python=plan.python,
            state=RunState.STARTING,
            started_at=time.time(),
            workers=tuple(
                WorkerRecord(worker, share.host, share.rows) for worker, share in enumerate(plan.shares)
            ),
            **this_process(),
        )

    def start(self) -> None:
        """Write the run's files, start its workers, and the thread that watches them."""
        try:
            self._write_files()
            self._record.write(self._directory)
            self._launch()
        except BaseException as error:
            self._give_up(error)
            raise
        atexit.register(self._stop_at_exit)
        self._thread.start()

    def _stop_at_exit(self) -> None:
        if os.getpid() != self._record.owner_pid:
            return  # a forked child does not own its parent's runs
        self._directory.stop_request.touch(mode=0o600)
        self._thread.join(GRACE_S + 1.0)

    def _write_files(self) -> None:
        plan, directory = self._plan, self._directory
        write_private(directory.script(plan.script_name), plan.script)
        if found := spec.credentials(plan.connect):
            write_private(directory.credentials, json.dumps(found))
        for worker in range(plan.num_workers):
            write_private(directory.assignment(worker), json.dumps(spec.assignment(plan, worker)))

    def _give_up(self, error: BaseException) -> None:
        with self._lock, self._ports:
            self._kill_all()
            reason = f"the run could not go on: {str(error) or type(error).__name__}"
            self._finish(RunState.FAILED, exit_code=_EXIT_NOT_STARTED, failed_worker=0, reason=reason)

    # Starting

    def _launch(self) -> None:
        self._ports.close()
        if self._plan.num_workers > 1:
            self._addresses = self._ports.enter_context(reserved_ports(self._plan.num_workers))
        self._started = time.monotonic()
        self._up = set()
        for worker in range(self._plan.num_workers):
            self._launch_worker(worker)
        if self._plan.num_workers == 1:
            self._change(RunEvent.ALL_UP)

    def _launch_worker(self, worker: int) -> None:
        directory, share = self._directory, self._plan.shares[worker]
        directory.exit(worker).unlink(missing_ok=True)
        self._task(worker).write(directory.task(worker))
        module = "ignite_tf_magic.cluster.bootstrap"
        command = Command(
            argv=[self._plan.python, "-m", module, str(directory.task(worker))],
            env={"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": _python_path()},
            cwd=directory.start,
        )
        process = self._launcher.start(share.host, command, directory.log(worker))
        self._running[worker] = process
        fresh = WorkerRecord(worker, share.host, share.rows, process.pid)
        self._write(self._record.with_worker(fresh))

    def _task(self, worker: int) -> Task:
        directory = self._directory
        has_credentials = directory.credentials.exists()
        environment = spec.worker_environment(
            self._plan,
            worker,
            self._addresses,
            str(directory.assignment(worker)),
            str(directory.credentials) if has_credentials else None,
        )
        environment |= {
            "IGNITE_TF_RUN_ID": directory.run_id,
            "IGNITE_TF_RUN_DIR": str(directory.files),
            "IGNITE_TF_RUN_URI": directory.uri,
        }
        return Task(
            worker=worker,
            script=self._record.script_file,
            args=self._plan.args,
            cwd=str(self._plan.cwd),
            environment=environment,
            exit_file=str(directory.exit(worker)),
            worker_lock=str(directory.worker_lock(worker)),
            owner_lock=str(directory.owner_lock),
            after_import=self._plan.after_import,
        )

    # Watching

    def _watch(self) -> None:
        try:
            with self._lock, self._ports:
                while not self._record.state.has_ended:
                    self._collect()
                    self._step()
                    time.sleep(_POLL_S)
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            atexit.unregister(self._stop_at_exit)

    def _collect(self) -> None:
        """Note which processes have ended, and how."""
        for worker, process in list(self._running.items()):
            if (return_code := process.poll()) is not None:
                del self._running[worker]
                self._write(self._record.with_worker(self._ended(worker, return_code)))

    def _ended(self, worker: int, return_code: int) -> WorkerRecord:
        report = ExitReport.read(self._directory.exit(worker))
        exit_code, signal_name = normal_exit(return_code)
        told = report is not None and report.exit_code == exit_code
        by_itself = report is not None and report.exit_code != 0 and not report.asked_to_end
        return replace(
            self._record.workers[worker],
            exit_code=exit_code,
            signal=signal_name,
            ended_at=report.ended_at if report and told else time.time(),
            ended_by_owner=self._ending_since is not None and not by_itself,
        )

    def _step(self) -> None:
        state = self._record.state
        if state in (RunState.FAILING, RunState.STOPPING):
            self._finish_ending()
        elif all(each.exit_code == 0 for each in self._record.workers):
            self._finish(after(state, RunEvent.ALL_SUCCEEDED), exit_code=0)
        elif self._directory.stop_request.exists():
            self._end(RunEvent.STOP_ASKED)
        elif failed := [each.worker for each in self._record.workers if each.exit_code]:
            self._on_failed(failed)
        elif state is RunState.STARTING:
            self._await_up()

    def _on_failed(self, failed: list[int]) -> None:
        may_retry = self._record.state is RunState.STARTING and self._record.generation < _MAX_GENERATIONS
        if may_retry and any(found_port_taken(self._directory, worker) for worker in failed):
            self._kill_all()
            self._note("one of the ports was taken; all workers start again with others")
            self._change(RunEvent.PORT_TAKEN)
            self._write(replace(self._record, generation=self._record.generation + 1))
            self._launch()
        else:
            self._end(RunEvent.WORKER_FAILED)

    def _note(self, text: str) -> None:
        for worker in range(self._plan.num_workers):
            with self._directory.log(worker).open("a", encoding="utf-8") as log:
                log.write(f"ignite_tf_magic: {text}\n")

    def _await_up(self) -> None:
        now = time.monotonic()
        if now - self._probed < _PROBE_S:
            return
        self._probed = now
        self._up |= {w for w in self._running if w not in self._up and is_listening(self._addresses[w])}
        missing = [worker for worker in self._running if worker not in self._up]
        timeout_s = self._plan.start_timeout_s
        if not missing:
            self._change(RunEvent.ALL_UP)
        elif timeout_s is not None and now - self._started > timeout_s:
            reason = describe_missing(self._directory, missing, timeout_s)
            self._record = replace(self._record, failed_worker=missing[0], reason=reason)
            self._end(RunEvent.DEADLINE_PASSED)

    # Ending

    def _end(self, event: RunEvent) -> None:
        """Ask all workers to end; they are killed when the grace is over."""
        self._ending_since = time.monotonic()
        for process in self._running.values():
            process.terminate()
        self._change(event)

    def _finish_ending(self) -> None:
        if self._running:
            if time.monotonic() - (self._ending_since or 0.0) > GRACE_S:
                for process in self._running.values():
                    process.kill()
            return
        state = after(self._record.state, RunEvent.ALL_GONE)
        if state is RunState.STOPPED:
            self._finish(state, exit_code=_EXIT_STOPPED)
        elif self._record.failed_worker is not None:
            self._finish(state, exit_code=_EXIT_DEADLINE)
        else:
            first = first_failing(self._directory, self._record.workers) or self._record.workers[0]
            self._finish(state, exit_code=first.exit_code, failed_worker=first.worker)

    def _kill_all(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def _change(self, event: RunEvent) -> None:
        self._write(replace(self._record, state=after(self._record.state, event)))

    def _finish(self, state: RunState, **outcome: object) -> None:
        self._directory.credentials.unlink(missing_ok=True)
        self._write(replace(self._record, state=state, ended_at=time.time(), **outcome))  # type: ignore[arg-type]

    def _write(self, record: RunRecord) -> None:
        self._record = record
        record.write(self._directory)


def _python_path() -> str:
    """Let the workers' interpreter find this package where it is not installed."""
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    installed = _PACKAGE_ROOT.name in ("site-packages", "dist-packages")
    return os.pathsep.join(known if installed else [*known, str(_PACKAGE_ROOT)])
