"""The outcome of a round, and the output that readers received."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

LINE = re.compile(r"worker (\d+) gen (\d+) line (\d+) .*")
_UNREACHABLE = re.compile(r"ignite_tf_magic: .* cannot be read: host ([^:]+):")


@dataclass
class Outcome:
    """The outcome of a round.

    Attributes:
        problems: Violations of the expected behavior, in words. Empty if there are none.
        noticed_s: Seconds from the fault until the run's record showed it. None if it never did, or no record
            existed yet. For a lost run: until its directory on its owner's machine showed it.
        recovered_s: Seconds from the fault to the end of the longest pause between steps; 0 without a pause. None if
            steps had not begun or did not continue. For a run lost with its owner: until nothing of it was left.
        took_s: Duration of the whole round, including the repair of the bed.
        phases_s: Duration of each phase.
        is_void: Whether the run's owner was killed before any other process had the run.
    """

    fault: str
    round: int
    divisor: int
    detached: bool
    script: str
    seed: int
    moment_s: float = 0.0
    struck: str = ""
    problems: list[str] = field(default_factory=list)
    restarts: int = 0
    orphans: int = 0
    lost_lines: int = 0
    doubled_lines: int = 0
    unreachable_lines: int = 0
    noticed_s: float | None = None
    recovered_s: float | None = None
    took_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    is_void: bool = False

    @property
    def counts(self) -> bool:
        """Whether the round is valid: the fault struck, and some process could finish a detached run."""
        return bool(self.problems) or (bool(self.struck) and not (self.detached and self.is_void))

    def to_json(self) -> dict[str, Any]:
        """Return a form for `json`."""
        return asdict(self)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase of the round."""
        began = time.monotonic()
        try:
            yield
        finally:
            spent_s = time.monotonic() - began
            self.phases_s[name] = round(self.phases_s.get(name, 0.0) + spent_s, 1)
            self.took_s = round(self.took_s + spent_s, 1)


def shown_lines(text: str) -> tuple[dict[str, int], set[str], str]:
    """Return a reader's counts per line, the hosts that it reported as unreadable, and its broken end."""
    by_worker: dict[int, list[str]] = {}
    broken = ""
    for line in text.splitlines():
        try:
            worker, part = json.loads(line)
        except ValueError:
            broken = text[-500:]
            break
        by_worker.setdefault(worker, []).append(part)
    lines: dict[str, int] = {}
    announced: set[str] = set()
    for parts in by_worker.values():
        for line in "".join(parts).splitlines():
            if LINE.fullmatch(line):
                lines[line] = lines.get(line, 0) + 1
            elif match := _UNREACHABLE.match(line):
                announced.add(match[1])
    return lines, announced, broken


def median(found: list[float | None]) -> float | None:
    """Return the median of the known values, or None."""
    known = [each for each in found if each is not None]
    return round(statistics.median(known), 3) if known else None
