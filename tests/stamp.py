"""The last green run of the tests that `make test` leaves out: `make nightly` writes it, and it is committed."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAMP = ROOT / "tests" / "nightly.json"


def write_stamp(num_passed: int, seconds: float) -> str:
    """Note a green run of the nightly tests on the commit that is checked out.

    Returns:
        A sentence about what was done; nothing is written where files are changed, as no commit has them.
    """
    # An older stamp that is not committed yet does not make this run another commit's.
    changed = _git("status", "--porcelain", "--", ".", f":!{STAMP.relative_to(ROOT)}")
    if changed is None or changed:
        return "no stamp of this run was written: it was not of a commit as it is in git"
    stamp = {
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "minutes": round(seconds / 60, 1),
        "passed": num_passed,
    }
    STAMP.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    return f"stamp written, to be committed: {STAMP.relative_to(ROOT)}"


def describe_stamp() -> str:
    """Return how old the last green run of the nightly tests is, in days and commits, as a sentence."""
    if not STAMP.exists():
        return "make nightly: no green run is noted"
    stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    num_days = (datetime.now(timezone.utc).date() - datetime.fromisoformat(stamp["date"]).date()).days
    num_commits = _git("rev-list", "--count", f"{stamp['commit']}..HEAD") or "an unknown number of"
    return (
        f"make nightly was last green {num_days} days and {num_commits} commits ago "
        f"({stamp['passed']} tests in {stamp['minutes']} minutes, {stamp['commit']})"
    )


def _git(*arguments: str) -> str | None:
    """Return what git prints; None where it fails, as in an archive without its history."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
