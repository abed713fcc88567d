"""Several hosts on one machine: each has a root directory and relays of its own, reached through pipes as by SSH."""

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
    """While it is there, no connection to the host can be made."""
    return Path(f"{root}.cut")


class Cable(PipeTransport):
    """A way to a host that can be cut; connections that there are stay."""

    def __init__(self, cut: Path) -> None:
        super().__init__({"PYTHONPATH": _PACKAGE_ROOT})
        self._cut = cut

    async def open(self, argv, timeouts):
        if self._cut.exists():
            raise HostUnreachable(self._cut.stem, "no route to host")
        return await super().open(argv, timeouts)


class PipeReach(Reach):
    """Where SSH would be used, a pipe is."""

    def _new(self, host: HostRecord) -> Host:
        if host.ssh is None:
            return super()._new(host)
        transport = Cable(cut_file(host.root))
        return Host(host.name, transport, python=host.agent_python, root=host.root, timeouts=self.timeouts)


def host_at(place: Path, name: str, **options) -> HostRecord:
    """A host whose files lie in a directory of its name; others reach it at an address of its own."""
    root = place / name
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    address = f"127.0.1.{1 + len(name) + ord(name[-1]) % 100}"
    known = {"ssh": name, "root": str(root), "python": sys.executable, "agent_python": sys.executable}
    return HostRecord(name, **{**known, "tf_address": address, **options})


def seats_on(hosts) -> tuple[TaskSlot, ...]:
    return tuple(TaskSlot(i, host.name, "127.0.0.1:10800", None) for i, host in enumerate(hosts))


def plan_on(hosts, script: str | None, *, used=None, **options) -> RunPlan:
    """A plan of one worker on each of these hosts, or of `used`, which may name some twice or none."""
    seats = seats_on(hosts if used is None else used)
    names = ("connect", "timeouts", "parcels")
    of_plan = {name: options.pop(name) for name in names if name in options}
    spec = RunSpec("MNIST", **{"num_workers": len(seats), "max_restarts": 0, **options})
    plan = Plan(seats, tuple(hosts))
    return RunPlan(spec, plan, script, **{"connect": ConnectOptions(), "timeouts": TIMEOUTS, **of_plan})


def living_jobs(root: Path, run: str = "*") -> list[Path]:
    """The jobs below a root that a shim looks after: of all runs, or of one."""
    return [path.parent for path in root.glob(f"runs/{run}/jobs/g*/lock") if lock.is_held(path)]


def assert_nothing_lives(*roots: Path, run: str = "*") -> None:
    """A shim lets go of its lock a moment after it has written that its job has ended, hence the seconds."""
    for root in roots:
        until(lambda root=root: not living_jobs(root, run), 30, lambda root=root: living_jobs(root, run))


def relays(root: str = "") -> list[psutil.Process]:
    """The relays that this process has started, for any root or for one."""
    found = []
    for child in psutil.Process().children():
        try:
            command = child.cmdline()
            if MAGIC.split()[0] in " ".join(command) and (not root or root in command):
                found.append(child)
        except psutil.Error:
            continue
    return found
