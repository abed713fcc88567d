"""What comes of a round, and what readers were shown."""

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
    """What came of a round.

    Attributes:
        problems: What was not as it must be, in words; none: the round was as stated.
        noticed_s: From the fault until the run's record told of it; None: it never did, or there was
            no record yet. Of a lost run: until its directory on its owner's machine did.
        recovered_s: From the fault until steps went on after their longest pause; 0: there was none. None: they had not
            begun, or did not go on. Where a run is lost with its owner: until nothing of it was left.
        took_s: The whole round, with the mending of the bed.
        phases_s: What it was spent on.
        is_void: The run's owner was killed before anybody else had the run.
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
        """Whether the round shows anything: the fault struck, and a detached run had somebody who could finish it."""
        return bool(self.problems) or (bool(self.struck) and not (self.detached and self.is_void))

    def to_json(self) -> dict[str, Any]:
        """Return a form that `json` writes."""
        return asdict(self)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a part of the round."""
        began = time.monotonic()
        try:
            yield
        finally:
            spent_s = time.monotonic() - began
            self.phases_s[name] = round(self.phases_s.get(name, 0.0) + spent_s, 1)
            self.took_s = round(self.took_s + spent_s, 1)


def shown_lines(text: str) -> tuple[dict[str, int], set[str], str]:
    """Count the lines that a reader was shown, find hosts whose output it says is missing, and see how it ended."""
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
    """The median of what was measured."""
    known = [each for each in found if each is not None]
    return round(statistics.median(known), 3) if known else None
