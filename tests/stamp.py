"""The record of the last green `make nightly`, which runs the tests that `make test` leaves out. It is committed."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAMP = ROOT / "tests" / "nightly.json"


def write_stamp(num_passed: int, seconds: float) -> str:
    """Record a green run of the nightly tests for the checked-out commit.

    Returns:
        A sentence about the result. Nothing is written if the checkout has uncommitted changes.
    """
    # Ignore changes of the stamp file itself.
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
    """Return the age of the last green nightly run, in days and commits, as a sentence."""
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
    """Return the output of git, or None if it fails, for example in an archive without history."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
