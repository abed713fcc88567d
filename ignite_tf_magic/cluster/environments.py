"""Virtual environments for workers: built once on each host for the same words and interpreter, then used again."""

from __future__ import annotations

import hashlib
import json
import platform
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ignite_tf_magic.cluster import environment_builder
from ignite_tf_magic.cluster.environment_builder import HOST_FILE, NO_INDEX, ORDER
from ignite_tf_magic.cluster.reach import Reach
from ignite_tf_magic.cluster.record import HostRecord
from ignite_tf_magic.cluster.wheels import fetch_wheels
from ignite_tf_magic.errors import ConfigError, EnvironmentFailed, HostError, HostRefused, HostUnreachable
from ignite_tf_magic.launch.hosts import UNPACKED_LIMIT_BYTES, Host
from ignite_tf_magic.launch.jobs import HostFacts, Job, JobStatus, ProbeFacts, Renewal
from ignite_tf_magic.launch.parcels import Parcel, pack_tree
from ignite_tf_magic.launch.watch import Contact, HostWatch

Report = Callable[[str], None]

_RECIPE = 1  # of other environments for the same words; counts the changes of how they are built
_EXTRAS = (("numpy>=1.26", "numpy"),)  # what this package imports wherever it reads from Ignite
_JOB, _LOG, _REQUIREMENTS, _PROGRAM = "build", "build.log", "requirements.txt", "build.py"
_LEASE_S = 60.0
_GRACE_S = 0.5
_POLL_S = 0.02
_NUM_LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the workers' interpreter is to have installed.

    Attributes:
        name: What messages call it.
        lines: As pip reads them, without comments.
        wheels: Where all of it comes from; None asks a package index.
    """

    name: str
    lines: tuple[str, ...]
    wheels: Parcel | None = None

    def digest_on(self, facts: HostFacts, python: ProbeFacts) -> str:
        """Name the environment that this makes of an interpreter of a host."""
        about = [facts.platform, facts.machine, python.interpreter, python.version]
        content = [_RECIPE, self.lines, self.wheels.digest if self.wheels else None, about]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def read_requirements(path: Path, wheels: Path | None = None) -> Requirements:
    """Read a file of requirements, and pack a directory of wheels that has all of them.

    Raises:
        ConfigError: It cannot be read, names other files, or there are no wheels.
        ParcelError: The wheels cannot be shipped.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the requirements {str(path)!r} cannot be read: {error}") from error
    lines = [line.partition(" #")[0].rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for line in lines:
        if line.startswith(
            ("-r", "-c", "-e", "--requirement", "--constraint", "--editable", ".", "/", "file:")
        ):
            raise ConfigError(
                f"{path} names another file ({line!r}), which hosts do not have; write all of it into one file, as by: "
                f"uv pip compile {path} -o lock.txt"
            )
    if wheels is not None and not any(wheels.glob("*.whl")):
        raise ConfigError(f"no wheels are in {str(wheels)!r}; fill it by: pip download -r {path} -d {wheels}")
    return Requirements(path.name, tuple(lines), _pack_wheels(wheels) if wheels else None)


def _pack_wheels(folder: Path) -> Parcel:
    return pack_tree(folder, max_bytes=UNPACKED_LIMIT_BYTES)


def prepare_environments(
    hosts: Iterable[HostRecord],
    requirements: Requirements,
    reach: Reach,
    report: Report,
    *,
    python: str | None = None,
    for_detached: bool = False,
) -> tuple[HostRecord, ...]:
    """Make sure that hosts have an environment, all at once; gives them with it. Building takes as long as it takes.

    Args:
        hosts: Where workers may run.
        requirements: What is installed there.
        reach: How hosts are reached.
        report: Told how it goes on, a line at a time, beginning with the host's name.
        python: Interpreter on which the environments stand; each host's configured one by default.
        for_detached: Whether hosts answer for the run themselves, with the same interpreter.

    Raises:
        EnvironmentFailed: A host has none, with the reason; nothing incomplete is left there.
        HostError: A host cannot be used.
    """
    wanted, cancelled = list(hosts), threading.Event()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="ignite-tf-")))
        stock = _Stock(requirements, folder)
        say = _one_at_a_time(report)
        sites = []
        for host in wanted:
            link = opened.enter_context(reach.open(host))
            says = (lambda name: lambda line: say(f"{name}: {line}"))(host.name)
            sites.append(_Site(link, stock, python or host.python, says, cancelled, is_here=host.ssh is None))
        with ThreadPoolExecutor(max(len(sites), 1), "environment") as pool:
            futures = [pool.submit(site.prepare, needs_extras=for_detached) for site in sites]
            try:
                wait_for(futures)
            except BaseException:
                cancelled.set()  # what is under way on hosts is ended before this is left
                raise
    _raise_first([future.exception() for future in futures])
    return tuple(
        replace(host, environment=future.result()) for host, future in zip(wanted, futures, strict=True)
    )


def _raise_first(errors: list[BaseException | None]) -> None:
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    others = [error.host for error in failed[1:] if isinstance(error, HostError)]
    first = failed[0]
    if others and isinstance(first, EnvironmentFailed):
        raise EnvironmentFailed(first.host, f"{first.reason}\nThe same failed on {', '.join(others)}")
    raise first


def _one_at_a_time(report: Report) -> Report:
    lock = threading.Lock()

    def say(line: str) -> None:
        with lock:
            report(line)

    return say


class _Stock:
    """What this machine has for hosts that lack it. Thread-safe."""

    def __init__(self, requirements: Requirements, folder: Path) -> None:
        self.requirements = requirements
        self._folder = folder
        self._lock = threading.Lock()
        self._wheels: dict[str, Parcel] = {}
        self._uv: Parcel | None = None

    @property
    def text(self) -> str:
        return "\n".join([*self.requirements.lines, ""])

    def wheels_for(self, host: Mapping[str, Any]) -> Parcel:
        """Fetch wheels, once for all hosts of a kind."""
        kind = json.dumps(host, sort_keys=True)
        with self._lock:
            if kind not in self._wheels:
                name = f"{len(self._wheels)}"
                folder, listed = self._folder / f"wheels-{name}", self._folder / f"requirements-{name}.txt"
                listed.write_text(self.text, encoding="utf-8")
                folder.mkdir()
                fetch_wheels(listed, [requirement for requirement, _ in _EXTRAS], host, folder)
                self._wheels[kind] = _pack_wheels(folder)
            return self._wheels[kind]

    def own_uv(self) -> str | None:
        """Find uv on this machine."""
        beside = Path(sys.executable).with_name("uv.exe" if sys.platform == "win32" else "uv")
        return str(beside) if beside.is_file() else shutil.which("uv")

    def uv_parcel(self) -> Parcel | None:
        """Pack uv for hosts of this machine's kind; None when there is none."""
        found = self.own_uv()
        with self._lock:
            if found is not None and self._uv is None:
                folder = self._folder / "uv"
                folder.mkdir()
                shutil.copy(found, folder / "uv")
                self._uv = pack_tree(folder)
            return self._uv


class _Lines:
    """Takes a log and hands its lines on; keeps the last ones."""

    def __init__(self, say: Report) -> None:
        self._say = say
        self._rest = b""
        self.last: deque[str] = deque(maxlen=_NUM_LAST_LINES)

    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        """Take bytes of the log. Details, which are indented, are not handed on."""
        del host, path, offset
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in (each.decode(errors="replace").rstrip() for each in lines):
            self.last.append(line)
            if line and not line[0].isspace():
                self._say(line)

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        """Take note of nothing: so much is never written."""


class _Site:
    """One host on which an environment is wanted."""

    def __init__(
        self,
        host: Host,
        stock: _Stock,
        python: str,
        say: Report,
        cancelled: threading.Event,
        *,
        is_here: bool,
    ) -> None:
        self._host = host
        self._stock = stock
        self._python = python
        self._say = say
        self._cancelled = cancelled
        self._is_here = is_here

    def prepare(self, *, needs_extras: bool) -> str:
        """Give the directory of the environment, built when it is not there."""
        facts, python = self._host.hello(), self._host.probe(self._python)
        requirements = self._stock.requirements
        target = f"{facts.root}/venvs/{requirements.digest_on(facts, python)}"
        if self._is_there(target):
            return target
        order = {
            "target": target,
            "requirements": _REQUIREMENTS,
            "wheels": self._ship(facts, requirements.wheels) if requirements.wheels else None,
            "uv": self._find_uv(facts, python),
            "extras": _EXTRAS,
            "needs_extras": needs_extras,
        }
        interpreter = python.interpreter or self._python
        lacking = self._build(facts, interpreter, order)
        if lacking is not None:
            self._say("no package index is reached from there; the wheels are fetched here and sent")
            order["wheels"] = self._ship(facts, self._stock.wheels_for(lacking))
            self._build(facts, interpreter, order)
        return target

    def _is_there(self, target: str) -> bool:
        try:
            return self._host.probe(f"{target}/bin/python").interpreter is not None
        except HostRefused:
            return False  # or it does not work any more, and is built again

    def _ship(self, facts: HostFacts, parcel: Parcel) -> str:
        if parcel.digest not in self._host.has_parcels([parcel.digest]):
            self._host.put_parcel(parcel)
        return f"{facts.root}/parcels/{parcel.digest}"

    def _find_uv(self, facts: HostFacts, python: ProbeFacts) -> list[str]:
        if python.uv is not None:
            return [python.uv]
        own = self._stock.own_uv()
        if own is None or (facts.platform, facts.machine) != (sys.platform, platform.machine()):
            return []
        parcel = None if self._is_here else self._stock.uv_parcel()
        return [own if parcel is None else f"{self._ship(facts, parcel)}/uv"]

    def _build(
        self, facts: HostFacts, interpreter: str, order: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Build; gives what the host is when it reached no index.

        Raises:
            EnvironmentFailed: It cannot be built.
        """
        run = f"env-{secrets.token_hex(4)}"
        lines = _Lines(self._say)
        with self._leaving_nothing(run):
            program = Path(environment_builder.__file__).read_text(encoding="utf-8")
            files = {_PROGRAM: program, ORDER: json.dumps(order), _REQUIREMENTS: self._stock.text}
            for path, text in files.items():
                self._host.write(run, path, text.encode())
            self._host.start(_job(run, f"{facts.root}/runs/{run}", interpreter))
            status = self._watch(run, lines)
            if status.code == 0:
                return None
            if status.code == NO_INDEX:
                return dict(json.loads(self._host.read(run, HOST_FILE) or b"{}"))
        words = [*lines.last, *([] if status.code else [f"(it was ended: {status.reason})"])]
        raise EnvironmentFailed(self._host.name, _explain(self._stock.requirements, words))

    def _watch(self, run: str, lines: _Lines) -> JobStatus:
        """Wait for the end of the job and of its output."""
        watch = HostWatch(self._host, run, logs={_LOG: 0}, sink=lines, renew=Renewal(1, _LEASE_S))
        try:
            while True:
                view = watch.view
                job = view.jobs.get(_JOB)
                if job is not None and job.has_ended and watch.offsets[_LOG] >= job.log_bytes:
                    return job
                silent_s = time.monotonic() - view.since
                if view.contact is Contact.UNREACHABLE and silent_s > _LEASE_S:
                    raise HostUnreachable(
                        self._host.name, f"it was lost while it built an environment: {view.error}"
                    )
                if self._cancelled.wait(_POLL_S):
                    raise EnvironmentFailed(self._host.name, "the building was interrupted")
        finally:
            watch.stop()

    @contextmanager
    def _leaving_nothing(self, run: str) -> Any:
        try:
            yield
        finally:
            with suppress(HostError):  # what cannot be ended now ends with its lease
                self._host.end(run, grace_s=0)
                self._await_end(run)
                self._host.remove(run)

    def _await_end(self, run: str) -> None:
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            jobs = [
                job for each in self._host.call("list", runs=[run]).fields["runs"] for job in each["jobs"]
            ]
            if all(JobStatus.from_wire(job).has_ended for job in jobs):
                return
            time.sleep(_POLL_S)


def _job(run: str, home: str, interpreter: str) -> Job:
    return Job(
        run=run,
        name=_JOB,
        generation=1,
        argv=(interpreter, "-I", f"{home}/{_PROGRAM}"),
        env={"PYTHONUNBUFFERED": "1"},
        log=_LOG,
        cwd=home,
        lease_s=_LEASE_S,
        grace_s=_GRACE_S,
    )


def _explain(requirements: Requirements, words: Iterable[str]) -> str:
    said = "\n  ".join(words)
    advice = (
        "the wheels given by --wheels must be for that host's Python and system, and have everything that they require"
        if requirements.wheels
        else "a host without a package index can be given the wheels: --wheels DIR"
    )
    return (
        f"the environment of {requirements.name} cannot be built there. The last words were:\n  {said}\n"
        f"Mend {requirements.name} and start again; {advice}"
    )
