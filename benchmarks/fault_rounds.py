"""One round of a fault: starts a run, strikes at a random moment, and judges the result."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.fault_kinds import Fault
from benchmarks.fault_observer import Observer
from benchmarks.fault_outcome import LINE, Outcome, shown_lines
from benchmarks.fault_stage import CACHE, NUM_ROWS, STATES, BedError, Stage, newest_record
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.runs.handles.run import list_runs
from ignite_tf_magic.runs.states import RunState

_SCRIPTS = Path(__file__).parent / "scripts"
_STEP_S = 0.05
_NUM_WORKERS = 3
_BEGIN_S = 60.0
_FINISH_S = 240.0
_READ_S = 60.0
_GONE_S = 15.0
_TAKEN_S = 5.0
_LISTED_S = 20.0
_PAUSE_S = 0.5  # shorter gaps between two steps do not count as a pause
_LAST_MOMENT = 0.9  # as a fraction of the undisturbed training time
_STARTING_S = 2.0
_VOID = ", before any host had the run"
_ENDED = ("succeeded", "failed", "stopped", "lost")


class Round:
    """One round; call `play` once."""

    def __init__(
        self,
        stage: Stage,
        fault: Fault,
        outcome: Outcome,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.stage = stage
        self.rng = random.Random(outcome.seed)
        self.detached = outcome.detached
        self._fault = fault
        self._outcome = outcome
        self._folder = folder
        self._say = say
        self._name = f"f{os.getpid() % 100000}x{outcome.seed % 1_000_000}"
        self._run_id: str | None = None
        self._struck_at: float | None = None
        self._readers: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._journals: dict[str, Path] = {}
        self._away: set[str] = set()
        self._over_at = 0.0
        self.owner: subprocess.Popen[bytes]

    # The interface for faults

    def run_id(self) -> str | None:
        """Return the run's id, or None if it is not known yet."""
        if self._run_id is None:
            own = self._folder / "owner" / "runs"
            found = {path.name for path in own.glob(f"*-{self._name}-*")} if own.is_dir() else set()
            found |= self.stage.runs_like(self._name)
            self._run_id = next(iter(found), None)
        return self._run_id

    def record(self) -> dict[str, Any] | None:
        """Return the newest record of the run that its owner or a host has."""
        run_id = self.run_id()
        return newest_record(self._directories(run_id)) if run_id else None

    def _directories(self, run_id: str) -> dict[str, Path]:
        own = {} if self.detached else {"": self._folder / "owner" / "runs" / run_id}
        return own | self.stage.directories(run_id)

    def struck(self, what: str) -> None:
        """Note that the fault happens now."""
        self._struck_at = time.time()
        self._outcome.struck = what

    # The round

    def play(self) -> Outcome:
        """Play the round. The bed may need mending afterwards."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._journals = self.stage.journals(self._outcome.seed)
        observer = Observer(lambda: self._directories(self._run_id) if self.run_id() and self._run_id else {})
        try:
            with self._outcome.phase("start"):
                self._start()
            with self._outcome.phase("strike"):
                self._strike()
            self._judge(observer)
        except (
            BedError,
            IgniteTfError,
            OSError,
            RuntimeError,
            LookupError,
            ValueError,
            subprocess.SubprocessError,
        ) as error:
            self._outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            observer.close()
            (self._folder / "changes.txt").write_text("\n".join(map(str, observer.changes)))
            self._keep_evidence()
            self._end_processes()
        return self._outcome

    def _start(self) -> None:
        outcome = self._outcome
        bed = self.stage.bed
        is_real = len({host.address for host in bed.hosts if not host.address.startswith("127.")}) > 1
        journals = {host.name: str(self._journals[host.name]) for host in bed.hosts} if is_real else {}
        told = {
            "endpoints": [[host.endpoint.host, host.endpoint.port] for host in bed.hosts],
            "journals": journals or {"*": str(self._journals[bed.hosts[0].name])},
            "cache": STATES,
            "rows": NUM_ROWS,
            "steps": round(self._fault.training_s / _STEP_S),
            "step_s": _STEP_S,
        }
        spec = {
            "config": str(self.stage.config),
            "cache": CACHE,
            "script": str(
                _SCRIPTS / ("counting.py" if outcome.script == "light" else "counting_tensorflow.py")
            ),
            "num_workers": _NUM_WORKERS,
            "name": self._name,
            "detach": outcome.detached,
            "told": told,
        }
        self._steps = told["steps"]
        (self._folder / "spec.json").write_text(json.dumps(spec))
        output = self._folder / "owner.txt"
        words = ["own", str(self._folder / "spec.json")]
        self.owner = self.stage.spawn(words, self._folder / "owner", outcome.divisor, output)
        self._await(lambda: b"begins" in output.read_bytes(), _BEGIN_S, "the owner to begin")
        self._began_at = time.time()

    def _strike(self) -> None:
        training_s = self._fault.training_s if self._outcome.script == "light" else 30.0
        latest = _STARTING_S + training_s * (0.3 if self._fault.spare else _LAST_MOMENT)
        if self._fault.name == "owner_kill_detached" and self.rng.random() < 0.5:
            latest = _STARTING_S
        moment_s = self.rng.uniform(0.0, latest)
        deadline = self._began_at + moment_s
        while time.time() < deadline or self._is_too_early(deadline):
            self._begin_reading()
            time.sleep(min(0.05, max(deadline - time.time(), 0.01)))
        self._outcome.moment_s = round(time.time() - self._began_at, 2)
        self._fault.strike(self)
        self._over_at = time.time()
        self._begin_reading()

    def _is_too_early(self, deadline: float) -> bool:
        """Return whether it is too early to kill the owner: no other process could finish or list the run yet."""
        is_patient = time.time() < deadline + _BEGIN_S and self.owner.poll() is None
        if not self._fault.ends_owner or not is_patient:
            return False
        return self.run_id() is None or (self.detached and not self._has_jobs())

    def _begin_reading(self) -> None:
        """Attach a reader from another machine as soon as the owner has printed the run's id."""
        if not self._readers and self.run_id() and self._was_told():
            self._read("early")

    def _read(self, name: str) -> None:
        words = ["read", str(self.stage.config), self._run_id or "?"]
        output = self._folder / f"reader-{name}.txt"
        home = self._folder / f"home-{name}"
        self._readers.append((name, self.stage.spawn(words, home, self._outcome.divisor, output)))

    @staticmethod
    def _await(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {timeout_s:g} s in vain for {what}")
            time.sleep(0.05)

    # The verdict

    def _judge(self, observer: Observer) -> None:
        with self._outcome.phase("finish"):
            if self._fault.name == "owner_kill_attached":
                self._judge_lost(observer)
            else:
                self._judge_finished(observer)
        if self._fault.ends_owner and not self._was_told() and not self._written():
            self._outcome.is_void = True  # possibly only its owner knew of it
        if self._run_id is None or self._outcome.is_void:
            return
        with self._outcome.phase("read"):
            self._judge_output()
        if self._fault.name != "owner_kill_attached":
            self._measure(observer)

    def _judge_finished(self, observer: Observer) -> None:
        """Check that the run ended by itself, with all steps done."""
        problems = self._outcome.problems
        deadline = time.monotonic() + _FINISH_S
        while (observer.record or {}).get("state") not in _ENDED and time.monotonic() < deadline:
            self._begin_reading()
            if self.owner.poll() is not None and self._is_in_vain(observer.record):
                break
            time.sleep(0.05)
        record = observer.record
        if record is None or self._was_refused():
            self._judge_never_begun()
            return
        self._outcome.restarts = record["order"]["generation"] - 1
        if record["state"] != "succeeded":
            if self._was_never_taken(record):
                self._note_void()
                return
            problems.append(
                f"the run is {record['state']} {record['exit_code']} (reason {record['reason']}, "
                f"waiting for {record['waiting_for']})"
            )
        state = self.stage.state_of(self._run_id or "?")
        expected = {"step": self._steps, "total": self._steps * _NUM_WORKERS * (_NUM_WORKERS + 1) // 2}
        if not state.get("ended") or any(state[name] != value for name, value in expected.items()):
            problems.append(f"the training ended with {state}, not {expected}")
        restarts, fault = self._outcome.restarts, self._fault
        if restarts < fault.min_restarts or (
            fault.max_restarts is not None and restarts > fault.max_restarts
        ):
            problems.append(f"{restarts} restarts: {[each['cause'] for each in record['past']]}")
        self._note_away()
        self._judge_orphans(_GONE_S)

    def _judge_never_begun(self) -> None:
        """Judge a run without a record. Valid if its owner was killed before announcing it, or reported the failure."""
        self._note_void()
        self._note_away()
        if self._was_refused():
            kept = {name for name, path in self._directories(self._run_id or "?").items() if path.exists()}
            if kept := kept - self._away:
                self._outcome.problems.append(f"the run was not started, and something of it is on {kept}")
        elif not self._fault.ends_owner:
            text = (self._folder / "owner.txt").read_text(errors="replace")
            self._outcome.problems.append(f"the run never began: {text[-500:]}")
        self._judge_orphans(_GONE_S)

    def _is_in_vain(self, record: dict[str, Any] | None) -> bool:
        """Return whether no process is left that could finish the run, after the process that started it has ended."""
        if not self._fault.ends_owner:
            time.sleep(0.5)  # the record may be on its way
            return not (self.detached and self._was_told())
        is_late = time.time() > (self._struck_at or 0.0) + _TAKEN_S
        return self.run_id() is None or (is_late and (record is None or self._was_never_taken(record)))

    def _note_void(self) -> None:
        self._outcome.is_void = True
        self._outcome.struck += _VOID

    def _was_refused(self) -> bool:
        """Return whether the start failed as a host was lost before it had the run, and the error names the host."""
        text = (self._folder / "owner.txt").read_text(errors="replace")
        host = self._outcome.struck.removesuffix(_VOID).rsplit(" ", 1)[-1]
        says_what_is_left = "Nothing of it is left" in text or f"What {host} may have of it" in text
        return "was not started" in text and says_what_is_left and f"host '{host}'" in text

    def _was_told(self) -> bool:
        """Return whether the owner has announced the run."""
        return b"\nrun " in (self._folder / "owner.txt").read_bytes()

    def _was_never_taken(self, record: dict[str, Any]) -> bool:
        """Return whether the owner was killed before any host had a reconciler, so that none could finish the run."""
        if not self._fault.ends_owner or self._was_told() or record["supervisor"]:
            return False
        return not self._has_jobs()

    def _has_jobs(self) -> bool:
        """Return whether any host has begun to work for the run."""
        return any((path / "jobs").exists() for path in self.stage.directories(self._run_id or "?").values())

    def _judge_lost(self, observer: Observer) -> None:
        """Check that nothing of the run is left five seconds after the lease, and that listings show it as lost."""
        outcome, struck_at = self._outcome, self._struck_at or time.time()
        problems = outcome.problems
        has_mattered = (observer.record or {}).get("state", "succeeded") not in _ENDED
        if has_mattered:
            self._await(lambda: self._is_lost_at_home(), _READ_S, "its own directory to say that it is lost")
            outcome.noticed_s = round(time.time() - struck_at, 3)
        self._judge_orphans(30.0 / outcome.divisor + 5.0 - (time.time() - struck_at))
        outcome.recovered_s = round(time.time() - struck_at, 3) if has_mattered else None
        time.sleep(max(struck_at + 13.0 / outcome.divisor + 1.0 - time.time(), 0.0))
        if self._run_id is None:
            return
        record = observer.record
        if record is None or record["state"] in _ENDED:
            return  # the fault came too early or too late to matter
        self._outcome.restarts = record["order"]["generation"] - 1
        if (seen := self._listed("owner")) != "lost":
            problems.append(f"its own machine lists the run as {seen}")
        seen = self._listed("elsewhere")
        if seen != "lost" and (self._was_told() or seen is not None):
            problems.append(f"another machine lists the run as {seen}")

    def _is_lost_at_home(self) -> bool:
        runs = list_runs(self._folder / "owner" / "runs", include_ended=True)
        return [run.state for run in runs] == [RunState.LOST]

    def _listed(self, home: str) -> str | None:
        """Return the state that a machine lists for the run. Retry, as busy nodes may answer late."""
        deadline = time.monotonic() + _LISTED_S
        while (seen := self._list(home).get(self._run_id or "")) != "lost" and time.monotonic() < deadline:
            time.sleep(0.5)
        return seen

    def _list(self, home: str) -> dict[str, str]:
        output = self._folder / f"list-{home}.txt"
        words = ["list", str(self.stage.config)]
        process = self.stage.spawn(words, self._folder / home, self._outcome.divisor, output)
        process.wait(_READ_S)
        return dict(json.loads(output.read_text().splitlines()[-1]))

    def _note_away(self) -> None:
        """Note the hosts that are away at the end."""
        if self._fault.leaves_host and " of " in self._outcome.struck:
            self._away = {self._outcome.struck.rsplit(" ", 1)[-1]}

    def _cut_off_at(self, moment: float) -> set[str]:
        """Return the host whose cable was still out at that moment, when the run and its readers may have ended."""
        is_out = self._fault.breaks_link and (self._struck_at or moment) < moment < self._over_at
        return {self._outcome.struck.rsplit(" ", 1)[-1]} if is_out else set()

    def _judge_orphans(self, within_s: float) -> None:
        run_id = self.run_id() or self._name
        deadline = time.monotonic() + max(within_s, 0.0)
        # A host that is cut off cannot know of the run's end. Its workers end by their lease; its reconciler ends
        # when the cable is back, which `judge_return` checks.
        while left := [
            (host.name, process)
            for host, process in self.stage.processes_of(run_id)
            if host.name not in self._away or "ignite_tf_magic.runs.bootstrap" in process.argv
        ]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self._outcome.orphans += len(left)
        self._outcome.problems += [
            f"left on {name}: {' '.join(process.argv)[-200:]}" for name, process in left
        ]

    def judge_return(self, within_s: float = 30.0) -> None:
        """Check that a host that was away, now back, has no processes of the run left."""
        if self._away:
            self._away = set()
            self._judge_orphans(within_s)

    def _judge_output(self) -> None:
        """Compare the output of two readers with the lines that the workers wrote."""
        outcome = self._outcome
        if not self._readers:
            self._read("early")
        self._read("late")
        written = self._written()
        for name, process in self._readers:
            try:
                process.wait(_READ_S)
            except subprocess.TimeoutExpired:
                outcome.problems.append(f"the {name} reader does not end")
                process.send_signal(signal.SIGKILL)
            output = self._folder / f"reader-{name}.txt"
            lines, announced, broken = shown_lines(output.read_text(errors="replace"))
            out_of_reach = self._away | self._cut_off_at(output.stat().st_mtime)
            if broken:
                outcome.problems.append(f"the {name} reader: {broken}")
            doubled = sum(count - 1 for count in lines.values() if count > 1)
            lost = [line for line, host in written.items() if line not in lines and host not in out_of_reach]
            away = [line for line, host in written.items() if line not in lines and host in out_of_reach]
            unannounced = {written[line] for line in away} - announced
            outcome.doubled_lines += doubled
            outcome.lost_lines += len(lost)
            outcome.unreachable_lines = max(outcome.unreachable_lines, len(away))
            if doubled or lost:
                outcome.problems.append(f"the {name} reader: {len(lost)} lost, {doubled} doubled; {lost[:3]}")
            if unannounced:
                outcome.problems.append(f"the {name} reader was not told of lines missing from {unannounced}")
        outcome.problems += self._overlaps()

    def _written(self) -> dict[str, str]:
        """Return the written lines, and the host of each."""
        return {line: host for host, _, line in self._noted()}

    def _noted(self) -> list[tuple[str, float, str]]:
        found = []
        for host, folder in self._journals.items():
            for path in folder.iterdir():
                for entry in path.read_text().splitlines():
                    moment, _, line = entry.partition(" ")
                    if LINE.fullmatch(line):
                        found.append((host, float(moment), line))
        return found

    def _overlaps(self) -> list[str]:
        """Report workers of two generations that lived at the same time. All hosts share one clock."""
        spans: dict[int, tuple[float, float]] = {}
        for _, moment, line in self._noted():
            generation = int(line.split()[3])
            first, last = spans.get(generation, (moment, moment))
            spans[generation] = min(first, moment), max(last, moment)
        ordered = sorted(spans.items())
        return [
            f"generation {later} began {before[1] - after[0]:.2f} s before {earlier} ended"
            for (earlier, before), (later, after) in pairwise(ordered)
            if after[0] < before[1]
        ]

    def _measure(self, observer: Observer) -> None:
        struck_at = self._struck_at
        if struck_at is None:
            return
        before = [each.supervisor for each in observer.changes if each.time <= struck_at]
        supervisor = before[-1] if before else None
        told = [
            each.time - struck_at
            for each in observer.changes
            if each.time > struck_at
            and (each.waiting_for or each.state in ("failing", "restarting") or each.supervisor != supervisor)
        ]
        self._outcome.noticed_s = round(told[0], 3) if told and before else None
        steps = sorted(moment for _, moment, line in self._noted() if line.startswith("worker 0 "))
        pauses = [(after - before, after) for before, after in pairwise(steps) if after > struck_at]
        if pauses and steps[0] < struck_at:
            longest_s, after = max(pauses)
            self._outcome.recovered_s = round(after - struck_at, 3) if longest_s > _PAUSE_S else 0.0

    # Afterwards

    def _end_processes(self) -> None:
        for process in (*(reader for _, reader in self._readers), self.owner):
            with suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait(10.0)

    def _keep_evidence(self) -> None:
        """Keep the hosts' files of a failed round."""
        if not self._outcome.problems or self._run_id is None:
            return
        for name, path in self.stage.directories(self._run_id).items():
            with suppress(OSError, shutil.Error):
                shutil.copytree(path, self._folder / "hosts" / name, symlinks=True)
        for name, path in self._journals.items():
            with suppress(OSError, shutil.Error):
                shutil.copytree(path, self._folder / "journals" / name)

    def clean(self) -> None:
        """Remove the round's files from the bed."""
        if self._run_id is not None:
            self.stage.forget(self._run_id)
        for path in self._journals.values():
            shutil.rmtree(path, ignore_errors=True)
        if not self._outcome.problems:
            shutil.rmtree(self._folder, ignore_errors=True)
