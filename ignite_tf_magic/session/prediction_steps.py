"""Predictions: a run whose workers predict, and the steps that give each row of a cache exactly one output row.

An output row has its source row's key, so writing it twice leaves one row. A new prediction first stores a mark of its
own, and then ends all runs known to have written. A worker registers its run before its first row, and checks that the
mark has not changed. So at most one run writes. At the end the rows of both caches are compared.
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
    """Options of a prediction; see `Session.predict`.

    Attributes:
        workers: Number of workers; None is one for each node.
        batch_rows: Number of rows that the model gets at once.
        prepare: Makes the model's input from a row's value.
        fields: Fields of a row that are read; None reads all.
        fill: Replacement for nulls, by field name.
        replace: Replace a cache of that name.
        resume: Continue the same prediction.
        trust: Whether a model's file may contain code.
        run: Further options of the run, by their names in `RunRequest`.
        progress: Called with the rows written so far and all rows.
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
    """The result of a prediction.

    Attributes:
        cache: The cache with the outputs.
        rows: Number of its rows, equal to that of the source.
        predicted: Number of rows that this call predicted.
        seconds: Duration of the call, including the start of the workers.
        run_id: The run that predicted; None if all rows were already predicted.
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
    """The part of a session that a prediction uses."""

    client: Client
    options: ConnectOptions
    report: Callable[[str], None]

    def default_num_workers(self) -> int:
        """Return the default number of workers."""

    def plan_run(self, request: RunRequest) -> Plan:
        """Decide where workers would run."""

    def start_run(self, request: RunRequest) -> TrainingRun:
        """Start a run."""

    def run(self, run_id: str) -> TrainingRun:
        """Find a run."""


class Prediction:
    """A prediction of one cache's rows into another, as a sequence of steps."""

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
        """Predict all rows that are not predicted yet."""
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
                self._placed(
                    self._session.plan_run, self._request()
                )  # raises before the old rows are removed
            mark = begin(self._client, self._target, self._rows, digest, goes_on=goes_on)
            self._take_over(goes_on=goes_on)
            return self._predict(file, mark, function)

    def _check(self) -> None:
        """Refuse names that outputs cannot go to, a source that is incomplete or packed, and contradictory options."""
        source, target = self._source, self._target
        if self._options.replace and self._options.resume:
            raise ConfigError("replace and resume exclude each other; choose one")
        if isinstance(self._options.batch_rows, bool) or self._options.batch_rows < 1:
            raise ConfigError(f"batch_size={self._options.batch_rows!r} is not a whole number from 1 up")
        if source == target or target.startswith(NOTES_PREFIX):
            raise CacheNameError(
                f"outputs for the rows of cache {source!r} cannot go into {target!r}; name another"
            )
        check_table(self._client, target)
        rows = self._client.cache(source)
        check_complete(self._client, rows.name)
        if holds_packed_rows(rows.config()):
            raise ConfigError(
                f"the rows of cache {source!r} are packed, and outputs are written beside single rows: predict the "
                "rows of the cache that they were packed from"
            )

    def _rows_there(self) -> int | None:
        """Return the number of the target's rows; None if the cache does not exist."""
        if self._target not in self._client.cache_names():
            return None
        return Cache(self._client, self._target).size()

    def _is_whole(self, digest: str) -> bool:
        """Return whether `resume` finds the same prediction completed.

        Raises:
            LoadNotResumed: It is completed, but for a different number of rows.
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
        """Return whether this prediction continues an unfinished one.

        Raises:
            CacheExists: The target has rows, and neither `replace` nor `resume` is set.
            LoadNotResumed: The target is not an unfinished prediction of the same kind.
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
                f"they are outputs of this prediction, which has not finished: {GO_ON}, or "
                if is_same
                else ""
            )
            raise CacheExists(
                self._target,
                there,
                f"{begun}predict into another cache, or replace it with replace=True (--replace)",
            )
        return False

    def _take_over(self, *, goes_on: bool) -> None:
        """End the runs that have written to the target, and remove it unless this prediction continues it.

        Raises:
            HostUnreachable: It cannot be verified that a run has ended.
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
                    forget(self._client, self._target)  # no output cache was created
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
                # Each worker works by itself; none waits for others.
                **{
                    "strategy": "between",
                    "name": f"predict-{self._source}",
                    "script_name": "predict",
                    **options.run,
                },
            )
        except TypeError as error:
            raise ConfigError(f"unknown option of a run: {error}") from error

    def _start(self, request: RunRequest) -> TrainingRun:
        run = self._placed(self._session.start_run, request)
        info = run.info()
        where = f"{info.counted_workers} on {', '.join(info.hosts)}"
        self._session.report(f"run {run.id}: {where}, predicting {self._source}")
        return run

    def _placed(self, do: Callable[[RunRequest], T], request: RunRequest) -> T:
        """Call `do` with a request. If few partitions hold rows and `workers` is not set, retry with one worker."""
        try:
            return do(request)
        except NoRoom:
            raise
        except PlacementError:
            if self._options.workers is not None:
                raise
            return do(replace(request, num_workers=1))

    def _await(self, run: TrainingRun) -> None:
        """Wait until the run has ended. An interrupt or another exception ends the run.

        Raises:
            RunFailed: The run did not succeed.
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
            with suppress(IgniteTfError):  # a node is leaving, or the cache does not exist yet
                self._options.progress(min(self._rows_there() or 0, self._rows), self._rows)

    def _outcome(self, predicted: int, run_id: str | None) -> PredictionOutcome:
        seconds = time.monotonic() - self._began_at
        return PredictionOutcome(self._target, self._rows, predicted, seconds, run_id)
