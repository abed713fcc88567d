"""Runs a relay as a child process, so that this machine needs no SSH."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.lazy_asyncio import asyncio

_WORDS_BYTES = 4096
_READ_BYTES = 64 << 10
_END_S = 0.5


class PipeTransport:
    """Starts relays on this machine."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """Create a transport whose relays get these variables in addition to this process's own."""
        self._env = dict(env or {})

    def describe(self) -> str:
        """Return "this machine"."""
        return "this machine"

    async def open(self, argv: Sequence[str], timeouts: LinkTimeouts) -> ProcessPipe:
        """Start a program on this machine, out of reach of the terminal's interrupts."""
        del timeouts
        program = str(Path(argv[0]).expanduser()) if argv[0].startswith("~") else argv[0]
        windows = sys.platform == "win32"
        process = await asyncio.create_subprocess_exec(
            program,
            *argv[1:],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self._env},
            start_new_session=not windows,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) if windows else 0,
        )
        return ProcessPipe(process)


class ProcessPipe:
    """The pipes of a child process; see `launch.link.Pipe`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise TypeError("the process has no pipes")
        self._process = process
        self._input, self._output, self._errors = process.stdin, process.stdout, process.stderr
        self._words = b""
        self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        while data := await self._errors.read(_WORDS_BYTES):
            self._words = (self._words + data)[-_WORDS_BYTES:]

    async def read(self, limit: int) -> bytes:
        """Return the next bytes of its output."""
        return await self._output.read(limit)

    def write(self, data: bytes) -> None:
        """Send bytes to its input."""
        if not self._input.is_closing():
            self._input.write(data)

    async def drain(self) -> None:
        """Wait until most of the written bytes have been sent."""
        with contextlib.suppress(ConnectionError):  # `read` reports the end
            await self._input.drain()

    async def ending(self) -> tuple[int | None, str]:
        """Return its exit code and the end of its standard error."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_S)
            await asyncio.wait_for(asyncio.shield(self._listener), _END_S)
        return self._process.returncode, self._words.decode(errors="replace").strip()

    async def close(self) -> None:
        """Close the program's input, and kill the program if it does not end soon."""
        self._input.close()
        try:
            await asyncio.wait_for(self._end(), _END_S)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._end()
        await self._listener

    async def _end(self) -> None:
        while await self._output.read(_READ_BYTES):  # unread output would keep `wait` from returning
            pass
        await self._process.wait()
