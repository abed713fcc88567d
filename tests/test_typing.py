"""Checks that the exported API is typed: mypy accepts a correct user program and rejects mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ignite_tf_magic

PROGRAM = """
from __future__ import annotations

import ignite_tf_magic
from ignite_tf_magic import IgniteTfError, Session, connect
from ignite_tf_magic.session import RunInfo, RunRequest


def train(rate: float) -> float:
    return rate * 2


def main() -> list[RunInfo]:
    try:
        with connect() as session:
            run = session.start_run(RunRequest("MNIST", "print(1)", num_workers=2, hosts=("db1",)))
            print(run.wait(60.0).state.value, [chunk.text for chunk in run.follow()])
            return session.runs(include_ended=True)
    except IgniteTfError as error:
        print(str(error))
        return []


print(ignite_tf_magic.run(train, "MNIST", 2, args=(0.1,), hosts=["db1"], deadline_s=60.0))
"""


MISTAKES = (
    ("deadline_s=60.0", "deadline=60.0"),
    ("num_workers=2", 'num_workers="2"'),
    ("runs(include_ended", "jobs(include_ended"),
)


def checked(folder, **programs):
    """Check programs, given by name, in a single run of mypy. A run for each would parse the whole package again."""
    for name, program in programs.items():
        (folder / f"{name}.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--no-incremental",
        *(str(folder / f"{name}.py") for name in programs),
    ]
    # mypy does not follow the import hooks of an editable installation. py.typed is in the package anyway.
    env = {**os.environ, "MYPYPATH": str(Path(ignite_tf_magic.__file__).parent.parent)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def test_a_program_passes_and_mistakes_in_it_do_not(tmp_path):
    assert all(PROGRAM.count(right) == 1 for right, _ in MISTAKES)
    programs = {f"mistake_{number}": PROGRAM.replace(*each) for number, each in enumerate(MISTAKES)}
    done = checked(tmp_path, program=PROGRAM, **programs)
    told = {line.partition(".py:")[0] for line in done.stdout.splitlines() if ": error:" in line}
    assert told == set(programs), done.stdout
