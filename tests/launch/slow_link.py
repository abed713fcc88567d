"""A slow link that loses packets, simulated in user space as TCP shows it: stalls, but ordered and complete data."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from dataclasses import dataclass

PACKET_BYTES = 1448


@dataclass
class Counts:
    packets: int = 0
    lost: int = 0


class SlowLink:
    """Forwards connections to an address, with half of `round_trip_s` as delay in each direction.

    A lost packet is resent after a retransmission timeout, which doubles each time. All packets behind it wait, as TCP
    receivers observe it.
    """

    def __init__(self, to: tuple[str, int], *, round_trip_s: float, loss: float, seed: int) -> None:
        self._to = to
        self._way_s = round_trip_s / 2
        self._resend_s = 0.2 + round_trip_s
        self._loss = loss
        self._draw = random.Random(seed)
        self.counts = Counts()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> SlowLink:
        self._thread.start()
        assert self._is_up.wait(300), "no port to listen at"
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._to)
        try:
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, back):
                end.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one direction. Each packet arrives after its delay, and never before the packet in front of it."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        await asyncio.gather(self._take(reader, under_way), self._deliver(under_way, writer))

    async def _take(
        self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        arrives_at = 0.0
        while data := await reader.read(PACKET_BYTES):
            arrives_at = max(arrives_at, self._loop.time() + self._delay_s())
            await under_way.put((arrives_at, data))
        await under_way.put((arrives_at, b""))

    def _delay_s(self) -> float:
        self.counts.packets += 1
        delay_s, resend_s = self._way_s, self._resend_s
        while self._draw.random() < self._loss:
            self.counts.lost += 1
            delay_s, resend_s = delay_s + resend_s, 2 * resend_s
        return delay_s

    async def _deliver(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            at, data = await under_way.get()
            await asyncio.sleep(max(at - self._loop.time(), 0))
            if not data:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
