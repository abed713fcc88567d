"""The record of a TensorBoard: what it was asked to show, what others see of it, its files.

One folder holds those of all TensorBoards of a user:

    lock                held while one is started or stopped
    KEY/                one TensorBoard; KEY stands for what it shows
        spec.json           what it was asked to show
        server.lock         held by its process; tells its pid
        server.json         where it listens; written once it does
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
    """Where event files are, and how TensorBoard calls what is there.

    Attributes:
        name: Name of the run that it is; "" takes the names of the folders below, as TensorBoard itself does.
        uri: A local directory or any URI that fsspec knows. With "" as the name, one of its parts may be a
            pattern with `*`: each folder that fits is a run of that name.
    """

    name: str
    uri: str


def log_sources(logdirs: Sequence[str]) -> tuple[LogSource, ...]:
    """Name log directories: a single one takes TensorBoard's own names, several are told apart by their ends.

    Raises:
        ConfigError: One is empty.
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
        raise ConfigError("a log directory is empty; give a directory or a URI as igfs:///runs/RUN/events")
    return logdir.rstrip("/") if "://" in logdir else str(Path(logdir).expanduser().resolve())


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """What a TensorBoard is to show, and how.

    Attributes:
        sources: Where to look; what several sources have under one name is shown as one.
        cluster: What decides which files an URI means beside the URI, as the address of the Ignite cluster.
        cwd: Directory in which its process runs.
        protocols: fsspec's protocols that the process registers, with the classes that serve them.
        port: None takes the first free one from 6006 up.
        idle_timeout_s: It ends when nobody has looked at it for this time.
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
        """The same for two that show the same."""
        shown = json.dumps([sorted((each.name, each.uri) for each in self.sources), self.cluster])
        return hashlib.sha256(shown.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TensorBoardInfo:
    """A TensorBoard that runs.

    Attributes:
        url: Where a browser finds it: through Jupyter's proxy where there is one, else as `local_url`. May be
            without a host, and is then meant relative to the notebook's page.
        local_url: Where programs of this machine find it.
        logdirs: What it shows.
        started_at: Seconds since the epoch.
        reused: Whether it ran already when it was asked for.
        notes: What a person should know, as that there is nothing to show yet.
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
        """The address at which programs of this machine reach it."""
        return _EVERY_ADDRESS.get(self.host, self.host)


@dataclass(frozen=True, slots=True)
class BoardDirectory:
    """Where the files of one TensorBoard are. Readable by its owner only."""

    path: Path

    @property
    def lock(self) -> Path:
        """Held by its process as long as it lives."""
        return self.path / "server.lock"

    @property
    def log(self) -> Path:
        """Output of its process."""
        return self.path / "server.log"

    def is_alive(self) -> bool:
        """Whether its process lives."""
        return lock.is_held(self.lock)

    def pid(self) -> int | None:
        """Its process, None when there is none."""
        return lock.holder_pid(self.lock)

    def create(self, spec: BoardSpec) -> None:
        """Make the directory anew, with what is to be shown."""
        self.remove()
        self.path.mkdir(mode=0o700, parents=True)
        write_private(self.path / "spec.json", json.dumps(asdict(spec), indent=1))

    def remove(self) -> None:
        """Forget what is known of it; its process has ended."""
        if self.path.exists():
            shutil.rmtree(self.path)

    def spec(self) -> BoardSpec:
        """Read what it was asked to show.

        Raises:
            FileNotFoundError: There is no such TensorBoard.
        """
        found = json.loads((self.path / "spec.json").read_text(encoding="utf-8"))
        known = {each.name: found[each.name] for each in fields(BoardSpec) if each.name in found}
        return BoardSpec(**{**known, "sources": tuple(LogSource(**each) for each in found["sources"])})

    def write_address(self, port: int) -> None:
        """Tell where it listens."""
        write_private(self.path / "server.json", json.dumps({"port": port, "started_at": time.time()}))

    def info(self, proxy_url: str | None) -> TensorBoardInfo | None:
        """Describe it; None when its process does not live, or does not listen yet.

        Args:
            proxy_url: How a browser reaches a port of this machine, with %PORT% in the port's place.
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
