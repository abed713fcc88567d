"""The place of fault rounds: a test bed with a cache, and the tools to start and judge runs on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.errors import CacheNotFound, IgniteTfError
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.ops import AtomicityMode
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.session import open_session
from ignite_tf_magic.settings.options import ConnectOptions
from tests.bed.bed import Bed, BedError, BedKind, Host, HostProcess

ROOT = Path(__file__).parent.parent
__all__ = ["Bed", "BedError", "BedKind", "Host", "HostProcess", "Stage"]

T = TypeVar("T")
CACHE, STATES, NUM_ROWS = "FAULTS", "FAULTS_STATES", 3000
_SETTLED_S, _ROWS_S = 90.0, 10.0


class Stage:
    """A bed of three hosts. It is rebuilt if a fault leaves it in a state that cannot be mended. Close it.

    Args:
        folder: Directory for the bed and for files of the rounds' processes.
        spare: Whether to add a fourth host, whose node is not started.
        kind: The kind of bed; None means the best available.
        disk_mb: Size of each host's disk. It holds the files of runs, not Ignite's data.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        *,
        spare: bool = False,
        kind: BedKind | None = None,
        disk_mb: int = 64,
    ) -> None:
        self.folder = folder
        self._say = say
        self._spare = spare
        self._kind = kind
        self._disk_mb = disk_mb
        self._bed: Bed | None = None
        self.num_beds = 0

    @property
    def bed(self) -> Bed:
        """The bed, made on first use."""
        if self._bed is None:
            began = time.monotonic()
            self.num_beds += 1
            self._bed = Bed.up(
                3 + self._spare,
                ignite=True,
                root_dir=self.folder / "bed",
                kind=self._kind,
                failure_detection_s=5.0,
                disk_mb=self._disk_mb,
            )
            if self._spare:
                self.spare.kill_node()
            self._write_config()
            self._await_nodes()
            self._fill()
            self._say(f"a bed of {self._bed.kind.value} was made in {time.monotonic() - began:.0f} s")
        return self._bed

    @property
    def config(self) -> Path:
        """The configuration file for users of the bed."""
        return self.folder / "ignite-tf.toml"

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts that have nodes at the beginning of a round."""
        return self.bed.hosts[:3]

    @property
    def spare(self) -> Host:
        """The fourth host."""
        return self.bed.hosts[3]

    def close(self) -> None:
        """End the bed."""
        if self._bed is not None:
            self._bed.down()
            self._bed = None

    def _write_config(self) -> None:
        bed = self.bed
        addresses = [str(host.endpoint) for host in bed.hosts]
        lines = [
            f"[cluster]\naddresses = {json.dumps(addresses)}",
            f"[ssh]\nconfig = {json.dumps(str(bed.ssh_config))}",
            f"[launch]\npython = {json.dumps(sys.executable)}",
        ]
        for host in bed.hosts:
            lines.append(
                f'[hosts.{host.name}]\naddresses = ["{host.address}"]\nssh = "{host.ssh_name}"'
                f"\nroot = {json.dumps(self.root_on(host))}"
            )
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    # Files of a run on its hosts, as this process sees them

    def root_on(self, host: Host) -> str:
        """Return the package's state directory on a host, as the host sees it."""
        return f"{host.home}/{host.state}"

    def directories(self, run_id: str) -> dict[str, Path]:
        """Return a run's directory on each host."""
        return {host.name: host.disk / host.state / "runs" / run_id for host in self.bed.hosts}

    def runs_like(self, name: str) -> set[str]:
        """Return the ids of the runs with this name that hosts know."""
        folders = [host.disk / host.state / "runs" for host in self.bed.hosts]
        return {path.name for folder in folders if folder.is_dir() for path in folder.glob(f"*-{name}-*")}

    def journals(self, number: int) -> dict[str, Path]:
        """Return, by host, the directories in which workers record their printed lines; make missing ones."""
        found = {}
        for host in self.bed.hosts:
            found[host.name] = host.directory / "work" / f"round-{number}"
            found[host.name].mkdir(mode=0o700, parents=True, exist_ok=True)
        return found

    # The cluster

    def on_cluster(self, action: Callable[[Client], T]) -> T:
        """Call `action` with a client of a node that sees the majority of the nodes."""
        deadline, last = time.monotonic() + _SETTLED_S, "no node was asked"
        while time.monotonic() < deadline:
            for host in self.bed.hosts:
                try:
                    with connect(ConnectOptions(endpoints=(host.endpoint,), timeout_s=3.0)) as client:
                        if len(client.nodes()) >= 2:
                            return action(client)
                except CacheNotFound:
                    raise
                except (IgniteTfError, OSError) as error:
                    last = str(error)
            time.sleep(0.2)
        raise RuntimeError(f"the cluster cannot be used: {last}")

    def _await(
        self, wanted: int, what: str, count: Callable[[Client], int], timeout_s: float = _SETTLED_S
    ) -> None:
        """Wait until the cluster has this many of something."""
        deadline = time.monotonic() + timeout_s
        while (found := self.on_cluster(count)) != wanted:
            if time.monotonic() > deadline:
                raise RuntimeError(f"there are {found} {what}, not {wanted}")
            time.sleep(0.2)

    def _await_nodes(self) -> None:
        self._await(3, "nodes", lambda client: len(client.nodes()))

    def _fill(self) -> None:
        def fill(client: Client) -> None:
            client.get_or_create_cache(CacheConfig(STATES, backups=2, atomicity=AtomicityMode.TRANSACTIONAL))

        with open_session(report=lambda _: None, config=self.config) as session:
            session.load(CACHE, {"x": np.arange(NUM_ROWS)}, backups=1, replace=True)
        self.on_cluster(fill)

    def state_of(self, run_id: str) -> dict[str, Any]:
        """Return the last state that the first worker of a run saved."""
        return json.loads(self.on_cluster(lambda client: client.cache(STATES).get(run_id)) or "{}")

    def forget(self, run_id: str) -> None:
        """Remove a run from the registry and the hosts."""

        def remove(client: Client) -> None:
            with Registry(client) as registry, suppress(IgniteTfError):
                registry.remove(run_id)

        with suppress(RuntimeError):
            self.on_cluster(remove)
        for host in self.bed.hosts:
            if host.pid is not None:
                host.run(["rm", "-rf", f"{self.root_on(host)}/runs/{run_id}"])

    def mend(self) -> None:
        """Restore the initial state of all hosts, or rebuild a bed for which this fails."""
        try:
            self._mend_hosts()
            self._await_rows()
            self._await_owners()
        except (BedError, RuntimeError, OSError, IgniteTfError, subprocess.SubprocessError) as error:
            self._say(f"the bed is made anew: {error}")
            self.close()
            self.bed  # noqa: B018 - the property makes the bed

    def _await_rows(self) -> None:
        """Wait for the row count. Just after the loss of a node, a cache may seem too small."""
        self._await(NUM_ROWS, "rows", lambda client: client.cache(CACHE).size(), _ROWS_S)

    def _await_owners(self) -> None:
        """Wait until all nodes own partitions: a new node owns them once it has their rows, which restarts a run."""
        self._await(3, "owners of partitions", lambda client: len(client.cache(CACHE).partition_map().owners))

    def _mend_hosts(self) -> None:
        is_real = self.bed.kind is BedKind.NAMESPACES
        for host in self.bed.hosts:
            if is_real and host.pid is None:
                host.power_on(wait=False)
            if is_real:
                host.cable_in()
                host.free_disk()
            if host.service_pid("sshd") is None:
                host.start_sshd()
        if self._spare and self.spare.service_pid("node") is not None:
            self.spare.kill_node()
        apart = {host.name for host in self.hosts if not self._is_member(host)}
        for host in self.hosts:
            if host.name in apart:
                host.kill_node()
        for host in self.hosts:
            if host.name in apart:
                host.start_node()
        self._await_nodes()

    def _is_member(self, host: Host) -> bool:
        """Return whether a host's node is up and has not formed its own cluster."""
        if host.service_pid("node") is None:
            return False
        deadline = time.monotonic() + 15.0
        while time.monotonic() < deadline:
            try:
                with connect(ConnectOptions(endpoints=(host.endpoint,), timeout_s=3.0)) as client:
                    return len(client.nodes()) >= 2
            except IgniteTfError:
                if host.service_pid("node") is None:
                    return False
                time.sleep(0.3)
        return False

    # Processes

    def spawn(self, words: list[str], home: Path, divisor: int, output: Path) -> subprocess.Popen[bytes]:
        """Start one of `fault_owner`'s programs with its own state directory."""
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        env = {**os.environ, "IGNITE_TF_HOME": str(home), "IGNITE_TF_TIMINGS_DIVISOR": str(divisor)}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with output.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fault_owner", *words],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes_of(self, run_id: str) -> Iterator[tuple[Host, HostProcess]]:
        """Yield all processes of a run on powered hosts: workers, shims, reconcilers, and their children."""
        for host in self.bed.hosts:
            if host.pid is None:
                continue
            for process in host.processes():
                if process.marker is not None or any(run_id in word for word in process.argv):
                    yield host, process

    def num_left(self, run_id: str, within_s: float) -> int:
        """Wait up to `within_s` for a run's processes to end, as shims and relays may take a moment.

        Returns:
            The number of processes that remain.
        """
        deadline = time.monotonic() + within_s
        while (num_left := len(list(self.processes_of(run_id)))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return num_left


def newest_record(paths: Mapping[str, Path]) -> dict[str, Any] | None:
    """Return the newest of a run's records in these directories."""
    newest = None
    for path in paths.values():
        with suppress(OSError, ValueError):
            found = json.loads((path / "run.json").read_bytes())
            if newest is None or found["version"] > newest["version"]:
                newest = found
    return newest
