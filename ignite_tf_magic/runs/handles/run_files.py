"""The files of a run in igfs: igfs:///runs/RUN_ID/{checkpoints,events,logs,model}."""

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
    """Creates a run's directories in igfs and copies its workers' output there, in a separate thread.

    A run never fails because of it: errors are reported once to `report`, and the output stays in the run's directory.

    Args:
        host: Copy only the output of workers on this host; for detached runs, where each host copies its own.
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
        """Start copying; it ends by itself after the run."""
        atexit.register(self.close)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until copying has ended, at most for the timeout."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Copy the remaining output and stop."""
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
            return  # the run was removed
        except (OSError, ValueError, TypeError) as error:  # a gap's record is damaged or cannot be written
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
        """Copy all output that exists by now."""
        try:
            with FileIO(self._log) as file:
                while (found := read_on(file, self._copy.offset, _MAX_COPY_BYTES))[1]:
                    self._copy.take(*found)
                    self.writer.flush()
        except FileNotFoundError:
            return
