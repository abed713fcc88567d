"""Measures the memory of a process that reads a large cache through `IgniteDataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.process import peak_rss_mb, rss_mb, task_of_this_process, tell
from benchmarks.read_dataset import batches_of
from ignite_tf_magic.dataset.ignite import IgniteDataset

_BASE_BYTES = 100_000_000
_CLEAR_PEAK = "5"


def main(task: dict[str, Any]) -> None:
    """Read all rows several times, and send one line per pass."""
    dataset = IgniteDataset(task["cache"], task["host"], task["port"])
    batches = batches_of(dataset, "dataset_batch", task["batch_rows"])
    base_rows = _BASE_BYTES // task["row_bytes"]
    base_mb = 0.0
    for _ in range(task["passes"]):
        rows = 0
        for batch in batches:
            rows += batch["key"].shape[0]
            if not base_mb and rows >= base_rows:
                base_mb = rss_mb()
                _forget_peak()
        tell({"rows": rows, "base_mb": base_mb, "peak_mb": peak_rss_mb()})


def _forget_peak() -> None:
    """Reset the peak, which importing TensorFlow would otherwise determine."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text(_CLEAR_PEAK, encoding="ascii")


if __name__ == "__main__":
    main(task_of_this_process())
