"""A link of long ways that loses packets, in user space: what TCP makes of it, stalls in order, and no byte lost."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import dataclass

PACKET_BYTES = 1448


@dataclass
class Counts:
    packets: int = 0
    lost: int = 0


class SlowLink:
    """Forwards connections to an address, with half of `round_trip_s` each way.

    A lost packet is sent again after a retransmission timeout, which doubles each time, and all behind it wait: so a
    receiver sees loss.
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
        self._is_up.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._to)
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer), return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one direction: each packet arrives when it would, and never before the one in front of it."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        delivery = asyncio.ensure_future(self._deliver(under_way, writer))
        arrives_at = 0.0
        try:
            while data := await reader.read(PACKET_BYTES):
                arrives_at = max(arrives_at, self._loop.time() + self._delay_s())
                await under_way.put((arrives_at, data))
        finally:
            await under_way.put((arrives_at, b""))
            await delivery

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
                writer.close()
                return
            writer.write(data)
            await writer.drain()
