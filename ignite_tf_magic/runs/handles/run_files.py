"""What a run leaves in igfs: igfs:///runs/RUN_ID/{checkpoints,events,logs,model}."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import FileWriter, OpenMode
from ignite_tf_magic.launch.log_files import read_on
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.logs.gaps import LogCopy
from ignite_tf_magic.settings.options import ConnectOptions

RUNS = ("runs",)
PARTS = ("checkpoints", "events", "logs", "model")
_COPY_INTERVAL_S = 2.0
_MAX_COPY_BYTES = 4 * 1024 * 1024
_JOIN_S = 5.0

Report = Callable[[str], None]


class RunFiles(Closing):
    """Makes a run's directories in igfs and keeps a copy of its workers' output there, in a thread of its own.

    A run never fails for it: what cannot be copied is told to `report`, once, and stays in the run's own directory.

    Args:
        host: Only the output of workers on this host is copied: of a detached run, each host copies its own.
    """

    def __init__(self, run: Run, options: ConnectOptions, report: Report, *, host: str | None = None) -> None:
        self._run = run
        self._report = report
        self._volume = Volume(lambda: options)
        self._path = (*RUNS, run.id)
        self._host = host
        self._logs: dict[str, _IgfsCopy] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._copy, name=f"files-{run.id}", daemon=True)

    def start(self) -> None:
        """Begin; ends by itself after the run."""
        atexit.register(self.close)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of a run's copying, for some time."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Copy what is there and end."""
        self._ending.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _copy(self) -> None:
        try:
            with self._volume:
                for part in PARTS:
                    self._volume.make_directory((*self._path, part), parents=True, exist_ok=True)
                while not self._ending.wait(_COPY_INTERVAL_S) and not self._run.info().state.has_ended:
                    self._copy_logs()
                self._copy_logs()
                self._end()
        except IgniteTfError as error:
            self._report(f"the output of run {self._run.id} is not copied to igfs any more: {error}")
        except FileNotFoundError:
            return  # somebody has removed the run
        except (OSError, ValueError, TypeError) as error:  # no note of a gap can be written, or it is damaged
            self._report(f"the output of run {self._run.id} is not copied to igfs any more: {error}")
        finally:
            atexit.unregister(self.close)

    def _copy_logs(self) -> None:
        for worker in range(len(self._run.info().tasks)):
            for path in self._own_logs(worker):
                if path.name not in self._logs and path.stat().st_size > 0:
                    writer = self._volume.open_write((*self._path, "logs", path.name), OpenMode.APPEND)
                    self._logs[path.name] = _IgfsCopy(path, writer)
        for copy in self._logs.values():
            copy.go_on()

    def _own_logs(self, worker: int) -> list[Path]:
        if self._host is None:
            return self._run.logs(worker)
        launches = self._run.record().hosts_of(worker)
        paths = [self._run.directory.log(worker, number) for number, host in launches if host == self._host]
        return [path for path in paths if path.exists()]

    def _end(self) -> None:
        for copy in self._logs.values():
            copy.writer.close()
        record = self._run.directory.record.read_bytes()
        self._volume.write_file((*self._path, "run.json"), record)


class _IgfsCopy:
    """A log and its copy in igfs."""

    def __init__(self, log: Path, writer: FileWriter) -> None:
        self._log = log
        self.writer = writer
        self._copy = LogCopy(writer.tell(), writer.write, log.with_name(f"{log.name}.igfs.json"))

    def go_on(self) -> None:
        """Copy what there is by now."""
        try:
            with FileIO(self._log) as file:
                while (found := read_on(file, self._copy.offset, _MAX_COPY_BYTES))[1]:
                    self._copy.take(*found)
                    self.writer.flush()
        except FileNotFoundError:
            return
