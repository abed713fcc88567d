"""All tests, in several processes at once, about as long as each other: those of runs on hosts mostly wait.

`make test` does this without those marked `long`, `make test-all` with them (`--all`). Other arguments are passed on.
Everything is also run by plain `pytest`, one after the other.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

TESTS = Path(__file__).parent
BESIDE = (
    ("launch", "runs", "ssh", "bed"),
    ("training", "test_benchmarks.py", "test_binder.py"),
    ("client", "dataset", "igfs"),
)
OTHERS = [str(TESTS), *(f"--ignore={TESTS / name}" for chosen in BESIDE for name in chosen)]


def main() -> int:
    """Run all; the output of the first comes as it is written, that of the others when all have ended."""
    arguments = sys.argv[1:]
    chosen = [] if "--all" in arguments else ["-m", "not long"]
    command = [sys.executable, "-m", "pytest", *chosen, *(each for each in arguments if each != "--all")]
    with ExitStack() as ending:
        beside = []
        for names in BESIDE:
            output = ending.enter_context(tempfile.TemporaryFile())
            paths = [str(TESTS / name) for name in names]
            process = subprocess.Popen([*command, *paths], stdout=output, stderr=subprocess.STDOUT)
            ending.callback(process.wait)
            beside.append((process, output))
        codes = [subprocess.run([*command, *OTHERS], check=False).returncode]
        for process, output in beside:
            codes.append(process.wait())
            output.seek(0)
            print(output.read().decode(errors="replace"), flush=True)
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main())
