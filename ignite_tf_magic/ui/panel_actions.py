"""Runs the command behind a click in a panel, the same one that a person can type."""

from __future__ import annotations

import json
from typing import Any

from ignite_tf_magic import session
from ignite_tf_magic.errors import ConfigError, IgniteTfError
from ignite_tf_magic.ui.captured_screen import answer_of
from ignite_tf_magic.ui.drafts import labels_of

_LINES = 60
# The command of each action, without the run or cache at its end.
_COMMANDS = {
    "stop": ["stop"],
    "describe": ["describe"],
    "logs": ["logs", "--lines", str(_LINES)],
    "tensorboard": ["tensorboard"],
    "columns": ["columns"],
    "sample": ["sample"],
    "profile": ["profile"],
}
_IN_NOTE = {"stop"}
_ERRORS = (IgniteTfError, OSError, ValueError)


def act(action: str, about: str, command_name: str) -> dict[str, Any]:
    """Perform the clicked action; blocks until it is done.

    Args:
        action: The name of the action.
        about: The id of a run, or the name of a cache; for `draft`, JSON of {cache, label, workers}.
        command_name: How a reader of the answer types our command, such as "ignite-tf".

    Returns:
        What the panel shows next: `note`, a line; `detail`, a text; `url`; `form`, a cache and its possible labels for
        a draft; `cell`, code for a notebook. An error becomes a `note`.
    """
    try:
        return _done(action, about, command_name)
    except _ERRORS as error:
        return {"note": f"{action} {about}: {error}"}


def _done(action: str, about: str, command_name: str) -> dict[str, Any]:
    if action == "close":
        return {}
    if action == "form":
        return {"form": _form(about)}
    if action == "draft":
        return _cell(about, command_name)
    if action not in _COMMANDS:
        raise ConfigError(f"unknown action {action[:40]!r}")
    answer = answer_of([*_COMMANDS[action], "--", about], command_name)
    if answer.url:
        return {"note": "TensorBoard:", "url": answer.url}
    if action in _IN_NOTE:
        return {"note": answer.text}
    return {"detail": answer.text, "note": " ".join(answer.notes)}


def _form(cache: str) -> dict[str, Any]:
    with session.open_session(report=lambda _: None) as opened:
        return {"cache": cache, "labels": labels_of(opened.columns(cache))}


def _cell(about: str, command_name: str) -> dict[str, Any]:
    said = json.loads(about)
    if not isinstance(said, dict) or not {"cache", "label", "workers"} <= said.keys():
        raise ConfigError("a draft needs {cache, label, workers}")
    words = ["draft", f"--label={said['label']}", f"--workers={said['workers']}", "--", str(said["cache"])]
    answer = answer_of(words, command_name)
    return {"cell": answer.cell, "note": " ".join(answer.notes)}
