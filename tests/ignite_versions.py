"""Run all tests of the Ignite connection against several Ignite versions, and write the table of
docs/compatibility.md.

    python tests/ignite_versions.py [--area WORD] [--only WORD] [VERSION...]

Downloads 27 MB per version, once. Keeps earlier results of other versions and areas. Exits with 1 if a test failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOUND = ROOT / "tests/ignite_versions.json"
TABLE = ROOT / "docs/compatibility.md"
MARKS = ("<!-- made by make versions-ignite -->\n", "<!-- end -->\n")
VERSIONS = ("2.14.0", "2.15.0", "2.16.0", "2.17.0")
# The areas of the table, and the test files of each: tests whose result depends on the nodes.
AREAS: Mapping[str, Sequence[str]] = {
    "handshake, TLS, passwords, topology": ("client/test_connect.py",),
    "rows by key, transactions": ("client/test_key_value.py",),
    "scans and sweeps, partitions": ("client/test_sweep_scan.py", "client/test_row_counts.py"),
    "memory regions, notes on caches": ("client/test_regions.py", "client/test_cache_facts.py"),
    "SQL, times, names": (
        "session/test_sql.py",
        "session/test_sql_names.py",
        "client/test_times.py",
        "client/test_table_names.py",
    ),
    "who owns which partition, rows by node": (
        "client/test_own_affinity.py",
        "runs/hosts/test_counting.py",
        "session/test_uncounted_shares.py",
    ),
    "`load`": ("data/test_additions.py", "data/test_values.py"),
    "packed caches": ("data/test_packing.py",),
    "`columns`, `sample`, `profile`": ("profiling/test_looking.py", "profiling/test_profile.py"),
    "`IgniteDataset`, `batches`": ("dataset/test_ignite_dataset.py", "dataset/test_array_batches.py"),
    "igfs": ("igfs/test_filesystem.py", "igfs/test_volume.py"),
    "the registry of runs": ("runs/registry/test_registry.py",),
}

# For each version and area: the number of tests that passed, and the names of those that failed.
Found = dict[str, dict[str, dict[str, object]]]


def run_tests(version: str, areas: Mapping[str, Sequence[str]], only: str) -> dict[str, dict[str, object]]:
    """Run the tests of these areas against nodes of one version."""
    paths = [str(ROOT / "tests" / path) for paths in areas.values() for path in paths]
    chosen = ["-m", "not nightly and not faults", "-k", only or "not killed"]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", *chosen, f"--junitxml={report}", *paths]
        environment = {**os.environ, "IGNITE_TF_IGNITE_VERSION": version}
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code > 1:  # some tests did not run
            raise SystemExit(f"the tests with Ignite {version} did not come to their end: pytest gave {code}")
        cases = list(ET.parse(report).iter("testcase"))
    return {area: outcomes(cases, paths) for area, paths in areas.items()}


def outcomes(cases: Sequence[ET.Element], paths: Sequence[str]) -> dict[str, object]:
    """Count the passed tests of some files, and list the failed ones."""
    modules = {"tests." + path.removesuffix(".py").replace("/", ".") for path in paths}
    mine = [case for case in cases if case.get("classname", "") in modules]
    counts = Counter(next((child.tag for child in case), "passed") for case in mine)
    failed = sorted(
        {str(case.get("name")) for case in mine if any(c.tag in ("failure", "error") for c in case)}
    )
    return {"passed": counts["passed"], "failed": failed}


def cell(found: Mapping[str, object] | None) -> str:
    """Return one cell of the table."""
    if not found or not (found["passed"] or found["failed"]):
        return "not tested"
    failed = found["failed"]
    assert isinstance(failed, list)
    words = "; ".join(f"`{name}` fails" for name in failed)
    return f"{found['passed']} tests{'; ' if words else ''}{words}"


def table(found: Found) -> str:
    """Return the table of all versions, in Markdown."""
    versions = sorted(found, key=lambda version: [int(number) for number in version.split(".")])
    lines = [f"| | {' | '.join(versions)} |", "|---" * (len(versions) + 1) + "|"]
    lines += [
        f"| {area} | {' | '.join(cell(found[each].get(area)) for each in versions)} |" for area in AREAS
    ]
    return "\n".join(lines) + "\n"


def write_table(found: Found) -> None:
    """Replace the table in the document."""
    text = TABLE.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    TABLE.write_text(f"{before}{MARKS[0]}{table(found)}{MARKS[1]}{after}", encoding="utf-8")


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--area", default="", metavar="WORD", help="areas that have this in their names")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="tests that pytest -k chooses; writes no table"
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", default=VERSIONS)
    options = parser.parse_args()
    found: Found = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    areas = {area: paths for area, paths in AREAS.items() if options.area in area}
    for version in options.versions:
        found[version] = {**found.get(version, {}), **run_tests(version, areas, options.only)}
        if not options.only:
            FOUND.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            write_table(found)
    asked = {version: found[version] for version in options.versions}
    print(table(asked))
    return int(any(area["failed"] for of_version in asked.values() for area in of_version.values()))


if __name__ == "__main__":
    sys.exit(main())
