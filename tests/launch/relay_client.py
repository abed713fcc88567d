"""A client of one relay over pipes. It uses only the frame codec of the package, no other client code."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ignite_tf_magic.launch.agent import (
    MAGIC,
    FrameDecoder,
    agent_digest,
    agent_source,
    encode_frame,
    loader_arguments,
)
from tests.waiting import PATIENCE_S, until

SOURCE = agent_source()
DIGEST = agent_digest(SOURCE)
HOME_MARK = "IGNITE_TF_TEST_HOME"  # set in the environment of all processes that a relay starts


class Refusal(Exception):
    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(f"{reply['kind']}: {reply['message']}")
        self.kind = reply["kind"]
        self.reply = reply


class Relay:
    """One relay. `call` sends one request and returns its reply."""

    def __init__(
        self,
        root: Path,
        *,
        env: dict[str, str] | None = None,
        python: str = sys.executable,
        cwd: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            loader_arguments(DIGEST, len(SOURCE), str(root), python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, HOME_MARK: str(root), **(env or {})},
            cwd=cwd or root.parent,
        )
        self.word = self._read_word()
        if self.word == "NEED":
            self._write(SOURCE)
        self._decoder = FrameDecoder()
        self._answers: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._last_id = 0
        self.payload = b""

    def _read_word(self) -> str:
        for line in self.process.stdout:
            if line.startswith(MAGIC.encode()):
                return line.decode().split()[-1]
        raise AssertionError("the relay said nothing")

    def _write(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, op: str, payload: bytes = b"", **fields: Any) -> int:
        self._last_id += 1
        self._write(encode_frame({"id": self._last_id, "op": op, **fields}, payload))
        return self._last_id

    def answer(self, number: int) -> dict[str, Any]:
        while number not in self._answers:
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            assert data, "the relay hung up"
            for header, payload in self._decoder.feed(data):
                self._answers[header["id"]] = header, payload
        header, self.payload = self._answers.pop(number)
        if not header["ok"]:
            raise Refusal(header)
        return header

    def call(self, op: str, payload: bytes = b"", **fields: Any) -> dict[str, Any]:
        return self.answer(self.send(op, payload, **fields))

    def start(self, code: str = "", *, run: str = "r", stdin: bytes = b"", **fields: Any) -> dict[str, Any]:
        """Start Python code as a job. The log's default name is the job's name with ".log"."""
        name = fields.pop("name", "g1-worker-0")
        asked = {
            "argv": [sys.executable, "-u", "-c", code],
            "env": {},
            "generation": 1,
            "log": f"{name}.log",
            "grace_s": 2.0,
            **fields,
        }
        return self.call("start", stdin, run=run, name=name, **asked)["job"]

    def poll(self, run: str = "r", **fields: Any) -> dict[str, Any]:
        return self.call("poll", run=run, **{"wait_s": 0, **fields})

    def job(self, name: str = "g1-worker-0", run: str = "r") -> dict[str, Any]:
        return next(job for job in self.poll(run)["jobs"] if job["name"] == name)

    def until_ended(self, name: str = "g1-worker-0", run: str = "r") -> dict[str, Any]:
        until(lambda: self.job(name, run)["state"] in ("ended", "lost"), what=lambda: self.job(name, run))
        return self.job(name, run)

    def output(self, name: str = "g1-worker-0", run: str = "r") -> bytes:
        self.call("read", run=run, path=f"{name}.log", offset=0, max_bytes=1 << 20)
        return self.payload

    def until_output(self, text: bytes, name: str = "g1-worker-0", run: str = "r") -> bytes:
        until(lambda: text in self.output(name, run), what=lambda: (text, self.output(name, run)))
        return self.output(name, run)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()


@contextlib.contextmanager
def relay_at(root: Path, **options: Any) -> Iterator[Relay]:
    relay = Relay(root, **options)
    try:
        yield relay
    finally:
        relay.kill()


def processes_of(home: Path) -> dict[int, list[str]]:
    """Return all descendants of a home's relays, including shims and jobs: pid -> command line."""
    found = {}
    mark = f"\0{HOME_MARK}={home}\0".encode()
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and mark in b"\0" + (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_text().split("\0")
    return found


@contextlib.contextmanager
def clean_host(home: Path) -> Iterator[Relay]:
    """Yield a relay of a host. Afterwards end all its jobs, and check that no process is left."""
    with relay_at(home) as relay:
        yield relay
    if not processes_of(home):
        return
    with relay_at(home) as relay:
        for run in relay.call("list")["runs"]:
            names = [job["name"] for job in run["jobs"]]
            relay.call("end", run=run["run"], names=names, grace_s=0)
            for name in names:
                relay.until_ended(name, run["run"])
    until(lambda: not processes_of(home), what=lambda: processes_of(home))
