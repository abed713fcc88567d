"""The kinds of faults: what each does to a run, and when it is over."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.fault_stage import Host, HostProcess, Stage
from ignite_tf_magic.launch.agent.shims import SHIM_CODE
from ignite_tf_magic.runs.states import RunState

_VICTIM_S = 120.0
_SSHD_AWAY_S = 2.0
_DISK_FULL_S = 5.0


class Scene(Protocol):
    """The situation for a fault: a run that was started, or is just being started."""

    stage: Stage
    rng: random.Random
    owner: subprocess.Popen[bytes]
    detached: bool

    def run_id(self) -> str | None:
        """Return the run's id, or None if it is not known yet."""
        ...

    def record(self) -> dict[str, Any] | None:
        """Return the newest record of the run that a host has."""
        ...

    def struck(self, what: str) -> None:
        """Note that the fault happens now."""
        ...


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        strike: Causes the fault and repairs it from outside, if it must be. Returns after the repair.
        ends_owner: Whether the process that started the run is killed.
        breaks_link: Whether the run must notice it as a broken link rather than an ended process.
        leaves_host: Whether a host may be away when the run ends.
        in_detached: Whether it can happen to detached runs.
        in_attached: Whether it can happen to attached runs.
        needs_hosts: Whether it needs real hosts instead of loopback addresses.
        max_restarts: More restarts are a failure; None allows any number.
        min_restarts: Fewer restarts are a failure.
        spare: Whether it needs a fourth host.
        training_s: The duration of an undisturbed training, in seconds.
        full_timeouts: Whether dividing the timeouts would make it a different fault.
    """

    name: str
    strike: Callable[[Scene], None]
    ends_owner: bool = False
    breaks_link: bool = False
    leaves_host: bool = False
    in_detached: bool = True
    in_attached: bool = True
    needs_hosts: bool = False
    max_restarts: int | None = None
    min_restarts: int = 0
    spare: bool = False
    training_s: float = 8.0
    full_timeouts: bool = False


def _any_host(scene: Scene) -> Host:
    return scene.rng.choice(scene.stage.hosts)


def _await_victims(scene: Scene, is_one: Callable[[HostProcess], bool]) -> list[tuple[Host, HostProcess]]:
    """Wait for processes to kill. At first there are none, on a busy machine for a long time."""
    deadline = time.monotonic() + _VICTIM_S
    while time.monotonic() < deadline and not _has_ended(scene):
        run_id = scene.run_id()
        found = [
            (host, each)
            for host in scene.stage.hosts
            for each in host.processes()
            if is_one(each)
            and (run_id is None or any(run_id in word for word in each.argv) or _is_relay(each))
        ]
        if found:
            return found
        time.sleep(0.05)
    return []


def _has_ended(scene: Scene) -> bool:
    """Return whether the run has ended, so that no more processes start."""
    record = scene.record()
    if record is None:
        return scene.owner.poll() is not None
    return RunState(record["state"]).has_ended


def _kill(host: Host, *pids: int) -> None:
    host.run(["kill", "-KILL", *map(str, pids)])


def _is_worker(process: HostProcess) -> bool:
    return "ignite_tf_magic.runs.bootstrap" in process.argv


def _is_shim(process: HostProcess) -> bool:
    return SHIM_CODE in process.argv


def _is_reconciler(process: HostProcess) -> bool:
    return "ignite_tf_magic.runs.supervision.reconciler" in process.argv


def _is_relay(process: HostProcess) -> bool:
    return any("IGNITE-TF-AGENT" in word for word in process.argv) and not _is_shim(process)


def worker_kill(scene: Scene) -> None:
    """Send SIGKILL to one worker."""
    if victims := _await_victims(scene, _is_worker):
        host, process = scene.rng.choice(victims)
        scene.struck(f"worker {process.argv[-1].rsplit('/', 1)[-1]} on {host.name}")
        _kill(host, process.pid)


def agent_kill(scene: Scene) -> None:
    """Send SIGKILL to a shim's inner or outer process or both, to a relay, or to a reconciler."""
    kinds = ["inner", "outer", "both", "relay"] + (["reconciler"] if scene.detached else [])
    kind = scene.rng.choice(kinds)
    choose = {"relay": _is_relay, "reconciler": _is_reconciler}.get(kind, _is_shim)
    victims = _await_victims(scene, choose)
    if not victims:
        return
    host, process = scene.rng.choice(victims)
    pids = [process.pid]
    if choose is _is_shim:
        pair = sorted(each.pid for where, each in victims if where == host and each.argv == process.argv)
        pids = {"inner": pair[-1:], "outer": pair[:1], "both": pair}[kind]
    scene.struck(f"{kind} of {process.argv[-1].rsplit('/', 1)[-1][:40]} on {host.name}")
    _kill(host, *pids)


def sshd_kill(scene: Scene) -> None:
    """Send SIGKILL to a host's sshd and its sessions; restart it after two seconds."""
    host = _any_host(scene)
    scene.struck(f"sshd of {host.name}")
    host.kill_sshd()
    time.sleep(_SSHD_AWAY_S)
    host.start_sshd()


def _cable(seconds: float | None) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        host = _any_host(scene)
        scene.struck(f"cable of {host.name}")
        host.cable_out()
        if seconds is not None:
            time.sleep(seconds)
            host.cable_in()

    return strike


def power_off(scene: Scene) -> None:
    """Cut the power of a host."""
    host = _any_host(scene)
    scene.struck(f"power of {host.name}")
    host.power_off()


def node_kill(scene: Scene) -> None:
    """Send SIGKILL to a host's Ignite node."""
    host = _any_host(scene)
    scene.struck(f"node of {host.name}")
    host.kill_node()


def node_join(scene: Scene) -> None:
    """Let the node of the spare host join the cluster."""
    scene.stage.spare.start_node()  # takes seconds, and returns when the node has joined
    scene.struck(f"node of {scene.stage.spare.name}")


def disk_full(scene: Scene) -> None:
    """Fill a host's disk to the last byte, and free it again."""
    host = _any_host(scene)
    scene.struck(f"disk of {host.name}")
    host.fill_disk()
    time.sleep(_DISK_FULL_S)
    host.free_disk()


def owner_kill(scene: Scene) -> None:
    """Send SIGKILL to the process that started the run, or sometimes to a detached run's supervisor."""
    supervisor = ((scene.record() or {}).get("supervisor") or "") if scene.detached else ""
    if supervisor and scene.rng.random() < 0.6:
        host = next(host for host in scene.stage.hosts if host.name == supervisor)
        run_id = scene.run_id() or "?"
        found = [
            each
            for each in host.processes()
            if (_is_reconciler(each) or (_is_shim(each) and any("jobs/reconciler" in w for w in each.argv)))
            and any(run_id in word for word in each.argv)
        ]
        for_good = scene.rng.random() < 0.5
        pids = [each.pid for each in found if for_good or _is_reconciler(each)]
        scene.struck(f"supervisor on {host.name}{', with its shims' if for_good else ''}")
        _kill(host, *pids)
        return
    scene.struck("the process that started it")
    os.killpg(scene.owner.pid, signal.SIGKILL)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("worker_kill", worker_kill),
        Fault("agent_kill", agent_kill),
        Fault("sshd_kill", sshd_kill, max_restarts=0),
        Fault(
            "cable_3s", _cable(3.0), breaks_link=True, needs_hosts=True, max_restarts=0, full_timeouts=True
        ),
        Fault("cable_20s", _cable(20.0), breaks_link=True, needs_hosts=True),
        Fault("cable_for_good", _cable(None), breaks_link=True, needs_hosts=True, leaves_host=True),
        Fault("power_off", power_off, breaks_link=True, needs_hosts=True, leaves_host=True),
        Fault("node_kill", node_kill, training_s=15.0),
        Fault("node_join", node_join, min_restarts=1, max_restarts=1, spare=True, training_s=30.0),
        Fault("disk_full", disk_full, needs_hosts=True),
        Fault("owner_kill_detached", owner_kill, ends_owner=True, in_attached=False),
        Fault("owner_kill_attached", owner_kill, ends_owner=True, in_detached=False),
    )
}
