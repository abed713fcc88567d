"""`run`: a function of a notebook or a script, on workers beside the data."""

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
    """Run a function on workers, each with partitions of a cache of its own, and give what it returns.

    Its output is shown until it has ended. An interrupt stops the run.

    Args:
        train_fn: A function, or what can be called like one. It is sent by cloudpickle, with what it uses of this
            notebook or script, and of modules beside it. The hosts need the same minor version of Python.
        cache: The cache that is read.
        workers: How many; all call the function. Keras' `fit` trains one model on all of them.
        args: Its arguments.
        kwargs: Likewise.
        hosts: As in `RunRequest`; so are all that follow but the last.
        python: Interpreter of the workers.
        name: What the run's id says behind its mark.
        num_gpus: Of each worker, for itself alone.
        memory_bytes: Of each worker, at most; 0 is no limit.
        env: More variables of the workers' environment.
        requirements: File of what the workers' interpreter is to have.
        wheels: Directory with all wheels for that.
        start_timeout_s: How long the workers may take to start; those that join each other later are told of.
        max_restarts: So many failures in a row lead to a restart.
        deadline_s: How long the run may take in all.
        on_rebalance: What a change of the cache's primary owners leads to.
        stop_on_nan: Fail when the loss is not a number any more.
        allow_partial: Train on what is left of a cache that lost rows.
        wait: Queue the run until there is room for it.
        priority: Among queued runs those with a higher one come first.
        strategy: How the run's tasks work together; with "async" and "standalone" the chief alone calls the function.
        communication: How tensors go from worker to worker: "auto", "ring" or "nccl".
        num_ps: Parameter servers beside the workers.
        chief: Where the chief runs.
        has_evaluator: One more task calls the function, to evaluate what the others save.
        tags: Words by which it is found and compared.
        note: What you want to remember of it.
        compat: Let `tensorflow.contrib.ignite` be imported.
        tunnel: Let workers reach each other through SSH alone.
        report: Called with one line at a time about what takes long.

    Returns:
        What the function has returned in the first worker, or the chief: numbers, texts, containers, arrays, tables,
        models of Keras, what `fit` returns, and containers of these.

    Raises:
        ConfigError: The function, or something that it uses, cannot be sent.
        RunFailed: It did not succeed.
        IgniteTfError: As `Session.start_run`.
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
                view.keep_watching()  # the function's value is waited for
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
