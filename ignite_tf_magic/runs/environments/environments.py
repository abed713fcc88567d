"""Virtual environments for workers: built once on each host per requirements and interpreter, then reused."""

from __future__ import annotations

import json
import platform
import secrets
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import EnvironmentFailed, HostError, HostRefused, HostUnreachable
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import HostFacts, Job, JobStatus, ProbeFacts, Renewal
from ignite_tf_magic.launch.loop import TURN_S
from ignite_tf_magic.launch.parcels import Parcel
from ignite_tf_magic.launch.watch import Contact, HostWatch
from ignite_tf_magic.runs.environments import environment_builder
from ignite_tf_magic.runs.environments.environment_builder import HOST_FILE, NO_INDEX, ORDER
from ignite_tf_magic.runs.environments.requirements import ADDED, Requirements
from ignite_tf_magic.runs.environments.wheels import Supplies
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord

Report = Callable[[str], None]

_JOB, _LOG, _REQUIREMENTS, _PROGRAM = "build", "build.log", "requirements.txt", "build.py"
_LEASE_S = 60.0
_GONE_S = 5.0
_POLL_S = 0.02
_NUM_LAST_LINES = 20


def prepare_environments(
    hosts: Iterable[HostRecord],
    requirements: Requirements,
    reach: Reach,
    report: Report,
    *,
    python: str | None = None,
) -> tuple[HostRecord, ...]:
    """Make sure that hosts have an environment, all at once; return the host records with it. Has no time limit.

    Args:
        hosts: Hosts that may run workers.
        requirements: The packages to install.
        reach: How to reach the hosts.
        report: Called with progress messages of one line, beginning with the host's name.
        python: Interpreter on which the environments are based; by default, each host's configured one.

    Raises:
        EnvironmentFailed: A host's environment cannot be built; the message says why. Nothing incomplete is left there.
        LaunchError: A host cannot be used, or the wheels for it cannot be downloaded.
    """
    wanted, cancelled, talking = list(hosts), threading.Event(), threading.Lock()

    def say(host: str, line: str) -> None:
        with talking:
            report(f"{host}: {line}")

    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="ignite-tf-")))
        supplies = Supplies(folder, cancelled)
        links = opened.enter_context(reach.visiting(wanted))
        sites = [
            _Site(link, requirements, supplies, partial(say, host.name), cancelled, is_here=host.ssh is None)
            for link, host in zip(links, wanted, strict=True)
        ]
        with ThreadPoolExecutor(max(len(sites), 1), "environment") as pool:
            futures = [
                pool.submit(site.prepare, python or host.python)
                for site, host in zip(sites, wanted, strict=True)
            ]
            try:
                while wait_for(futures, TURN_S).not_done:
                    pass
            except BaseException:
                cancelled.set()  # builds in progress on hosts are ended before this function exits
                raise
    _raise_first([error for future in futures if (error := future.exception()) is not None])
    return tuple(
        replace(host, environment=future.result()) for host, future in zip(wanted, futures, strict=True)
    )


def _raise_first(errors: list[BaseException]) -> None:
    if not errors:
        return
    first = errors[0]
    others = [error.host for error in errors[1:] if isinstance(error, HostError)]
    if others and isinstance(first, EnvironmentFailed):
        raise EnvironmentFailed(
            first.host, f"{first.reason}\nIt failed on {', '.join(others)}, too"
        ) from first
    raise first


class _Lines:
    """Receives a log, passes its lines on, and keeps the last ones."""

    def __init__(self, say: Report) -> None:
        self._say = say
        self._rest = b""
        self.last: deque[str] = deque(maxlen=_NUM_LAST_LINES)

    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        """Process bytes of the log. Indented lines, which are details, are not passed on."""
        del host, path, offset
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in (each.decode(errors="replace").rstrip() for each in lines):
            self.last.append(line)
            if line and not line[0].isspace():
                self._say(line)

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        """Do nothing: the log never becomes so long."""


class _Site:
    """One host on which an environment is wanted."""

    def __init__(
        self,
        host: Host,
        requirements: Requirements,
        supplies: Supplies,
        say: Report,
        cancelled: threading.Event,
        *,
        is_here: bool,
    ) -> None:
        self._host = host
        self._requirements = requirements
        self._supplies = supplies
        self._say = say
        self._cancelled = cancelled
        self._is_here = is_here

    def prepare(self, interpreter: str) -> str:
        """Return the directory of the environment; build it if it does not exist."""
        facts, python = self._host.hello(), self._host.probe(interpreter)
        requirements = self._requirements
        target = f"{facts.root}/venvs/{requirements.digest_on(facts, python)}"
        if self._works(f"{target}/bin/python"):
            return target
        order = {
            "target": target,
            "requirements": _REQUIREMENTS,
            "added": ADDED,
            "wheels": self._ship(facts, requirements.wheels) if requirements.wheels else None,
            "uv": self._find_uv(facts, python),
        }
        base = python.interpreter or interpreter
        lacking = self._build(facts, base, order)
        if lacking is not None:
            self._say("that host cannot reach a package index; the wheels are downloaded here and sent")
            wheels = self._supplies.wheels(requirements.text, ADDED, lacking)
            self._build(facts, base, {**order, "wheels": self._ship(facts, wheels)})
        return target

    def _works(self, interpreter: str) -> bool:
        try:
            self._host.probe(interpreter)
        except HostRefused:
            return False  # it does not exist, or no longer works
        return True

    def _ship(self, facts: HostFacts, parcel: Parcel) -> str:
        if parcel.digest not in self._host.has_parcels([parcel.digest]):
            self._host.put_parcel(parcel)
        return f"{facts.root}/parcels/{parcel.digest}"

    def _find_uv(self, facts: HostFacts, python: ProbeFacts) -> str | None:
        if python.uv is not None:
            return python.uv
        if self._is_here:
            return self._supplies.own_uv()
        is_alike = (facts.platform, facts.machine) == (sys.platform, platform.machine())
        parcel = self._supplies.packed_uv() if is_alike else None
        return f"{self._ship(facts, parcel)}/uv" if parcel else None

    def _build(self, facts: HostFacts, base: str, order: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Build the environment; return facts about the host if it reached no package index, else None.

        Raises:
            EnvironmentFailed: It cannot be built.
        """
        run = environment_builder.RUN_PREFIX + secrets.token_hex(environment_builder.NUM_RUN_BYTES)
        lines = _Lines(self._say)
        with self._leaving_nothing(run):
            program = Path(environment_builder.__file__).read_text(encoding="utf-8")
            files = {_PROGRAM: program, ORDER: json.dumps(order), _REQUIREMENTS: self._requirements.text}
            for path, text in files.items():
                self._host.write(run, path, text.encode())
            self._host.start(_job(run, f"{facts.root}/runs/{run}", base))
            status = self._watch(run, lines)
            if status.code == 0:
                return None
            if status.code == NO_INDEX:
                return dict(json.loads(self._host.read(run, HOST_FILE) or b"{}"))
        words = [*lines.last, *([] if status.code else [f"(it was ended: {status.reason})"])]
        raise EnvironmentFailed(self._host.name, _explain(self._requirements, words))

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
                        self._host.name,
                        f"the connection was lost while the host built an environment: {view.error}",
                    )
                if self._cancelled.wait(_POLL_S):
                    raise EnvironmentFailed(self._host.name, "the building was interrupted")
        finally:
            watch.stop()

    @contextmanager
    def _leaving_nothing(self, run: str) -> Iterator[None]:
        """Remove the directory of a build afterwards, with everything unfinished in it."""
        try:
            yield
        finally:
            # If the host fails now, the lease ends the build, and a later build removes the directory.
            with suppress(HostError):
                self._host.end(run, grace_s=0)
                self._remove(run)

    def _remove(self, run: str) -> None:
        deadline = time.monotonic() + _GONE_S
        while True:
            try:
                return self._host.remove(run)
            except HostRefused as error:
                if error.kind != "alive" or time.monotonic() > deadline:
                    raise
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
        grace_s=0.0,
    )


def _explain(requirements: Requirements, words: Iterable[str]) -> str:
    said = "\n  ".join(words)
    advice = (
        "the wheels given by --wheels must be for that host's Python and system, and have everything that they "
        f"require, {' and '.join(ADDED)}"
        if requirements.wheels
        else "for a host without a package index, pass the wheels: --wheels DIR"
    )
    return (
        f"the environment of {requirements.name} cannot be built there. The last output was:\n  {said}\n"
        f"Fix {requirements.name} and start again; {advice}"
    )
