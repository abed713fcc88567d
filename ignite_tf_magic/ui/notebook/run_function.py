"""Provides `run`, which runs a function of a notebook or a script on workers beside the data."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import PathNotFound, RunFailed
from ignite_tf_magic.serialization.terminal_text import echo
from ignite_tf_magic.session import (
    OnRebalance,
    RunRequest,
    RunState,
    TrainingRun,
    open_session,
    pickle_function,
)
from ignite_tf_magic.ui.commands.starting import WARM_S
from ignite_tf_magic.ui.following import follow, show_output
from ignite_tf_magic.ui.notebook.screen import NotebookScreen, this_kernel
from ignite_tf_magic.ui.render import failure_view
from ignite_tf_magic.ui.shell.screen import ShellScreen

_LAST_LINE = "from ignite_tf_magic.session.run_values import give; give(_function(*_arguments, **_options))"


def run(
    train_fn: Callable[..., Any],
    cache: str,
    workers: int = 1,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    hosts: Sequence[str] = (),
    python: str | None = None,
    name: str | None = None,
    num_gpus: int = 0,
    memory_bytes: int = 0,
    env: Mapping[str, str] | None = None,
    requirements: Path | None = None,
    wheels: Path | None = None,
    start_timeout_s: float | None = 180.0,
    max_restarts: int | None = None,
    deadline_s: float | None = None,
    on_rebalance: OnRebalance | None = None,
    stop_on_nan: bool = False,
    allow_partial: bool = False,
    wait: bool = False,
    priority: int = 0,
    strategy: str = "auto",
    communication: str = "auto",
    num_ps: int = 0,
    chief: str = "",
    has_evaluator: bool = False,
    compat: bool = False,
    tags: Sequence[str] = (),
    note: str = "",
    tunnel: bool = False,
    report: Callable[[str], None] = echo,
) -> Any:
    """Run a function on workers, each with its own partitions of a cache, and return its result.

    Shows the output of the workers until the run has ended. An interrupt stops the run.

    Args:
        train_fn: A function or another callable. cloudpickle serializes it, together with everything that it uses from
            this notebook or script and from modules beside it. The hosts need the same minor version of Python.
        cache: The cache to read.
        workers: The number of workers; all call the function. Keras' `fit` trains one model on all of them.
        args: Positional arguments of the function.
        kwargs: Keyword arguments of the function.
        hosts: As in `RunRequest`, like all following arguments except `report`.
        python: The interpreter of the workers.
        name: The text after the mark in the run's id.
        num_gpus: The number of GPUs that each worker gets exclusively.
        memory_bytes: The memory limit of each worker; 0 sets no limit.
        env: Additional environment variables of the workers.
        requirements: A requirements file for the workers' interpreter.
        wheels: A directory with all wheels for `requirements`.
        start_timeout_s: How long the workers may take to start. Workers that connect to each other later are reported.
        max_restarts: The number of consecutive failures that lead to a restart.
        deadline_s: The time limit of the whole run.
        on_rebalance: The reaction to a change of the cache's primary owners.
        stop_on_nan: Fail when the loss becomes NaN or infinite.
        allow_partial: Train on the remaining rows of a cache that has lost rows.
        wait: Queue the run until there is room for it.
        priority: The priority among queued runs; higher ones come first.
        strategy: How the tasks work together; with "async" and "standalone" only the chief calls the function.
        communication: How workers exchange tensors: "auto", "ring" or "nccl".
        num_ps: The number of parameter servers beside the workers.
        chief: Where the chief runs.
        has_evaluator: Whether one more task calls the function, to evaluate what the others save.
        tags: Words by which to find and compare the run.
        note: A note about the run.
        compat: Allow workers to import `tensorflow.contrib.ignite`.
        tunnel: Let workers reach each other only through SSH.
        report: Called with one line of text for each slow step.

    Returns:
        The result of the function in the first worker, or in the chief: numbers, texts, arrays, tables, Keras models,
        the result of `fit`, and containers of these.

    Raises:
        ConfigError: The function, or something that it uses, cannot be serialized.
        RunFailed: The run did not succeed.
        IgniteTfError: As in `Session.start_run`.
    """
    function = pickle_function(train_fn)
    is_in_notebook = "ipykernel" in sys.modules and this_kernel() is not None  # a script may import it, too
    request = RunRequest(
        cache,
        function.script(_LAST_LINE),
        num_workers=workers,
        script_name=re.sub(r"\W+", "", function.name) or "function",
        push={"_arguments": list(args), "_options": dict(kwargs or {})},
        hosts=tuple(hosts),
        python=python,
        name=name,
        num_gpus=num_gpus,
        memory_bytes=memory_bytes,
        env=env or {},
        requirements=requirements,
        wheels=wheels,
        start_timeout_s=start_timeout_s,
        max_restarts=max_restarts,
        deadline_s=deadline_s,
        on_rebalance=on_rebalance,
        stop_on_nan=stop_on_nan,
        allow_partial=allow_partial,
        wait=wait,
        priority=priority,
        strategy=strategy,
        communication=communication,
        num_ps=num_ps,
        chief=chief,
        has_evaluator=has_evaluator,
        tags=tuple(tags),
        note=note,
        compat=compat,
        warm_s=WARM_S if is_in_notebook else 0.0,
        tunnel=tunnel,
    )
    with open_session(report=report) as session:
        started = session.start_run(request)
        try:
            if is_in_notebook:
                view = NotebookScreen({}).run_view()
                view.keep_watching()  # the caller waits for the function's result
                follow(started, NotebookScreen({}), view=view)
            else:
                _show(started)
        except BaseException:
            started.stop()
            raise
    return _outcome(started)


def _show(started: TrainingRun) -> None:
    workers = range(len(started.info().tasks))
    with started.tail() as tail, closing(started.follow(with_pauses=True)) as chunks:
        screen = ShellScreen("ignite-tf")
        show_output(started, chunks, workers, screen.run_view(), screen, tail)


def _outcome(started: TrainingRun) -> Any:
    info, failure = started.info(), started.failure()
    if failure is not None:
        raise RunFailed(started.id, info.exit_code, failure_view(info, failure).text)
    if info.state is not RunState.SUCCEEDED:
        raise RunFailed(
            started.id, info.exit_code, f"run {started.id} did not succeed: it is {info.state.value}"
        )
    try:
        return started.result
    except PathNotFound as error:
        raise RunFailed(started.id, info.exit_code, str(error)) from error
