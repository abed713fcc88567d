"""A run as the API returns it: a `Run`, plus what its training recorded about itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import ConnectionFailed, IgniteTfError, PathNotFound
from ignite_tf_magic.igfs.reader import FileReader
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.serialization.facts_html import facts_html
from ignite_tf_magic.session.run_scripts import read_script
from ignite_tf_magic.session.run_values import load_model, read_result
from ignite_tf_magic.settings.options import ConnectOptions
from ignite_tf_magic.training.parameters import FILE_NAME as PARAMETERS
from ignite_tf_magic.training.parameters import MOST_BYTES as PARAMETERS_BYTES
from ignite_tf_magic.training.parameters import parse as parse_parameters
from ignite_tf_magic.training.records import FILE_NAME, RecordReader, TrainingRecord, without_repeats

if TYPE_CHECKING:
    import pandas as pd

_PART_BYTES, _TAIL_BYTES = 1 << 20, 1 << 16
_POLL_S, _PAUSE_S = 0.5, 5.0
_JOIN_S = 2.0
# Numeric columns whose values may all be unknown.
_MEASURES = ("examples_per_s", "data_wait", "memory_bytes", "cpu_cores", "gpu_share")

Cluster = Callable[[], "ConnectOptions | None"]


@dataclass(frozen=True, slots=True)
class TrainingRun(Run):
    """A run, with the records of its training.

    Attributes:
        cluster: Returns how to reach the Ignite cluster whose igfs holds the run's files; None if that is unknown.
    """

    cluster: Cluster

    @classmethod
    def of(cls, run: Run, cluster: Cluster) -> TrainingRun:
        """Return a training run for a run that only knows its processes."""
        return cls(run.directory, run.origin, run.reach, cluster)

    def records(self) -> list[TrainingRecord]:
        """Read the training records so far, oldest first; empty if there are none.

        Raises:
            ConnectionFailed: No node of the cluster answers.
        """
        options = self.cluster()
        if options is None:
            return []
        reader = RecordReader()
        with Volume(lambda: options) as volume, suppress(PathNotFound), _open(volume, self.id) as file:
            return without_repeats(_read_on(file, reader))
        return []

    def __repr__(self) -> str:
        try:
            info = self.info()
        except FileNotFoundError:
            return f"<run {self.id}: removed>"
        return f"<run {info.id}: {info.state.value}, {info.counted_workers}, reading {info.cache}>"

    def _repr_html_(self) -> str:
        info, latest = self.info(), self.latest()
        return facts_html(
            f"run {info.id}: {info.state.value}",
            {
                "cache": info.cache,
                "workers": f"{info.counted_workers} on {', '.join(info.hosts)}",
                "training": "" if latest is None else _place(latest),
                "tags": ", ".join(info.tags),
                "reason": info.reason or "",
                "files": str(info.directory),
            },
        )

    def latest(self) -> TrainingRecord | None:
        """Read the last training record; None if there is none, or if no cluster answers, since it is optional."""
        options = self.cluster()
        if options is None:
            return None
        try:
            with Volume(lambda: options) as volume, _open(volume, self.id) as file:
                data = bytearray(min(file.node.size, _TAIL_BYTES))
                count = file.read_into(file.node.size - len(data), memoryview(data))
        except (PathNotFound, ConnectionFailed):
            return None
        return next(reversed(RecordReader().feed(bytes(data[:count]))), None)

    @property
    def parameters(self) -> dict[str, Any]:
        """The values that the script passed to `ignite_tf_magic.config` and the arguments of its last `fit`.

        Empty before the first of these calls.

        Raises:
            ConnectionFailed: No node of the cluster answers.
        """
        options = self.cluster()
        if options is None:
            return {}
        with Volume(lambda: options) as volume, suppress(PathNotFound):
            with volume.open_read(("runs", self.id, PARAMETERS)) as file:
                data = bytearray(min(file.node.size, PARAMETERS_BYTES))
                file.read_into(0, memoryview(data))
            return parse_parameters(bytes(data))
        return {}

    @property
    def script(self) -> str:
        """The source that the workers execute, as it was sent.

        The source of a cell starts after an empty line, so that line numbers match.

        Raises:
            ConfigError: The run executes a command and has no script, or no host still has the script.
        """
        return read_script(self)

    @property
    def history(self) -> pd.DataFrame:
        """The completed epochs, one per row; without columns before the first.

        Reads them from igfs, so it also works while the run is live. The columns, in this order:

            training: str. Which training of the script: "fit-0" is its first `fit`, "loop-0" its first custom loop.
            epoch: int64. Counted from 0.
            step: int64. Steps completed since the beginning of the training.
            NAME: float64. One column for each recorded value, such as loss, accuracy, val_loss; NaN where not recorded.
            examples_per_s: float64. Sum over all workers; NaN where unknown.
            data_wait: float64. Share of time spent waiting for data, from 0 to 1, of the worker that waited most.
            memory_bytes: float64. Memory of the largest worker process.
            cpu_cores: float64. Mean number of cores that a worker's process kept busy.
            time: datetime64, UTC. By the chief's clock.
            gpu_share: float64. How busy the GPUs were, from 0 to 1; the column exists only if workers have GPUs.

        Raises:
            ConnectionFailed: No node of the cluster answers.
        """
        return frame_of([record for record in self.records() if record.is_epoch])

    @property
    def metrics(self) -> pd.DataFrame:
        """All records, about one per second and one per epoch end, with the columns of `history`."""
        return frame_of(self.records())

    @property
    def result(self) -> Any:
        """The value that the script passed to `ignite_tf_magic.result`, or that the function returned.

        Raises:
            PathNotFound: There is no result.
            ConnectionFailed: No node of the cluster answers.
        """
        return read_result(self._options(), self.id)

    def model(self, name: str | None = None, *, into: Any = None, trust: bool = False, **given: Any) -> Any:
        """Load a model that the run's `fit` saved: the one of this name in Keras, by default the last one.

        Args:
            name: The model's name.
            into: A model that takes the weights, required if the model could not be saved whole.
            trust: Whether the model may contain code, which is then executed; otherwise such a model is refused.
            given: Arguments of Keras' `load_model`, such as `custom_objects`.

        Raises:
            PathNotFound: The run has not saved such a model.
            ConfigError: Only weights were saved and `into` is missing, or the model may run code.
            ConnectionFailed: No node of the cluster answers.
        """
        return load_model(self._options(), self.id, name, into=into, trust=trust, **given)

    def _options(self) -> ConnectOptions:
        options = self.cluster()
        if options is None:
            raise ConnectionFailed(
                f"the files of run {self.id} are in igfs, and no cluster is configured or runs here: set "
                "IGNITE_TF_CLUSTER=HOST:PORT"
            )
        return options

    def tail(self) -> MetricsTail:
        """Follow the training records. The caller closes the result."""
        return MetricsTail(self.id, self.cluster)


def _place(record: TrainingRecord) -> str:
    values = "".join(f", {name} {value:.4g}" for name, value in record.values.items())
    return f"epoch {record.epoch + 1}, step {record.step}{values}"


def frame_of(records: list[TrainingRecord]) -> pd.DataFrame:
    """Return records as rows, with the columns of `TrainingRun.history`."""
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame([_row(record) for record in records])
    frame = frame.astype({name: "float64" for name in _MEASURES if name in frame})
    return frame


def _row(record: TrainingRecord) -> dict[str, Any]:
    memory = [each.memory_bytes for each in record.workers if each.memory_bytes is not None]
    gpus = [each.gpu_share for each in record.workers if each.gpu_share is not None]
    cores = [each.cpu_cores for each in record.workers if each.cpu_cores is not None]
    row = {
        "training": record.training,
        "epoch": record.epoch,
        "step": record.step,
        **record.values,
        "examples_per_s": record.examples_per_s,
        "data_wait": record.data_wait,
        "memory_bytes": max(memory, default=None),
        "cpu_cores": sum(cores) / len(cores) if cores else None,
        "time": datetime.fromtimestamp(record.time, timezone.utc),
    }
    return row | ({"gpu_share": sum(gpus) / len(gpus)} if gpus else {})


def _open(volume: Volume, run_id: str) -> FileReader:
    return volume.open_read(("runs", run_id, FILE_NAME))


def _read_on(file: FileReader, reader: RecordReader) -> list[TrainingRecord]:
    found: list[TrainingRecord] = []
    space = memoryview(bytearray(_PART_BYTES))
    while count := file.read_into(reader.num_bytes, space):
        found += reader.feed(bytes(space[:count]))
    return found


class MetricsTail(Closing):
    """Follows a run's training records in a thread of its own. Never raises: viewers treat the records as extra."""

    def __init__(self, run_id: str, cluster: Cluster) -> None:
        self._run_id = run_id
        self._cluster = cluster
        self._records: list[TrainingRecord] = []
        self._num_looks = 0
        self._has_options = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"metrics-{run_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self._thread.join(_JOIN_S)

    def catch_up(self, timeout_s: float = 3.0) -> None:
        """Wait until all records written so far have been read. For a training that has ended, these are all."""
        before = self._num_looks
        deadline = time.monotonic() + timeout_s
        while self._num_looks < before + 2 and self._has_options and time.monotonic() < deadline:
            time.sleep(0.02)

    def records(self) -> list[TrainingRecord]:
        """Return the records so far, oldest first."""
        return without_repeats(tuple(self._records))

    @property
    def num_records(self) -> int:
        """Number of records read so far, to detect new ones cheaply."""
        return len(self._records)

    def _follow(self) -> None:
        options = self._cluster()
        self._has_options = options is not None
        reader = RecordReader()
        while options is not None and not self._closing.is_set():
            try:
                with Volume(lambda: options) as volume:
                    self._follow_in(volume, reader)
            except (IgniteTfError, OSError):  # the cluster may be back soon
                self._closing.wait(_PAUSE_S)

    def _follow_in(self, volume: Volume, reader: RecordReader) -> None:
        while not self._closing.wait(_POLL_S):
            self._num_looks += 1
            with suppress(PathNotFound), _open(volume, self._run_id) as file:
                while True:
                    self._records += _read_on(file, reader)
                    self._num_looks += 1
                    if self._closing.wait(_POLL_S):
                        return
