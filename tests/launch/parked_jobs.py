"""Light parked processes, and jobs that take them, for tests of relays."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.launch.relay_client import Relay, processes_of
from tests.waiting import until

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
PARKED = "ignite_tf_magic.runs.parked"
AGE_S = 600.0


def input_of(imports: tuple[str, ...] = ("json",), hidden: tuple[str, ...] = (), **environment: str) -> str:
    return json.dumps({"environment": environment, "imports": imports, "hidden": hidden})


class ParkedJobs:
    """Parks processes at a relay and starts Python code as jobs: module `told` executes its first argument."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.home = home
        self.path = folder / "path"
        self.path.mkdir()
        (self.path / "told.py").write_text(
            '"""Says what it is told to."""\nimport sys\nexec(sys.argv[1])\n', encoding="utf-8"
        )
        (folder / "start").mkdir()
        self.cwd = folder / "start"
        self.env = {
            "PYTHONPATH": f"{self.path}:{PACKAGE_ROOT}",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_CURRENT_TEST": "",  # relays would have another value before a test than in it
        }

    def early(self, input_text: str | None = None) -> dict[str, Any]:
        return {"argv": [sys.executable, "-m", PARKED], "input": input_text or input_of()}

    def park(self, relay: Relay, count: int = 1, *, input_text: str | None = None, **fields: Any) -> int:
        asked = {"env": self.env, "age_s": AGE_S, "memory_bytes": 1 << 20, **self.early(input_text), **fields}
        return relay.call("park", count=count, **asked)["parked"]

    def start(
        self, relay: Relay, code: str, *, input_text: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        asked = {
            "argv": [sys.executable, "-m", "told", code, "x", "ä"],
            "env": self.env,
            "cwd": str(self.cwd),
            "warm": self.early(input_text),
            **fields,
        }
        return relay.start(**asked)

    def parked(self) -> list[int]:
        """Return the pids of parked processes, including those that became a job: their command line stays the same."""
        return [pid for pid, argv in processes_of(self.home).items() if argv[1:3] == ["-m", PARKED]]

    def shims(self) -> list[int]:
        return [pid for pid, argv in processes_of(self.home).items() if "keep_parked" in argv]

    def sockets(self) -> list[Path]:
        return [each for each in (self.home / "parked").glob("*.*") if each.is_socket()]

    def until_nothing_is_parked(self) -> None:
        until(lambda: not (self.shims() or self.parked()), what=lambda: processes_of(self.home))
        assert not self.sockets()
