"""`python -m benchmarks.panel`: the cost of a panel with 50 runs and 1,024 partitions, into `results/panel.json`.

Three nodes, ten caches of 1,024 partitions, and 50 runs of two workers, five of them running, with 300 records each in
igfs. `look` reads all data and makes the JSON after the running runs reported something new; `draw` is Chromium's
drawing time; `idle` is the share of a core that keeps one panel up to date while nothing happens.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.follow import owner, record_of
from benchmarks.nodes import node_of_its_own
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.embedded import EmbeddedOptions
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.runs.directory import create_directory
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session import PanelFeed
from ignite_tf_magic.training.records import FILE_NAME, TrainingRecord, WorkerMeasures
from ignite_tf_magic.ui.assets import joined
from ignite_tf_magic.ui.panel_views import panel_as_json
from tests.browser.lab import browser

NAME = "panel"
NUM_RUNS, NUM_LIVE, NUM_CACHES, NUM_RECORDS = 50, 5, 10, 300
INTERVAL_S = 2.0  # of a panel while a run is live
DRAW = """data => {
    document.body.replaceChildren();
    let call;
    const root = document.body.appendChild(document.createElement("div"));
    igniteTfPanel(root, {seen: () => data, told: () => ({}), onChange: (given) => { call = given; }, act: () => {}});
    root.querySelector("input[type=checkbox]").click();
    const times = {};
    for (const tab of ["runs", "cluster", "caches"]) {
        [...root.querySelectorAll("[role=tab]")].find((each) => each.textContent === tab).click();
        const began = performance.now();
        for (let i = 0; i < 20; i++) { data.cluster = String(i); call(); root.getBoundingClientRect(); }
        times[tab] = (performance.now() - began) / 20;
    }
    return times;
}"""


def records(count: int) -> bytes:
    """Make the records of a training."""
    workers = (WorkerMeasures(1000.0, 0.1, 1e9, None, None, 0.9),) * 2
    return b"".join(
        TrainingRecord(
            time.time(),
            "fit-0",
            step // 50,
            step,
            step % 50,
            values={"loss": 1 / (step + 1)},
            workers=workers,
        ).to_line()
        for step in range(count)
    )


@contextmanager
def runs(home: Path, files: IgfsFileSystem) -> Iterator[list[str]]:
    """Make runs as other processes see them. Yields the ids of the running ones."""
    live = []
    with ExitStack() as owned:
        for number in range(NUM_RUNS):
            directory = create_directory(home / "runs", f"run{number}")
            record = record_of(directory)
            files.makedirs(f"/runs/{record.run_id}", exist_ok=True)
            files.pipe_file(f"/runs/{record.run_id}/{FILE_NAME}", records(NUM_RECORDS))
            if number < NUM_RUNS - NUM_LIVE:
                replace(record, state=RunState.SUCCEEDED, ended_at=time.time(), exit_code=0).write(directory)
                continue
            record.write(directory)
            owned.enter_context(owner(directory, 0.0))
            live.append(record.run_id)
        yield live


def looks(feed: PanelFeed, files: IgfsFileSystem, live: list[str], rounds: int) -> list[float]:
    """Look repeatedly, each time after new records. Returns the times in seconds."""
    found = []
    for number in range(rounds):
        for run_id in live:
            with files.open(f"/runs/{run_id}/{FILE_NAME}", "ab") as file:
                file.write(records(NUM_RECORDS + number + 1).splitlines(keepends=True)[-1])
        began = time.perf_counter()
        panel_as_json(feed.look(), datetime.now(timezone.utc))
        found.append(time.perf_counter() - began)
    return found


def idle_share(look: Callable[[], object], seconds: float) -> float:
    """Return the share of a core that this process uses while it looks at a panel's interval."""
    began, cpu_began = time.monotonic(), time.process_time()
    while time.monotonic() < began + seconds:
        look()
        time.sleep(INTERVAL_S)
    return (time.process_time() - cpu_began) / (time.monotonic() - began)


def drawn(folder: Path, data: dict[str, Any]) -> dict[str, float]:
    """Draw each view in a browser. Returns milliseconds by view."""
    with browser(folder) as context:
        page = context.new_page()
        page.add_style_tag(content=joined("run_view.css", "panel.css"))
        page.add_script_tag(content=joined("panel.js"))
        return dict(page.evaluate(DRAW, data))


def main(argv: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    arguments = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="bench-panel-") as name,
        node_of_its_own(NAME, EmbeddedOptions()) as options,
    ):
        home = Path(name)
        os.environ["IGNITE_TF_HOME"] = str(home)
        os.environ["IGNITE_TF_CLUSTER"] = ",".join(map(str, options.endpoints))
        with connect(options) as client:
            for number in range(NUM_CACHES):
                client.get_or_create_cache(CacheConfig(f"SEEN_{number}", backups=1))
        files = IgfsFileSystem(skip_instance_cache=True)
        with runs(home, files) as live, PanelFeed() as feed:
            began = time.perf_counter()
            seen = feed.look()
            first_s = time.perf_counter() - began
            assert len(seen.runs) == NUM_RUNS and len(seen.records) == NUM_RUNS, (
                len(seen.runs),
                seen.trouble,
            )
            told = looks(feed, files, live, arguments.rounds)
            share = idle_share(
                lambda: panel_as_json(feed.look(), datetime.now(timezone.utc)), arguments.seconds
            )
            data = panel_as_json(feed.look(), datetime.now(timezone.utc))
        drawing = drawn(home / "chromium", data)
    rows = [
        {"case": "look", "variant": "first", "ms": round(1000 * first_s)},
        {"case": "look", "variant": "again", "ms": round(1000 * statistics.median(told), 1)},
        {"case": "look", "variant": "again, the slowest", "ms": round(1000 * max(told), 1)},
        *({"case": "draw", "variant": view, "ms": round(ms, 1)} for view, ms in drawing.items()),
        {"case": "idle", "variant": f"every {INTERVAL_S:g} s", "cpu_percent": round(100 * share, 2)},
    ]
    tables.write(arguments.results, NAME, rows)
    tables.show(tables.console(), arguments.results, (NAME,))


if __name__ == "__main__":
    main()
