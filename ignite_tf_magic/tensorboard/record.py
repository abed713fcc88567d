"""The record of a TensorBoard: what it was asked to show, its state for callers, and its files.

One folder holds those of all TensorBoards of a user:

    lock                held while one is started or stopped
    KEY/                one TensorBoard; KEY is a hash of what it shows
        spec.json           what it was asked to show
        server.lock         held by its process; contains its process ID
        server.json         its port; written once it listens
        server.log          its output
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.files import write_private

IDLE_TIMEOUT_S = 24 * 3600.0
RELOAD_INTERVAL_S = 5.0
STATUS_PATH = "/ignite-tf/status"

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  listened at when asked for, reached by these


@dataclass(frozen=True, slots=True)
class LogSource:
    """A location of event files, and the name under which TensorBoard shows them.

    Attributes:
        name: Name of the run at this location; "" uses the names of the folders below, as TensorBoard itself does.
        uri: A local directory or any URI that fsspec knows. If the name is "", one of its parts may be a
            pattern with `*`: each folder that matches is a run of that name.
    """

    name: str
    uri: str


def log_sources(logdirs: Sequence[str]) -> tuple[LogSource, ...]:
    """Name log directories. A single one uses TensorBoard's own names; several get names from the ends of their paths.

    Raises:
        ConfigError: A directory is an empty string.
    """
    uris = list(dict.fromkeys(map(_absolute, logdirs)))
    if len(uris) == 1:
        return (LogSource("", uris[0]),)
    parts = [[part for part in re.split(r"[/\\]", uri) if part] for uri in uris]
    depths = range(1, 1 + max(map(len, parts), default=0))
    named = (["-".join(each[-depth:]) for each in parts] for depth in depths)
    names = next((names for names in named if len(set(names)) == len(uris)), uris)
    return tuple(map(LogSource, names, uris))


def _absolute(logdir: str) -> str:
    if not logdir:
        raise ConfigError(
            "the name of a log directory is empty; pass a directory or a URI, such as igfs:///runs/RUN/events"
        )
    return logdir.rstrip("/") if "://" in logdir else str(Path(logdir).expanduser().resolve())


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """The content and options of a TensorBoard.

    Attributes:
        sources: Where to look. If several sources have the same name, TensorBoard shows them as one.
        cluster: Address of the Ignite cluster, which, like the URI, determines the files that are shown.
        cwd: Working directory of its process.
        protocols: fsspec protocols that the process registers, with the names of their classes.
        port: Port to listen on; None takes the first free one from 6006 up.
        idle_timeout_s: Seconds without a browser request after which it ends.
    """

    sources: tuple[LogSource, ...]
    cluster: str = ""
    cwd: str = "."
    protocols: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int | None = None
    reload_interval_s: float = RELOAD_INTERVAL_S
    idle_timeout_s: float = IDLE_TIMEOUT_S

    @property
    def key(self) -> str:
        """Identifier of what is shown: equal for specs with the same sources and cluster."""
        shown = json.dumps([sorted((each.name, each.uri) for each in self.sources), self.cluster])
        return hashlib.sha256(shown.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TensorBoardInfo:
    """A running TensorBoard.

    Attributes:
        url: Address for a browser: through Jupyter's proxy if there is one, else `local_url`. It may have no
            host, and is then relative to the notebook's page.
        local_url: Address for programs on this machine.
        logdirs: The sources that it shows.
        started_at: Seconds since the epoch.
        reused: Whether it already ran when it was requested.
        notes: Remarks for the user, for example that there is nothing to show yet.
    """

    url: str
    local_url: str
    host: str
    port: int
    pid: int
    logdirs: tuple[LogSource, ...]
    started_at: float
    log: Path
    reused: bool = False
    notes: tuple[str, ...] = ()

    @property
    def reachable_host(self) -> str:
        """The address at which programs on this machine reach it."""
        return _EVERY_ADDRESS.get(self.host, self.host)


@dataclass(frozen=True, slots=True)
class BoardDirectory:
    """The files of one TensorBoard. Only their owner can read them."""

    path: Path

    @property
    def lock(self) -> Path:
        """The lock file that its process holds while it runs."""
        return self.path / "server.lock"

    @property
    def log(self) -> Path:
        """The file with the output of its process."""
        return self.path / "server.log"

    def is_alive(self) -> bool:
        """Return whether its process runs."""
        return lock.is_held(self.lock)

    def pid(self) -> int | None:
        """Return its process ID; None if it does not run."""
        return lock.holder_pid(self.lock)

    def create(self, spec: BoardSpec) -> None:
        """Recreate the directory with a new spec."""
        self.remove()
        self.path.mkdir(mode=0o700, parents=True)
        write_private(self.path / "spec.json", json.dumps(asdict(spec), indent=1))

    def remove(self) -> None:
        """Remove the directory of a TensorBoard whose process has ended."""
        if self.path.exists():
            shutil.rmtree(self.path)

    def spec(self) -> BoardSpec:
        """Read what the TensorBoard was asked to show.

        Raises:
            FileNotFoundError: There is no such TensorBoard.
        """
        found = json.loads((self.path / "spec.json").read_text(encoding="utf-8"))
        known = {each.name: found[each.name] for each in fields(BoardSpec) if each.name in found}
        return BoardSpec(**{**known, "sources": tuple(LogSource(**each) for each in found["sources"])})

    def write_address(self, port: int) -> None:
        """Record the port on which it listens."""
        write_private(self.path / "server.json", json.dumps({"port": port, "started_at": time.time()}))

    def info(self, proxy_url: str | None) -> TensorBoardInfo | None:
        """Return the state of the TensorBoard; None if its process does not run, or does not listen yet.

        Args:
            proxy_url: URL through which a browser reaches a port of this machine, with %PORT% in place of the port.
        """
        try:
            pid = self.pid()
            address = json.loads((self.path / "server.json").read_text(encoding="utf-8"))
            spec = self.spec()
        except FileNotFoundError:
            return None
        if pid is None:
            return None
        port = int(address["port"])
        host = _EVERY_ADDRESS.get(spec.host, spec.host)
        host = "localhost" if host == "127.0.0.1" else f"[{host}]" if ":" in host else host
        local_url = f"http://{host}:{port}/"
        return TensorBoardInfo(
            url=proxy_url.replace("%PORT%", str(port)) if proxy_url else local_url,
            local_url=local_url,
            host=spec.host,
            port=port,
            pid=pid,
            logdirs=spec.sources,
            started_at=float(address["started_at"]),
            log=self.log,
        )
