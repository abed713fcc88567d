"""The shim of a parked process: one that starts early, and waits to become the process of a job.

Like any shim, it has an outer and an inner process. The inner one listens on a socket. When a relay hands it a job,
both become that job's shim, and the parked process becomes the job's process. The shim ends unused if its time is over,
memory is short, its socket is removed, or the relay that requested it is gone. So nothing stays parked for a client
that has ended.
"""

from __future__ import annotations

import json
import os
import select
import signal

from ignite_tf_magic.launch.agent.disk import host_clock, unlink_if_there
from ignite_tf_magic.launch.agent.handing_over import HAND_OVER_S, listen_in, peer_uid, receive, send
from ignite_tf_magic.launch.agent.job_files import JobFiles
from ignite_tf_magic.launch.agent.process_shim import (
    KEEPER_LOCK,
    KEEPER_REPORT,
    ProcessShim,
    become_shim,
    end_tree,
    run_inner,
    watch_inner,
)
from ignite_tf_magic.launch.agent.processes import KEEPER_MARK, available_memory_bytes
from ignite_tf_magic.launch.agent.spawning import KEEPER_SIGNALS, StartFailed, job_environment, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket as Socket  # noqa: N812 - as in handing_over
    from typing import Any

PARKED_CLIENT = KEEPER_LOCK  # before there is a job: one end of a pipe; the relay holds the other end
_PARKED_TICK_S = 0.5


def keep_parked(folder: str) -> None:
    """Run the shim of the process that descriptor 0 describes. The calling process ends; a daemon goes on."""
    import socket

    with open(0, "rb", closefd=False) as file:
        request = json.loads(file.read())
    outer = become_shim()
    here, there = socket.socketpair()
    inner = os.fork()
    if inner == 0:
        here.close()
        run_inner(lambda: _serve(folder, request, outer, there))
    there.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, KEEPER_REPORT):
        os.dup2(nothing, descriptor)
    _follow(here, inner, f"{folder}/{request['name']}")
    os._exit(0)


def _follow(inner_end: Socket, inner: int, path: str) -> None:
    """Run the outer process, which has no job until the inner one passes one on."""
    message, descriptors = receive(inner_end)
    if message is None or len(descriptors) != 2:
        os.waitpid(inner, 0)
        end_tree(None)
        unlink_if_there(path)
        return
    os.dup2(descriptors[0], 2)
    os.dup2(descriptors[1], KEEPER_LOCK, inheritable=False)
    for descriptor in descriptors:
        os.close(descriptor)
    inner_end.sendall(b".")
    inner_end.close()
    watch_inner(JobFiles(message["directory"]), inner)


def _serve(folder: str, request: dict[str, Any], outer: int, outer_end: Socket) -> None:
    """Run the inner process: wait for a job, then act as its shim."""
    waiting = _ParkingSpace(folder, request)
    job = waiting.for_job()
    if job is None:
        return
    message, descriptors = job
    os.environ.clear()
    os.environ.update(message["environment"], **{KEEPER_MARK: request["nonce"]})
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target, inheritable=target != KEEPER_LOCK)
        os.close(descriptor)
    outer_end.settimeout(HAND_OVER_S)
    try:
        send(outer_end, {"directory": message["directory"]}, [2, KEEPER_LOCK])
        if outer_end.recv(1) != b".":
            return
    except OSError:  # without the outer process, the job's end could remain unrecorded
        return
    outer_end.close()
    ProcessShim(JobFiles(message["directory"]), outer, waiting.process).run()


class ParkedProcess:
    """The parked process, as its shim controls it."""

    def __init__(self, request: dict[str, Any], cwd: str) -> None:
        import socket

        self._control, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        output = os.memfd_create("output")  # its output before it has a log
        told = os.memfd_create("input")
        os.write(told, request["input"].encode())
        os.dup2(told, 0)
        os.close(told)
        try:
            argv = [*request["argv"], str(theirs.fileno())]
            self.pid = spawn({**request, "argv": argv, "cwd": cwd}, output)
        finally:
            theirs.close()
            os.close(output)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process ends."""
        return self._control.fileno()

    def become(self, request: dict[str, Any], log: int) -> None:
        """Hand it a job, whose process it becomes after its preparation. Raises OSError if that fails."""
        cwd = os.open(request["cwd"], os.O_PATH | os.O_DIRECTORY)
        try:
            message = {name: request[name] for name in ("argv", "umask")}
            self._control.settimeout(HAND_OVER_S)
            send(self._control, {**message, "env": job_environment(request)}, [0, log, cwd])
        finally:
            os.close(cwd)
            self._control.close()

    def kill(self) -> None:
        """Kill the process."""
        self._control.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class _ParkingSpace:
    """A parked process, and the socket through which a job for it may arrive."""

    def __init__(self, folder: str, request: dict[str, Any]) -> None:
        self._request = request
        self._path = f"{folder}/{request['name']}"
        try:
            self.process = ParkedProcess(request, f"{folder}/empty")
        except StartFailed as failure:
            os.write(KEEPER_REPORT, json.dumps({"kind": failure.kind, "message": str(failure)}).encode())
            os._exit(0)
        self._listener = listen_in(folder, request["name"])
        self._listener.settimeout(0)
        self._until = host_clock() + request["age_s"]
        os.write(KEEPER_REPORT, b"{}\n")
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, KEEPER_REPORT):
            os.dup2(nothing, descriptor)
        os.close(nothing)

    def for_job(self) -> tuple[dict[str, Any], list[int]] | None:
        """Wait for a job; return its message and descriptors, or None if the process is to end unused."""
        try:
            while not self._is_over():
                found = self._step()
                if found is not None:
                    return found
            return None
        finally:
            self._listener.close()
            unlink_if_there(self._path)  # a relay may have removed it

    def _step(self) -> tuple[dict[str, Any], list[int]] | None:
        poller = select.poll()
        for each in (self._listener.fileno(), PARKED_CLIENT, self.process.fileno()):
            poller.register(each, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(_PARKED_TICK_S * 1000)]
        # A relay connects before it removes the socket. So if the socket is gone, its connection is already here, and
        # no other can follow.
        is_taken = not os.path.exists(self._path)
        found = self._accepted() if is_taken or self._listener.fileno() in ready else None
        if found is None and (is_taken or len(set(ready) - {self._listener.fileno()})):
            self._until = 0.0
        return found

    def _accepted(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the first complete message of a connection. A relay that came too late sends none."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return None
            with connection:
                connection.settimeout(HAND_OVER_S)
                if peer_uid(connection) != os.getuid():
                    continue
                message, descriptors = receive(connection)
            if message is not None and len(descriptors) == KEEPER_LOCK + 1:
                return message, descriptors

    def _is_over(self) -> bool:
        heard = signal.sigtimedwait(KEEPER_SIGNALS, 0)
        while heard is not None:
            if heard.si_signo == signal.SIGTERM:
                return True
            heard = signal.sigtimedwait(KEEPER_SIGNALS, 0)
        is_short = available_memory_bytes() < int(self._request["memory_bytes"])
        return is_short or host_clock() >= self._until
