"""`run`: a function of a notebook or a script, on workers beside the data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from ignite_tf_magic.errors import ConfigError, PathNotFound, RunFailed
from ignite_tf_magic.session import RunRequest, RunState, TrainingRun, open_session, source_of
from ignite_tf_magic.ui.following import follow, show_output
from ignite_tf_magic.ui.notebook.screen import NotebookScreen
from ignite_tf_magic.ui.render import failure_view
from ignite_tf_magic.ui.shell.screen import ShellScreen

_LAST_LINE = "from ignite_tf_magic import result as _give; _give({name}(*_arguments, **_options))"


def run(
    train_fn: Callable[..., Any],
    cache: str,
    workers: int = 1,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    report: Callable[[str], None] = print,
    **options: Any,
) -> Any:
    """Run a function on workers, each with partitions of a cache of its own, and give what it returns.

    Its output is shown until it has ended. An interrupt stops the run.

    Args:
        train_fn: Made with `def`. Its source is sent, and what it uses of this notebook or script: functions and
            classes as source, modules as imports, numbers, texts, containers, arrays and tables as values.
        cache: The cache that is read.
        workers: How many; all call the function. Keras' `fit` trains one model on all of them.
        args: Its arguments.
        kwargs: Likewise.
        report: Called with one line at a time about what takes long.
        options: Other fields of `RunRequest`, as `hosts`, `num_gpus`, `python`.

    Returns:
        What the function has returned in the first worker: a model of Keras, or values as above.

    Raises:
        ConfigError: The function, or something that it uses, cannot be sent.
        RunFailed: It did not succeed.
        IgniteTfError: As `Session.start_run`.
    """
    source = source_of(train_fn)
    pushed = {**source.values, "_arguments": list(args), "_options": dict(kwargs or {})}
    if "detach" in options:
        raise ConfigError(
            "run() waits for what the function returns; start what is to outlive this process by a cell"
        )
    request = RunRequest(
        cache,
        source.script(_LAST_LINE.format(name=source.name)),
        num_workers=workers,
        script_name=source.name,
        push=pushed,
        **options,
    )
    with open_session(report=report) as session:
        started = session.start_run(request)
        try:
            if "ipykernel" in sys.modules:
                follow(started, NotebookScreen({}))
            else:
                _show(started)
        except BaseException:
            started.stop()
            raise
    return _outcome(started)


def _show(started: TrainingRun) -> None:
    workers = range(started.info().num_workers)
    with started.tail() as tail, closing(started.follow(with_pauses=True)) as chunks:
        show_output(started, chunks, workers, ShellScreen("ignite-tf"), tail)


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
