"""All tests, in two processes at once, about as long as each other: those of runs on hosts mostly wait.

`make test` does this. Arguments are passed on to both. Everything is also run by plain `pytest`, one after the other.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent
ON_HOSTS = [str(TESTS / name) for name in ("launch", "cluster", "ssh", "bed", "training")]
OTHERS = [str(TESTS), *(f"--ignore={path}" for path in ON_HOSTS)]


def main() -> int:
    """Run both; the output of the first comes as it is written, that of the second when both have ended."""
    command = [sys.executable, "-m", "pytest", *sys.argv[1:]]
    with tempfile.TemporaryFile() as output:
        second = subprocess.Popen([*command, *ON_HOSTS], stdout=output, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run([*command, *OTHERS], check=False)
        finally:
            second.wait()
        output.seek(0)
        print(output.read().decode(errors="replace"), flush=True)
    return first.returncode or second.returncode


if __name__ == "__main__":
    sys.exit(main())
