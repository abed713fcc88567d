"""The other processes of a round: they start a run, read its output, or list the runs.

own SPEC            starts a run and stays until it has ended
read CONFIG RUN     writes a run's output, one JSON list [worker, text] a line
list CONFIG         writes the runs that are visible from here: {id: state}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ignite_tf_magic.session import RunRequest, get_run, list_runs, open_session


def own(spec_file: str) -> None:
    """Start a run as a notebook does. An attached run ends with this process."""
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    with open_session(report=_say, config=Path(spec["config"])) as session:
        print("begins", flush=True)
        request = RunRequest(
            spec["cache"],
            Path(spec["script"]).read_text(encoding="utf-8"),
            spec["num_workers"],
            args=(json.dumps(spec["told"]),),
            name=spec["name"],
            detach=spec["detach"],
        )
        run = session.start_run(request)
        print(f"run {run.id}", flush=True)
        info = run.wait()
        print(f"ended {info.state.value} {info.exit_code}", flush=True)


def _say(line: str) -> None:
    print(f"says {line}", flush=True)


def read(config: str, run_id: str) -> None:
    """Follow a run's output from the beginning."""
    for chunk in get_run(run_id, Path(config)).follow():
        print(json.dumps([chunk.worker, chunk.text]), flush=True)


def list_all(config: str) -> None:
    """List runs as `ps --all` does."""
    found = list_runs(include_ended=True, config=Path(config))
    print(*found.warnings, sep="\n")
    print(json.dumps({info.id: info.state.value for info in found}), flush=True)


if __name__ == "__main__":
    {"own": own, "read": read, "list": list_all}[sys.argv[1]](*sys.argv[2:])
