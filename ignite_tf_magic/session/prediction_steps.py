"""Predictions: a run whose workers predict, and all that makes each row of a cache exactly one row of another.

Rows are written under the keys that they were made for, so that writing them twice leaves one. Who begins notes a mark
of his own first, and then ends all runs that are known to have written; a worker notes its run before its first row,
and finds whether the mark is still its own. So at most one run writes. At the end both caches' rows are compared.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ignite_tf_magic.client.cache_facts import (
    NOTES_PREFIX,
    LoadMark,
    LoadState,
    check_complete,
    forget,
    read_facts,
)
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.packed_entries import holds_packed_rows
from ignite_tf_magic.data.load_options import LoadProgress
from ignite_tf_magic.data.loading import check_table
from ignite_tf_magic.errors import (
    CacheExists,
    CacheNameError,
    ConfigError,
    DeadlineExceeded,
    EmptyCache,
    IgniteTfError,
    LoadNotResumed,
    NoRoom,
    PlacementError,
    RunFailed,
    RunNotFound,
)
from ignite_tf_magic.prediction.comparison import GO_ON, compared_rows
from ignite_tf_magic.prediction.job import DEFAULT_BATCH_ROWS, PredictionJob, digest_of, script_of
from ignite_tf_magic.prediction.model_files import ModelFile, remove_model, send_model, stage_model
from ignite_tf_magic.prediction.progress import begin, finish, mark_of, progress_of
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.serialization.facts_html import facts_html
from ignite_tf_magic.serialization.function_pickle import FunctionPickle, pickle_function
from ignite_tf_magic.session.run_plans import RunRequest
from ignite_tf_magic.session.training_run import TrainingRun
from ignite_tf_magic.settings.options import ConnectOptions

_LOOK_S = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PredictionOptions:
    """How rows are predicted; see `Session.predict`.

    Attributes:
        workers: How many; None is one for each node.
        batch_rows: Rows that the model gets at once.
        prepare: Makes the model's input of a row's value.
        fields: Fields of a row that are read; None reads all.
        fill: What a null becomes, by field name.
        replace: Take the place of a cache of that name.
        resume: Go on with the same prediction.
        trust: Whether a model's file may bring code.
        run: More of the run that predicts, by the names of `RunRequest`.
        progress: Told the rows written so far and all rows.
    """

    workers: int | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    prepare: Callable[[Any], Any] | None = None
    fields: tuple[str, ...] | None = None
    fill: Mapping[str, Any] = field(default_factory=dict)
    replace: bool = False
    resume: bool = False
    trust: bool = False
    run: Mapping[str, Any] = field(default_factory=dict)
    progress: LoadProgress | None = None


@dataclass(frozen=True, slots=True)
class PredictionOutcome:
    """What was predicted.

    Attributes:
        cache: The cache with the outputs.
        rows: Its rows, as many as those of the source.
        predicted: Rows of these that this call has predicted.
        seconds: Time for it, the workers' start included.
        run_id: The run that predicted; None where nothing was left to do.
    """

    cache: str
    rows: int
    predicted: int
    seconds: float
    run_id: str | None = None

    def __str__(self) -> str:
        if self.run_id is None:
            return f"{self.rows:,} rows are in cache {self.cache}; nothing was left to predict"
        before = f", {self.rows - self.predicted:,} of them before" if self.predicted < self.rows else ""
        how = f"predicted by run {self.run_id} in {self.seconds:.1f} s"
        return f"{self.rows:,} rows in cache {self.cache}{before}, {how}"

    def _repr_html_(self) -> str:
        return facts_html(str(self), {})


class RunningSession(Protocol):
    """What a prediction needs of a session."""

    client: Client
    options: ConnectOptions
    report: Callable[[str], None]

    def default_num_workers(self) -> int:
        """Tell how many workers there are by default."""

    def plan_run(self, request: RunRequest) -> Plan:
        """Decide where workers would run."""

    def start_run(self, request: RunRequest) -> TrainingRun:
        """Start a run."""

    def run(self, run_id: str) -> TrainingRun:
        """Find a run."""


class Prediction:
    """A prediction, and what it needs in each of its steps."""

    def __init__(self, session: RunningSession, source: str, target: str, options: PredictionOptions) -> None:
        self._session, self._client = session, session.client
        self._source, self._target, self._options = source, target, options
        self._began_at = time.monotonic()
        self._check()
        self._rows = self._client.cache(source).size()
        if not self._rows:
            raise EmptyCache(
                f"cache {source!r} holds no rows, so there is nothing to predict; load some first"
            )

    def run(self, model: Any) -> PredictionOutcome:
        """Predict; returns what came of it."""
        options = self._options
        function = pickle_function(options.prepare) if options.prepare else None
        with tempfile.TemporaryDirectory() as folder:
            file = stage_model(self._session.options, model, Path(folder), trust=options.trust)
            prepare = function.digest if function else ""
            digest = digest_of(self._source, file.content, prepare, options.fields, options.fill)
            if self._is_whole(digest):
                return self._outcome(0, None)
            goes_on = self._goes_on(digest)
            if options.replace:
                self._placed(self._session.plan_run, self._request())  # what cannot start leaves the old rows
            mark = begin(self._client, self._target, self._rows, digest, goes_on=goes_on)
            self._take_over(goes_on=goes_on)
            return self._predict(file, mark, function)

    def _check(self) -> None:
        """Refuse caches that cannot be meant, and a source that is not whole."""
        source, target = self._source, self._target
        if self._options.replace and self._options.resume:
            raise ConfigError("replace begins anew, and resume goes on; choose one")
        if isinstance(self._options.batch_rows, bool) or self._options.batch_rows < 1:
            raise ConfigError(f"batch_size={self._options.batch_rows!r}: a whole number from 1 up is needed")
        if source == target or target.startswith(NOTES_PREFIX):
            raise CacheNameError(
                f"outputs for the rows of cache {source!r} cannot go into {target!r}; name another"
            )
        check_table(self._client, target)
        rows = self._client.cache(source)
        check_complete(self._client, rows.name)
        if holds_packed_rows(rows.config()):
            raise ConfigError(
                f"the rows of cache {source!r} are packed, and outputs are written beside single rows: predict those "
                "of the cache that they were packed from"
            )

    def _rows_there(self) -> int | None:
        """Count the target's rows; None where there is no such cache."""
        if self._target not in self._client.cache_names():
            return None
        return Cache(self._client, self._target).size()

    def _is_whole(self, digest: str) -> bool:
        """Whether there is nothing to go on with, as all is done.

        Raises:
            LoadNotResumed: It was done, of other rows.
        """
        mark = mark_of(self._client, self._target)
        is_done = mark is not None and mark.source == digest and mark.state is LoadState.COMPLETE
        there = self._rows_there()
        if not self._options.resume or not is_done or there is None:
            return False
        if there != self._rows:
            raise LoadNotResumed(
                f"cache {self._target!r} was predicted with {there:,} rows, and {self._source!r} has {self._rows:,}; "
                "predict again with replace=True (--replace)"
            )
        return True

    def _goes_on(self, digest: str) -> bool:
        """Tell whether this goes on with what is there.

        Raises:
            CacheExists: There are rows, and they are neither to be replaced nor gone on with.
            LoadNotResumed: They are of something else.
        """
        mark, there = mark_of(self._client, self._target), self._rows_there()
        if self._options.replace:
            return False
        is_same = mark is not None and mark.source == digest and mark.state is LoadState.LOADING
        if self._options.resume:
            if not is_same and (there or mark is not None):
                raise LoadNotResumed(
                    f"cache {self._target!r} has no unfinished prediction of this model and function from "
                    f"{self._source!r}; predict again with replace=True (--replace), or into another cache"
                )
            return is_same and there is not None
        if there:
            begun = (
                f"they are of this very prediction, which has not finished: {GO_ON}, or " if is_same else ""
            )
            raise CacheExists(
                self._target,
                there,
                f"{begun}predict into another cache, or in its place by replace=True (--replace)",
            )
        return False

    def _take_over(self, *, goes_on: bool) -> None:
        """End the runs that have written, and make room; nobody else writes then.

        Raises:
            HostUnreachable: A run cannot be seen to have ended.
        """
        for run_id in progress_of(read_facts(self._client, self._target)).runs:
            with suppress(RunNotFound):  # it was pruned, so it has ended
                run = self._session.run(run_id)
                if not run.info().state.has_ended:
                    self._session.report(f"run {run_id}, which predicts into {self._target}, is stopped")
                run.stop()
        if not goes_on and self._target in self._client.cache_names():
            self._client.destroy_cache(self._target)

    def _predict(self, file: ModelFile, mark: LoadMark, function: FunctionPickle | None) -> PredictionOutcome:
        before = self._rows_there() or 0
        token = uuid.uuid4().hex
        options, session = self._options, self._session
        try:
            path = send_model(session.options, self._target, token, file)
            job = PredictionJob(
                self._source,
                self._target,
                mark,
                path,
                file.sha256,
                file.trust,
                options.batch_rows,
                options.fields,
                options.fill,
            )
            script = script_of(job, function.script("") if function else "", "_function" if function else "")
            run = self._start(replace(self._request(), script=script))
            self._await(run)
        finally:
            with suppress(IgniteTfError, OSError):
                remove_model(session.options, self._target, token)
            with suppress(IgniteTfError):
                if self._rows_there() is None and mark_of(self._client, self._target) == mark:
                    forget(self._client, self._target)  # nothing was made
        rows = compared_rows(self._client, self._source, self._target, mark)
        finish(self._client, self._target, mark, rows)
        return self._outcome(rows - before, run.id)

    def _request(self) -> RunRequest:
        options = self._options
        try:
            return RunRequest(
                self._source,
                "pass",
                options.workers or self._session.default_num_workers(),
                # Each worker for itself: none waits for the others.
                **{
                    "strategy": "between",
                    "name": f"predict-{self._source}",
                    "script_name": "predict",
                    **options.run,
                },
            )
        except TypeError as error:
            raise ConfigError(f"an option is not known to runs: {error}") from error

    def _start(self, request: RunRequest) -> TrainingRun:
        run = self._placed(self._session.start_run, request)
        info = run.info()
        where = f"{info.counted_workers} on {', '.join(info.hosts)}"
        self._session.report(f"run {run.id}: {where}, predicting {self._source}")
        return run

    def _placed(self, do: Callable[[RunRequest], T], request: RunRequest) -> T:
        """Do something with a request; with one worker where nobody said how many, and few partitions hold rows."""
        try:
            return do(request)
        except NoRoom:
            raise
        except PlacementError:
            if self._options.workers is not None:
                raise
            return do(replace(request, num_workers=1))

    def _await(self, run: TrainingRun) -> None:
        """Wait until the run has ended; an interrupt, or what is raised here, ends it.

        Raises:
            RunFailed: It did not succeed.
        """
        try:
            while True:
                with suppress(DeadlineExceeded):
                    info = run.wait(_LOOK_S)
                    break
                self._tell()
        except BaseException:
            run.stop()
            raise
        self._tell()
        if info.state is RunState.SUCCEEDED:
            return
        failure = run.failure()
        what = failure.summary if failure else f"it is {info.state.value}"
        if failure and failure.traceback:
            what += f": {failure.traceback.rstrip().rpartition(chr(10))[2]}"
        hint = f" {failure.hint}." if failure and failure.hint else ""
        raise RunFailed(
            run.id,
            info.exit_code,
            f"run {run.id}, which predicts into cache {self._target!r}, did not succeed: {what}.{hint} Its output: "
            f"ignite-tf logs {run.id}. What is written stays; {GO_ON}",
        )

    def _tell(self) -> None:
        if self._options.progress is not None:
            with suppress(IgniteTfError):  # a node is just leaving, or the cache is not made yet
                self._options.progress(min(self._rows_there() or 0, self._rows), self._rows)

    def _outcome(self, predicted: int, run_id: str | None) -> PredictionOutcome:
        seconds = time.monotonic() - self._began_at
        return PredictionOutcome(self._target, self._rows, predicted, seconds, run_id)
