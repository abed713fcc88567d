"""The relay, which answers one client over its standard streams, and keeps no state that the client depends on.

One thread reads requests, answers them and serves long polls. Operations that may take longer run in their own threads.
"""

from __future__ import annotations

import _thread
import os
import select
import time

from ignite_tf_magic.launch.agent.devices import host_memory_bytes, list_gpus, list_leases
from ignite_tf_magic.launch.agent.disk import Refused, host_clock
from ignite_tf_magic.launch.agent.facts import greeting, probe
from ignite_tf_magic.launch.agent.frames import (
    MAX_PAYLOAD_BYTES,
    FrameDecoder,
    FrameError,
    encode_frame,
)
from ignite_tf_magic.launch.agent.network import Ports, connect_to, listens, route
from ignite_tf_magic.launch.agent.parking import Parking
from ignite_tf_magic.launch.agent.polling import Poll
from ignite_tf_magic.launch.agent.runs import (
    Runs,
    end,
    fence,
    list_runs,
    read,
    remove,
    set_lease,
    stop,
    unstop,
    write,
)
from ignite_tf_magic.launch.agent.starting import Starter, as_refusal
from ignite_tf_magic.launch.agent.tidying import tidy
from ignite_tf_magic.launch.agent.unpacking import MAX_ENTRIES, Parcels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Handler = Callable[[dict[str, Any], bytes], Any]

_IDLE_S = 600.0  # a living client polls or asks more often
_READ_BYTES = 1 << 18
_REFUSED = object()


def serve(root: str, digest: str, umask: int) -> None:
    """Answer the client on the standard streams until it closes them."""
    Relay(root, digest, umask).run()
    os._exit(0)  # does not wait for threads that still work


class Relay:
    """The relay of one client."""

    def __init__(self, root: str, digest: str, umask: int) -> None:
        self._runs = Runs(root)
        self._digest = digest
        self._parking = Parking(root, digest, umask)
        self._starter = Starter(self._runs, digest, umask, self._parking)
        self._ports = Ports(self._runs)
        self._parcels = Parcels(root)
        self._polls: dict[int, Poll] = {}
        self._writing = _thread.allocate_lock()
        self._quick_handlers = self._quick()
        self._slow_handlers = self._slow()

    def run(self) -> None:
        """Read and answer requests until the client closes the stream or sends nothing for 10 minutes."""
        self._touch_agent()
        decoder = FrameDecoder()
        os.set_blocking(1, True)
        heard_at = time.monotonic()
        while time.monotonic() - heard_at < _IDLE_S:
            for descriptor in self._readable():
                if descriptor != 0:
                    self._ports.accept(descriptor)
                    continue
                data = os.read(0, _READ_BYTES)
                heard_at = time.monotonic()
                if not data:
                    return
                try:
                    frames = decoder.feed(data)
                except FrameError:
                    return
                for request, payload in frames:
                    self._take(request, payload)
            self._look_at_polls()

    def _touch_agent(self) -> None:
        """Mark this agent's file as in use by its access time, so that tidying does not remove it.

        The modification time stays the same. Python would otherwise compile the file again for each shim.
        """
        path = f"{self._runs.root}/agents/{self._digest}.py"
        try:
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
        except OSError:
            pass

    def _readable(self) -> list[int]:
        poller = select.poll()
        for descriptor in (0, *self._ports.listening):
            poller.register(descriptor, select.POLLIN)
        now = time.monotonic()
        due = min([poll.due for poll in self._polls.values()], default=now + _IDLE_S)
        return [descriptor for descriptor, _ in poller.poll(max(due - now, 0) * 1000)]

    # --- requests ---------------------------------------------------------------------------------------------

    def _take(self, request: dict[str, Any], payload: bytes) -> None:
        op = str(request.get("op"))
        if op == "poll":
            self._guarded(request, self._add_poll, request)
        elif op in self._slow_handlers:
            self._guarded(request, self._begin, self._slow_handlers[op], request, payload)
        elif op in self._quick_handlers:
            self._do(self._quick_handlers[op], request, payload)
        else:
            self._refuse(request, Refused("unknown_op", f"this relay knows no operation {op!r}"))

    def _begin(self, handler: Handler, request: dict[str, Any], payload: bytes) -> None:
        """Run one operation in a thread of its own."""
        _thread.start_new_thread(self._do, (handler, request, payload))

    def _do(self, handler: Handler, request: dict[str, Any], payload: bytes) -> None:
        """Run one operation and answer. A handler returns fields, fields and a payload, or None."""
        answer = self._guarded(request, handler, request, payload)
        if answer is not _REFUSED:
            fields, data = answer if isinstance(answer, tuple) else (answer or {}, b"")
            self._reply(request, {"ok": True, **fields}, data)

    def _guarded(self, request: dict[str, Any], action: Callable[..., Any], *arguments: Any) -> Any:
        """Run an action for a request and return its result, or _REFUSED if this thread must not answer.

        After an error, the client has been sent a refusal. After `AnswersLater`, another thread answers.
        """
        try:
            return action(*arguments)
        except AnswersLater:
            pass
        except Refused as refused:
            self._refuse(request, refused)
        except OSError as error:
            self._refuse(request, as_refusal(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._refuse(request, Refused("bad_request", _told(request, error), where=_where(error)))
        except Exception as error:  # noqa: BLE001 - a client waits for an answer, whatever happens here
            self._refuse(request, Refused("fault", _told(request, error), where=_where(error)))
        return _REFUSED

    def _refuse(self, request: dict[str, Any], refused: Refused) -> None:
        facts = {"ok": False, "kind": refused.kind, "message": str(refused)}
        self._reply(request, {**refused.facts, **facts})

    def _reply(self, request: dict[str, Any], fields: dict[str, Any], payload: bytes = b"") -> None:
        about = {"id": request.get("id"), "now": host_clock()}
        try:
            frame = encode_frame({**about, **fields}, payload)
        except FrameError as error:
            frame = encode_frame({**about, "ok": False, "kind": "too_large", "message": str(error)})
        rest = memoryview(frame)
        with self._writing:
            try:
                while rest:
                    rest = rest[os.write(1, rest) :]
            except OSError:  # the client is gone
                os._exit(0)

    # --- polls ------------------------------------------------------------------------------------------------

    def _add_poll(self, request: dict[str, Any]) -> None:
        self._polls[id(request)] = Poll(self._runs, request, time.monotonic())

    def _look_at_polls(self) -> None:
        for key, poll in list(self._polls.items()):
            if poll.due > time.monotonic():
                continue
            answer = self._guarded(poll.request, poll.look, time.monotonic())
            if answer is not None and answer is not _REFUSED:
                self._reply(poll.request, {"ok": True, **answer[0]}, answer[1])
            if poll.is_over:
                poll.close()
                del self._polls[key]

    # --- operations -------------------------------------------------------------------------------------------

    def _quick(self) -> dict[str, Handler]:
        """Return the operations that run at once, in the order in which requests arrive."""
        runs, ports = self._runs, self._ports
        return {
            "hello": lambda _, __: greeting(runs, self._digest),
            "end": lambda asked, _: self._end(asked),
            "fence": lambda asked, _: {"fence": fence(runs, asked["run"], int(asked["generation"]))},
            "stop": lambda asked, _: stop(runs, asked["run"]),
            "unstop": lambda asked, _: unstop(runs, asked["run"]),
            "lease": lambda asked, _: set_lease(
                runs, asked["run"], int(asked["generation"]), float(asked["lease_s"])
            ),
            "read": lambda asked, _: self._read(asked),
            "write": self._write,
            "put": self._put,
            "unreserve": lambda asked, _: ports.unreserve(asked["ports"]),
            "listen": lambda asked, _: {"port": ports.listen(int(asked.get("port") or 0))},
            "unlisten": lambda asked, _: ports.unlisten(int(asked["port"])),
        }

    def _slow(self) -> dict[str, Handler]:
        """Return the operations that run in a thread each."""
        runs, ports = self._runs, self._ports
        return {
            "start": lambda asked, stdin: {"job": self._starter.start(asked, stdin)},
            "park": lambda asked, _: {"parked": self._parking.park(asked)},
            "remove": lambda asked, _: remove(runs, asked["run"]),
            "list": lambda asked, _: list_runs(runs, asked.get("runs"), asked.get("known") or []),
            "probe": lambda asked, _: probe(runs, asked.get("interpreter"), asked.get("modules") or []),
            "devices": lambda asked, _: self._devices(asked),
            "reserve": lambda asked, _: {"ports": ports.reserve(int(asked["count"]), asked.get("range"))},
            "connect": lambda asked, _: {"results": connect_to(asked["targets"], float(asked["timeout_s"]))},
            "listens": lambda asked, _: {"listens": listens(asked["host"], int(asked["port"]))},
            "route": lambda asked, _: {"sources": route(asked["addresses"])},
            "has": lambda asked, _: {"have": self._parcels.has(asked["digests"])},
            "tidy": lambda asked, _: tidy(runs, self._digest, float(asked["unused_s"])),
            "unpack": lambda asked, _: self._unpack(asked),
        }

    def _end(self, asked: dict[str, Any]) -> None:
        reason = asked.get("reason") or "ended"
        grace_s = float(asked["grace_s"])
        end(self._runs, asked["run"], asked.get("names"), asked.get("generation"), grace_s, reason)

    def _read(self, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        max_bytes = int(asked.get("max_bytes") or MAX_PAYLOAD_BYTES)
        return read(self._runs, asked["run"], asked["path"], int(asked.get("offset") or 0), max_bytes)

    def _write(self, asked: dict[str, Any], payload: bytes) -> None:
        mode, append = int(asked.get("mode") or 0o600), bool(asked.get("append"))
        write(self._runs, asked["run"], asked["path"], mode, payload, append=append)

    def _devices(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the GPUs, free ports and memory of this host, and what jobs hold of them."""
        within, wanted = asked.get("range"), int(asked.get("wanted") or 0)
        return {
            "gpus": list_gpus() if asked.get("with_gpus") else [],
            "leases": list_leases(self._runs),
            "memory_bytes": host_memory_bytes(),
            "free_ports": self._ports.count_free(within, wanted) if within else None,
        }

    def _unpack(self, asked: dict[str, Any]) -> None:
        max_entries = int(asked.get("max_entries") or MAX_ENTRIES)
        self._parcels.unpack(asked["digest"], int(asked["max_bytes"]), max_entries)

    def _put(self, asked: dict[str, Any], payload: bytes) -> None:
        """Store the next part of a bundle. After the last part, a thread unpacks the bundle and answers."""
        self._parcels.put(asked["digest"], int(asked["part"]), payload, int(asked["max_bytes"]))
        if asked.get("last"):
            self._take({**asked, "op": "unpack"}, b"")
            raise AnswersLater


class AnswersLater(Exception):
    """Another thread will answer this request."""


def _told(request: dict[str, Any], error: BaseException) -> str:
    return f"{request.get('op')}: {type(error).__name__}: {error}"


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace is not None else ""
