"""Several hosts on one machine. Each has its own root directory and relays, reached through pipes instead of SSH."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from ignite_tf_magic.errors import HostUnreachable
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.agent import MAGIC
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.runs.orders import TaskSlot
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunSpec
from ignite_tf_magic.runs.supervision.manager import RunPlan
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.settings.options import ConnectOptions
from tests.runs.light_runs import TIMEOUTS
from tests.waiting import until

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


def cut_file(root: str) -> Path:
    """Return the path of a marker file. While this file exists, new connections to the host fail."""
    return Path(f"{root}.cut")


class Cable(PipeTransport):
    """A connection to a host that tests can cut for new connections. Existing connections stay."""

    def __init__(self, cut: Path) -> None:
        super().__init__({"PYTHONPATH": _PACKAGE_ROOT})
        self._cut = cut

    async def open(self, argv, timeouts):
        if self._cut.exists():
            raise HostUnreachable(self._cut.stem, "no route to host")
        return await super().open(argv, timeouts)


class PipeReach(Reach):
    """Reaches hosts through pipes instead of SSH."""

    def _new(self, host: HostRecord) -> Host:
        if host.ssh is None:
            return super()._new(host)
        transport = Cable(cut_file(host.root))
        return Host(host.name, transport, python=host.agent_python, root=host.root, timeouts=self.timeouts)


def host_at(place: Path, name: str, **options) -> HostRecord:
    """Return a host whose files are in a directory of its name. It has its own address for other hosts."""
    root = place / name
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    address = f"127.0.1.{1 + len(name) + ord(name[-1]) % 100}"
    known = {"ssh": name, "root": str(root), "python": sys.executable, "agent_python": sys.executable}
    return HostRecord(name, **{**known, "tf_address": address, **options})


def seats_on(hosts) -> tuple[TaskSlot, ...]:
    return tuple(TaskSlot(i, host.name, "127.0.0.1:10800", None) for i, host in enumerate(hosts))


def plan_on(hosts, script: str | None, *, used=None, **options) -> RunPlan:
    """Return a plan with one worker per host, or per entry of `used`, which may repeat or omit hosts."""
    seats = seats_on(hosts if used is None else used)
    names = ("connect", "timeouts", "parcels")
    of_plan = {name: options.pop(name) for name in names if name in options}
    spec = RunSpec("MNIST", **{"num_workers": len(seats), "max_restarts": 0, **options})
    plan = Plan(seats, tuple(hosts))
    return RunPlan(spec, plan, script, **{"connect": ConnectOptions(), "timeouts": TIMEOUTS, **of_plan})


def living_jobs(root: Path, run: str = "*") -> list[Path]:
    """Return the directories of jobs that have a living shim, of one run or of all runs below a root."""
    return [path.parent for path in root.glob(f"runs/{run}/jobs/g*/lock") if lock.is_held(path)]


def assert_nothing_lives(*roots: Path, run: str = "*") -> None:
    """Assert that no job lives. Waits up to 30 s, because a shim releases its lock just after it reports the end."""
    for root in roots:
        until(lambda root=root: not living_jobs(root, run), 30, lambda root=root: living_jobs(root, run))


def relays(root: str = "") -> list[psutil.Process]:
    """Return the relays that this process started, for one root or for all."""
    found = []
    for child in psutil.Process().children():
        try:
            command = child.cmdline()
            if MAGIC.split()[0] in " ".join(command) and (not root or root in command):
                found.append(child)
        except psutil.Error:
            continue
    return found
