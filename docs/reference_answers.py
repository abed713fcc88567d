"""Pages of what comes back: exit codes, states, JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from docs.json_shapes import PACKAGE, shape_of, shown
from docs.markdown import table
from ignite_tf_magic.runs import decisions, verdicts
from ignite_tf_magic.session import RunState
from ignite_tf_magic.ui.commands.table import commands
from ignite_tf_magic.ui.shell import cli

# Exit codes


def exit_codes_page() -> str:
    """Return the page of exit codes."""
    of_runs = [
        (0, "it succeeded"),
        (verdicts.EXIT_TEMPORARY, "a worker asked for another attempt, and there was none left"),
        (verdicts.EXIT_HOST_LOST, "a worker's host was lost"),
        (decisions.EXIT_DEADLINE, "the deadline, or another limit of time, has passed"),
        (decisions.EXIT_NOT_STARTED, "a worker could not be started, or JOB_CMD cannot be executed"),
        (127, "JOB_CMD was not found"),
        (decisions.EXIT_STOPPED, "it was stopped"),
        ("128 + N", "a worker ended by signal N"),
        ("any other", "that of the worker that failed first"),
    ]
    of_ours = [
        (0, "done"),
        (cli._LOST, "an error; a `doctor` that found something wrong; `attach` to a run that is lost"),
        (2, "wrong usage"),
        (130, "Ctrl-C"),
    ]
    states = _enum_comments(PACKAGE / "runs" / "states.py", "RunState")
    return "\n".join(
        [
            "# Exit codes and states\n",
            '    ignite-tf start DIGITS . python train.py || echo "failed with $?"\n',
            "## ignite-tf\n",
            "`start`, `attach` and `resume` end with the exit code of the run. All else:\n",
            table(["code", "meaning"], [[str(code), what] for code, what in of_ours]),
            "## Runs\n",
            table(["code", "meaning"], [[str(code), what] for code, what in of_runs]),
            "## States of a run\n",
            table(
                ["state", "meaning", "ended"],
                [
                    [f"`{state.value}`", states.get(state.name, ""), "yes" if state.has_ended else ""]
                    for state in RunState
                ],
            ),
        ]
    )


def _enum_comments(path: Path, name: str) -> dict[str, str]:
    """Read the comments behind the members of an enum."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"class {name}("))
    found = {}
    for line in lines[start + 1 :]:
        if line.startswith("    @property") or (line and not line.startswith(" ")):
            break
        if match := re.match(r"    ([A-Z]+) = \"\w+\"(?:\s+# (.*))?", line):
            found[match[1]] = match[2] or ""
    return found


# JSON


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command prints with --json.

    Attributes:
        commands: Which commands do.
        source: The function that makes it, "module:name", or a dataclass that is printed as it is.
        is_list: A list of these.
        words: What else there is to say.
        types: Classes of variables of the function, where no annotation tells.
        told: What values are that its source does not tell.
    """

    commands: str
    source: str
    is_list: bool = False
    words: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)


ANSWERS = (
    Answer("status", "ui.overview_view:overview_as_json"),
    Answer("ps", "ui.run_views:run_as_json", is_list=True),
    Answer("describe", "ui.run_views:record_as_json", told={"task": "str", "local_rows": "int"}),
    Answer("attach, start, resume", "ui.following:print_as_json", types={"chunk": "OutputChunk"}, told={"task": "str"},
           words="A line for each piece of output; then a line that "
           "is the run, as in `ps`. `start --detach`: the run alone."),
    Answer("logs", "ui.following:print_as_json", types={"chunk": "OutputChunk"}, told={"task": "str"},
           words="A line for each piece of output."),
    Answer("stop", "ui.run_views:run_as_json", words="And `outcome`: stopped, already_ended, owner_was_gone or "
           "owner_did_not_answer."),
    Answer("start --explain", "ui.run_views:explain_as_json"),
    Answer("history", "ui.metrics_views:as_json", is_list=True),
    Answer("prune", "ui.commands.runs:_prune"),
    Answer("doctor", "ui.run_views:diagnosis_as_json"),
    Answer("tensorboard", "ui.render:tensorboards_as_json"),
    Answer("load, pack", "data.load_options:LoadOutcome"),
    Answer("load --undo, load --accept", "data.additions:EndedLoad"),
    Answer("predict", "session.prediction_steps:PredictionOutcome"),
    Answer("caches", "session.facade:CacheInfo", is_list=True),
    Answer("columns", "ui.cache_views:columns_as_json"),
    Answer("sample, sql", "", is_list=True, words="A list of rows: objects by the names of columns. Arrays are lists; "
           "what JSON has no word for, as a Decimal or a time, is text."),
    Answer("profile", "ui.profile_views:profile_as_json", words="Each of `columns`: as below."),
    Answer("profile", "ui.profile_views:_column_as_json"),
    Answer("local up, local status", "embedded.record:EmbeddedNode.to_dict", is_list=True),
    Answer("local down", "ui.commands.nodes:_down", told={"stopped": "int"}),
    Answer("fs ls", "session.files:FileInfo.to_dict", is_list=True, told={"type": "file | directory"}),
    Answer("fs du", "session.files:Usage.to_dict", is_list=True),
    Answer("fs get, fs put, fs cp", "ui.commands.files:_say_copied"),
    Answer("fs sync", "ui.commands.files:_say_synced"),
    Answer("fs fsck", "ui.commands.files:_fsck", types={"report": "FsckReport"}),
)  # fmt: skip


def commands_with_json() -> set[str]:
    """Return the names of the commands that can answer as JSON."""
    return {command.name for command in commands()[0] if command.has_json}


def json_page() -> str:
    """Return the page of JSON answers; fails on a command that has JSON and is not on it."""
    told = {name for answer in ANSWERS for name in _names(answer.commands)}
    if missing := commands_with_json() - told:
        raise LookupError(f"docs/reference.py does not tell what JSON {', '.join(sorted(missing))} print")
    parts = [
        "# JSON\n",
        "    ignite-tf ps --json | jq -r '.[].id'\n",
        "With `--json`, standard output is JSON alone. Below, a value stands for itself, or for what it is: `str`, "
        "`int`, `| null`, a time in ISO 8601. Keys may be added; those that are here stay.\n",
    ]
    for answer in ANSWERS:
        is_column = answer.source.endswith("_column_as_json")
        parts.append("### profile: a column\n" if is_column else f"## {answer.commands}\n")
        if answer.source:
            shape = shape_of(answer.source, dict(answer.types), answer.told)
            parts.append(f"```text\n{shown([shape] if answer.is_list else shape)}\n```\n")
        if answer.words:
            parts.append(f"{answer.words}\n")
    return "\n".join(parts)


def _names(text: str) -> list[str]:
    return [each.partition(" --")[0].strip() for each in text.split(",")]
