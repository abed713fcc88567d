"""One round of a fault: a run is started, the fault comes at a random moment, and what is left is judged."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.fault_kinds import Fault
from benchmarks.fault_stage import CACHE, NUM_ROWS, STATES, Stage, newest_record

_SCRIPTS = Path(__file__).parent / "scripts"
_STEP_S = 0.05
_NUM_WORKERS = 3
_BEGIN_S = 60.0
_FINISH_S = 240.0
_READ_S = 60.0
_GONE_S = 8.0
_PAUSE_S = 0.5  # a shorter one between two steps is none
_LAST_MOMENT = 0.9  # of the time that the training takes by itself
_STARTING_S = 2.0
_ENDED = ("succeeded", "failed", "stopped", "lost")
_LINE = re.compile(r"worker (\d+) gen (\d+) line (\d+) .*")
_UNREACHABLE = re.compile(r"ignite_tf_magic: .* cannot be read: host ([^:]+):")


@dataclass
class Outcome:
    """What came of a round.

    Attributes:
        problems: What was not as it must be, in words; none: the round was as stated.
        noticed_s: From the fault until the run's record told of it; None: it never did.
        recovered_s: From the fault until steps went on after their longest pause; 0: there was none. None: they had not
            begun, or did not go on.
    """

    fault: str
    round: int
    divisor: int
    detached: bool
    script: str
    seed: int
    moment_s: float = 0.0
    struck: str = ""
    problems: list[str] = field(default_factory=list)
    restarts: int = 0
    orphans: int = 0
    lost_lines: int = 0
    doubled_lines: int = 0
    unreachable_lines: int = 0
    noticed_s: float | None = None
    recovered_s: float | None = None
    took_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Give a form that `json` writes."""
        return asdict(self)


@dataclass
class _Change:
    time: float
    state: str
    generation: int
    waiting_for: str | None


class _Observer:
    """Notes when the run's record changes, from the files of its owner and of its hosts."""

    def __init__(self, paths: Callable[[], dict[str, Path]]) -> None:
        self._paths = paths
        self._stamps: dict[str, tuple[int, int]] = {}
        self._version = 0
        self.changes: list[_Change] = []
        self.record: dict[str, Any] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            for name, path in self._paths().items():
                with suppress(OSError, ValueError):
                    status = (path / "run.json").stat()
                    stamp = status.st_ino, status.st_mtime_ns
                    if self._stamps.get(name) != stamp:
                        self._take(json.loads((path / "run.json").read_bytes()))
                        self._stamps[name] = stamp

    def _take(self, record: dict[str, Any]) -> None:
        if record["version"] > self._version:
            self._version, self.record = record["version"], record
            change = _Change(
                time.time(), record["state"], record["order"]["generation"], record["waiting_for"]
            )
            self.changes.append(change)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


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
        self.owner: subprocess.Popen[bytes]

    # What faults see.

    def run_id(self) -> str | None:
        """The run's id, when it can be known by now."""
        if self._run_id is None:
            own = self._folder / "owner" / "runs"
            found = {path.name for path in own.glob(f"{self._name}-*")} if own.is_dir() else set()
            found |= self.stage.runs_like(f"{self._name}-")
            self._run_id = next(iter(found), None)
        return self._run_id

    def record(self) -> dict[str, Any] | None:
        """The newest record of the run that its owner or a host has."""
        run_id = self.run_id()
        return newest_record(self._directories(run_id)) if run_id else None

    def _directories(self, run_id: str) -> dict[str, Path]:
        own = {} if self.detached else {"": self._folder / "owner" / "runs" / run_id}
        return own | self.stage.directories(run_id)

    def struck(self, what: str) -> None:
        """Note that the fault happens now."""
        self._struck_at = time.time()
        self._outcome.struck = what

    # The round.

    def play(self) -> Outcome:
        """Do the round. The bed may need mending afterwards."""
        began = time.monotonic()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._journals = self.stage.journals(self._outcome.seed)
        observer = _Observer(
            lambda: self._directories(self._run_id) if self.run_id() and self._run_id else {}
        )
        try:
            self._start()
            self._strike()
            self._judge(observer)
        except (AssertionError, OSError, RuntimeError, LookupError, subprocess.SubprocessError) as error:
            self._outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            observer.close()
            self._outcome.took_s = round(time.monotonic() - began, 1)
            (self._folder / "changes.txt").write_text("\n".join(map(str, observer.changes)))
            self._keep_evidence()
            self._end_processes()
        return self._outcome

    def _start(self) -> None:
        outcome = self._outcome
        bed = self.stage.bed
        is_real = len({host.address for host in bed.hosts if not host.address.startswith("127.")}) > 1
        journals = {host.address: str(self._journals[host.name]) for host in bed.hosts} if is_real else {}
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
        self._outcome.moment_s = round(moment_s, 2)
        deadline = self._began_at + moment_s
        while time.time() < deadline:
            self._begin_reading()
            time.sleep(min(0.05, max(deadline - time.time(), 0.0)))
        self._fault.strike(self)
        self._begin_reading()

    def _begin_reading(self) -> None:
        """Attach from another machine as soon as the owner has told the run's id."""
        if not self._readers and self.run_id() and b"\nrun " in (self._folder / "owner.txt").read_bytes():
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

    # The verdict.

    def _judge(self, observer: _Observer) -> None:
        if self._fault.name == "owner_kill_attached":
            self._judge_lost(observer)
        else:
            self._judge_finished(observer)
        if self._run_id is None:
            return
        self._judge_output()
        self._measure(observer)

    def _judge_finished(self, observer: _Observer) -> None:
        """The run must end by itself, with all steps done."""
        problems = self._outcome.problems
        deadline = time.monotonic() + _FINISH_S
        while (observer.record or {}).get("state") not in _ENDED:
            self._begin_reading()
            has_failed = self.owner.poll() is not None and not self._fault.ends_owner
            if has_failed and not self.detached:
                time.sleep(0.5)
                break
            if self.run_id() is None and self.owner.poll() is not None:
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        record = observer.record
        if record is None:
            self._judge_never_begun()
            return
        self._outcome.restarts = record["order"]["generation"] - 1
        if record["state"] != "succeeded":
            if self._was_never_taken(record):
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
        """Nobody knows of the run: right only if its owner was killed before it could tell anybody."""
        self._note_away()
        if not self._fault.ends_owner:
            text = (self._folder / "owner.txt").read_text(errors="replace")
            self._outcome.problems.append(f"the run never began: {text[-500:]}")
        self._judge_orphans(_GONE_S)

    def _was_never_taken(self, record: dict[str, Any]) -> bool:
        """Whether the owner was killed before any host had its reconciler: then nobody could finish the run."""
        text = (self._folder / "owner.txt").read_text(errors="replace")
        if not self._fault.ends_owner or "\nrun " in text or record["supervisor"]:
            return False
        return not any(
            (path / "jobs").exists() for path in self.stage.directories(self._run_id or "?").values()
        )

    def _judge_lost(self, observer: _Observer) -> None:
        """Nothing may be left after the lease and five seconds, and those who list the runs are told."""
        problems = self._outcome.problems
        lease_s = 30.0 / self._outcome.divisor + 5.0
        self._judge_orphans(lease_s - (time.time() - (self._struck_at or time.time())))
        time.sleep(max((self._struck_at or 0.0) + 13.0 / self._outcome.divisor + 1.0 - time.time(), 0.0))
        if self._run_id is None:
            return
        record = observer.record
        if record is None or record["state"] in _ENDED:
            return  # the fault came too early or too late to matter
        self._outcome.restarts = record["order"]["generation"] - 1
        was_told = b"\nrun " in (self._folder / "owner.txt").read_bytes()
        if (seen := self._list("owner").get(self._run_id)) != "lost":
            problems.append(f"its own machine lists the run as {seen}")
        seen = self._list("elsewhere").get(self._run_id)
        if seen != "lost" and (was_told or seen is not None):
            problems.append(f"another machine lists the run as {seen}")

    def _list(self, home: str) -> dict[str, str]:
        output = self._folder / f"list-{home}.txt"
        words = ["list", str(self.stage.config)]
        process = self.stage.spawn(words, self._folder / home, self._outcome.divisor, output)
        process.wait(_READ_S)
        return dict(json.loads(output.read_text().splitlines()[-1]))

    def _note_away(self) -> None:
        """Note the hosts that are not there at the end."""
        if self._fault.leaves_host and " of " in self._outcome.struck:
            self._away = {self._outcome.struck.rsplit(" ", 1)[-1]}

    def _judge_orphans(self, within_s: float) -> None:
        run_id = self.run_id() or self._name
        deadline = time.monotonic() + max(within_s, 0.0)
        # A host that is cut off cannot know of the run's end: its workers end by their lease, its reconciler
        # when the cable is back, which `judge_return` looks at.
        while left := [
            (host.name, process)
            for host, process in self.stage.processes_of(run_id)
            if host.name not in self._away or "ignite_tf_magic.cluster.bootstrap" in process.argv
        ]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self._outcome.orphans += len(left)
        self._outcome.problems += [
            f"left on {name}: {' '.join(process.argv)[-200:]}" for name, process in left
        ]

    def judge_return(self, within_s: float = 30.0) -> None:
        """See that nothing of the run is left on a host that was away, now that it is back."""
        if self._away:
            self._away = set()
            self._judge_orphans(within_s)

    def _judge_output(self) -> None:
        """Compare what two readers were shown with what workers have written."""
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
            text = (self._folder / f"reader-{name}.txt").read_text(errors="replace")
            lines, announced, broken = _shown(text)
            if broken:
                outcome.problems.append(f"the {name} reader: {broken}")
            doubled = sum(count - 1 for count in lines.values() if count > 1)
            lost = [line for line, host in written.items() if line not in lines and host not in self._away]
            away = [line for line, host in written.items() if line not in lines and host in self._away]
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
        """The lines that were written, and the host of each."""
        return {line: host for host, _, line in self._noted()}

    def _noted(self) -> list[tuple[str, float, str]]:
        found = []
        for host, folder in self._journals.items():
            for path in folder.iterdir():
                for entry in path.read_text().splitlines():
                    moment, _, line = entry.partition(" ")
                    if _LINE.fullmatch(line):
                        found.append((host, float(moment), line))
        return found

    def _overlaps(self) -> list[str]:
        """Workers of two generations must never live at the same time; all hosts share one clock."""
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

    def _measure(self, observer: _Observer) -> None:
        struck_at = self._struck_at
        if struck_at is None:
            return
        told = [
            each.time - struck_at
            for each in observer.changes
            if each.time > struck_at and (each.waiting_for or each.state in ("failing", "restarting"))
        ]
        self._outcome.noticed_s = round(told[0], 3) if told else None
        steps = sorted(moment for _, moment, line in self._noted() if line.startswith("worker 0 "))
        pauses = [(after - before, after) for before, after in pairwise(steps) if after > struck_at]
        if pauses and steps[0] < struck_at:
            longest_s, after = max(pauses)
            self._outcome.recovered_s = round(after - struck_at, 3) if longest_s > _PAUSE_S else 0.0

    # Afterwards.

    def _end_processes(self) -> None:
        for process in (*(reader for _, reader in self._readers), self.owner):
            with suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait(10.0)

    def _keep_evidence(self) -> None:
        """Of a round that failed, keep what the hosts have of the run."""
        if not self._outcome.problems or self._run_id is None:
            return
        for name, path in self.stage.directories(self._run_id).items():
            with suppress(OSError, shutil.Error):
                shutil.copytree(path, self._folder / "hosts" / name, symlinks=True)
        for name, path in self._journals.items():
            with suppress(OSError, shutil.Error):
                shutil.copytree(path, self._folder / "journals" / name)

    def clean(self) -> None:
        """Remove what the round has left on the bed."""
        if self._run_id is not None:
            self.stage.forget(self._run_id)
        for path in self._journals.values():
            shutil.rmtree(path, ignore_errors=True)
        if not self._outcome.problems:
            shutil.rmtree(self._folder, ignore_errors=True)


def _shown(text: str) -> tuple[dict[str, int], set[str], str]:
    """Count the lines that a reader was shown, find hosts whose output it says is missing, and see how it ended."""
    by_worker: dict[int, list[str]] = {}
    broken = ""
    for line in text.splitlines():
        try:
            worker, part = json.loads(line)
        except ValueError:
            broken = text[-500:]
            break
        by_worker.setdefault(worker, []).append(part)
    lines: dict[str, int] = {}
    announced: set[str] = set()
    for parts in by_worker.values():
        for line in "".join(parts).splitlines():
            if _LINE.fullmatch(line):
                lines[line] = lines.get(line, 0) + 1
            elif match := _UNREACHABLE.match(line):
                announced.add(match[1])
    return lines, announced, broken


def median(found: list[float | None]) -> float | None:
    """The median of what was measured."""
    known = [each for each in found if each is not None]
    return round(statistics.median(known), 3) if known else None
