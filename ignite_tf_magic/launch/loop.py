"""One daemon thread with an event loop, which holds this process's connections to hosts.

A caller submits a coroutine and may wait for it; the connections outlast the call. A forked child starts its own thread
at its first call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from ignite_tf_magic.launch.lazy_asyncio import asyncio

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

_AGAIN_S = 0.1
TURN_S = (
    0.25  # a wait in the main thread takes short turns: another thread may receive the signal of a Ctrl-C
)


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended, without retrieving its result.

    One cancellation may not suffice: up to Python 3.11, `asyncio.wait_for` swallows one that comes with its result.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_S)


class LoopThread:
    """An event loop on a daemon thread, and the objects that its users share by key."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._shared: dict[Hashable, Any] = {}
        self._kept: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="ignite-tf-hosts", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop; callable from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. An interrupt cancels the coroutine."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call on the loop's own thread would wait for itself for ever")
        future = self.spawn(coroutine)
        from concurrent.futures import wait  # already loaded by asyncio

        try:
            while not future.done():
                wait([future], TURN_S)
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object under a key, made at the first call. Call it only on the loop's thread."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found

    def keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background. Call it only on the loop's thread."""
        task = self.loop.create_task(coroutine)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)


class _Current:
    """The loop thread of this process. A parent's is kept, because freeing its loop would disturb the parent."""

    def __init__(self) -> None:
        self.thread: LoopThread | None = None
        self.inherited: list[LoopThread] = []
        self.lock = threading.Lock()

    def forget(self) -> None:
        if self.thread is not None:
            self.inherited.append(self.thread)
        self.thread = None
        self.lock = threading.Lock()


_CURRENT = _Current()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_CURRENT.forget)


def loop_thread() -> LoopThread:
    """Return the loop thread of this process, which starts at the first call."""
    with _CURRENT.lock:
        if _CURRENT.thread is None:
            _CURRENT.thread = LoopThread()
        return _CURRENT.thread
