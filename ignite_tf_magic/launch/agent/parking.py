"""Parks processes for a relay: clients park them when a run has ended, and the job of a later run takes one.

A job may take a process that was started as its own would be: with the same command, in the same environment. Linux
only; elsewhere nothing is parked.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial

from ignite_tf_magic.launch.agent.devices import gpu_environment
from ignite_tf_magic.launch.agent.disk import FileLock, Refused, expanded, names_in, unlink_if_there
from ignite_tf_magic.launch.agent.handing_over import HAND_OVER_S, connect_in, send
from ignite_tf_magic.launch.agent.job_files import JobFiles
from ignite_tf_magic.launch.agent.processes import available_memory_bytes, kill_shim
from ignite_tf_magic.launch.agent.shims import own_environment, report_of, start_shim
from ignite_tf_magic.launch.agent.spawning import job_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket as Socket  # noqa: N812 - as in handing_over
    from typing import Any

MOST_PARKED = 4  # on one host, for all clients
_MOST_AGE_S = 3600.0
_PARK_S = 30.0  # limit until the process runs
_PARKED_NAME = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{32}")
# Variables that differ between connections of the same user, and that do not affect imported modules.
_OF_A_CONNECTION = ("SSH_", "XDG_SESSION_", "KRB5CCNAME")


class Parking:
    """The parked processes of a root directory. A relay's own parked processes end with it."""

    def __init__(self, root: str, digest: str, umask: int) -> None:
        self._root = root
        self._digest = digest
        self._umask = umask
        self._folder = f"{root}/parked"
        self._client: tuple[int, int] | None = None
        self._own: set[str] = set()

    def park(self, asked: dict[str, Any]) -> int:
        """Park up to `count` processes of a kind for this relay, if there is room; return how many there are."""
        if sys.platform != "linux" or not hasattr(os, "memfd_create"):
            return 0
        request = self._request(asked)
        os.makedirs(f"{self._folder}/empty", 0o700, exist_ok=True)
        with FileLock(f"{self._folder}/lock"):
            kind = self._kind_of(request)
            parked = [name for name in self._living() if name.startswith(kind) and name in self._own]
            while len(parked) < min(int(asked["count"]), MOST_PARKED):
                if available_memory_bytes() < 2 * request["memory_bytes"]:
                    break
                self._make_room(parked)
                parked.append(self._start(request, kind))
                self._own.add(parked[-1])
            return len(parked)

    def take(self, request: dict[str, Any]) -> Parked | None:
        """Take a process that was parked for such a job, so that no other job can; return None if there is none."""
        warm = request.get("warm")
        if not warm or sys.platform != "linux":
            return None
        kind = self._kind_of({**request, "argv": expanded(warm["argv"]), "input": warm["input"]})
        for name in self._names():
            if not name.startswith(kind):
                continue
            connection = connect_in(self._folder, name)
            if connection is None:
                self._remove(name)
                continue
            try:
                os.unlink(f"{self._folder}/{name}")
            except FileNotFoundError:  # another relay was faster
                connection.close()
                continue
            return Parked(name.partition(".")[2], connection)
        return None

    def _request(self, asked: dict[str, Any]) -> dict[str, Any]:
        words = [*asked["argv"], *asked["env"], *asked["env"].values(), asked["input"]]
        if not asked["argv"] or not all(isinstance(word, str) for word in words):
            raise Refused("bad_request", "argv, env and input are made of strings")
        return {
            "argv": expanded(asked["argv"]),
            "env": asked["env"],
            "input": asked["input"],
            "gpu_env": gpu_environment([int(gpu) for gpu in asked.get("gpus") or ()]),
            "umask": self._umask,
            "age_s": min(float(asked["age_s"]), _MOST_AGE_S),
            "memory_bytes": int(asked["memory_bytes"]),
        }

    def _kind_of(self, request: dict[str, Any]) -> str:
        """Return a hash that is the same for all processes that are started in the same way."""
        import hashlib

        found = job_environment({**request, "nonce": ""})
        own = {name: found[name] for name in sorted(found) if not name.startswith(_OF_A_CONNECTION)}
        text = json.dumps([self._digest, request["argv"], request["input"], own, request["umask"]])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _names(self) -> list[str]:
        return [name for name in names_in(self._folder) if _PARKED_NAME.fullmatch(name)]

    def _living(self) -> list[str]:
        """Return the names of waiting processes, and remove the names of those that have ended."""
        found = []
        for name in self._names():
            connection = connect_in(self._folder, name)
            if connection is None:
                self._remove(name)
            else:
                connection.close()
                found.append(name)
        return found

    def _remove(self, name: str) -> None:
        """Remove the name of a parked process, which makes the process end."""
        unlink_if_there(f"{self._folder}/{name}")

    def _make_room(self, kept: list[str]) -> None:
        """End the oldest processes that are not in `kept`, if there are MOST_PARKED already."""
        names = self._living()
        others = sorted(set(names).difference(kept), key=lambda name: _parked_at(f"{self._folder}/{name}"))
        for name in others[: max(len(names) - MOST_PARKED + 1, 0)]:
            self._remove(name)

    def _start(self, request: dict[str, Any], kind: str) -> str:
        nonce = os.urandom(16).hex()
        name = f"{kind}.{nonce}"
        if self._client is None:
            self._client = os.pipe()
        told = os.memfd_create("request")
        try:
            os.write(told, json.dumps({**request, "name": name, "nonce": nonce}).encode())
            os.lseek(told, 0, os.SEEK_SET)
            start = partial(start_shim, self._root, self._digest, "keep_parked", self._folder, nonce)
            errors = os.open(f"{self._folder}/keeper.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                client = self._client[0]
                answer = report_of(lambda tell: start((told, tell, errors, client)), _PARK_S)
            finally:
                os.close(errors)
        finally:
            os.close(told)
        if answer is None:
            kill_shim(nonce)
            raise Refused("internal", "the shim of a parked process ended before it had one")
        if "kind" in answer:
            raise Refused(answer.pop("kind"), answer.pop("message"), **answer)
        return name


class Parked:
    """A parked process that this relay has taken.

    Attributes:
        nonce: Its mark, which its job must use.
    """

    def __init__(self, nonce: str, connection: Socket) -> None:
        self.nonce = nonce
        self._connection = connection

    def hand_over(self, path: str, job_input: int, errors: int, lock: int) -> dict[str, Any] | None:
        """Make it the process of the job in a directory; return what the job's shim reports.

        Return None if that fails. In that case no part of the job has begun, and the parked process has ended.
        """
        message = {"directory": path, "environment": own_environment()}
        try:
            answer = report_of(
                lambda tell: send(self._connection, message, [job_input, tell, errors, lock]), HAND_OVER_S
            )
        except OSError:
            answer = None
        finally:
            self._connection.close()
        if answer is not None:
            return answer
        kill_shim(self.nonce)
        # The shim writes this before it hands the job to the process.
        return None if JobFiles(path).status()["started_at"] is None else {}

    def let_go(self) -> None:
        """Let the process end unused."""
        self._connection.close()


def _parked_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
