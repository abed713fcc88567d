"""Imitates a run's owner: holds its lock, and writes lines into its logs, until the input ends.

own_run.py LOCK SECONDS_BETWEEN_LINES LOG...      with 0 it writes nothing
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from ignite_tf_magic.launch.lock import HeldLock


def main(lock: str, pause: str, *logs: str) -> None:
    """Hold the lock and write the logs."""
    over = threading.Event()
    with ExitStack() as opened:
        opened.enter_context(HeldLock(Path(lock)))
        files = [opened.enter_context(Path(log).open("a", encoding="utf-8")) for log in logs]
        print("owned", flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        for number in count() if float(pause) else ():
            if over.wait(float(pause)):
                return
            for file in files:
                file.write(f"step {number}: loss 0.125\n")
                file.flush()
        over.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
