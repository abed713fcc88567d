"""Prepares the data of a panel as JSON, the same for the notebook's widget and a terminal. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from ignite_tf_magic.session import RunState, is_live
from ignite_tf_magic.ui.metrics_views import of_last_training
from ignite_tf_magic.ui.progress import progress_of
from ignite_tf_magic.ui.render import duration_text, mark_of, size_text, state_colour, state_text

if TYPE_CHECKING:
    from ignite_tf_magic.session import PanelSeen, RunInfo, TrainingRecord

_SPARK_POINTS = 40
_MOST_ENDED = 100
_CHIEF = "chief"
_MEASURED_RECORDS, _MEASURED_WORKERS = 200, 16
_UNSTOPPABLE = {RunState.FINISHING, RunState.STOPPING, RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}
_RESUMABLE = {RunState.FAILED, RunState.STOPPED, RunState.LOST}


def panel_as_json(seen: PanelSeen, now: datetime) -> dict[str, Any]:
    """Return the panel's data: runs, newest first; nodes, by host; caches with their partitions by node."""
    ended = [run.id for run in seen.runs if not is_live(run, now)]
    left_out = set(ended[:-_MOST_ENDED])
    runs = [run for run in reversed(seen.runs) if run.id not in left_out]
    seen_now = {
        "runs": [_run(run, seen.records.get(run.id, ()), now) for run in runs],
        "num_ended": len(ended),
        "cluster": ", ".join(seen.cluster),
        "trouble": seen.trouble,
        "warnings": list(seen.warnings),
        "nodes": [
            {
                "id": node.id,
                "name": node.name,
                "host": node.host,
                "memory": _memory(node.used_bytes, node.max_bytes),
                "share": node.used_bytes / node.max_bytes
                if node.used_bytes is not None and node.max_bytes
                else None,
            }
            for node in sorted(seen.nodes, key=lambda node: (node.host, node.name))
        ],
        "caches": [
            {
                "name": cache.name,
                "rows": cache.rows,
                "backups": "all nodes" if cache.backups is None else str(cache.backups),
                "tables": list(cache.tables),
                "primaries": dict(cache.primaries),
            }
            for cache in seen.caches
        ],
    }
    return cast("dict[str, Any]", _sendable(seen_now))


def _sendable(value: Any) -> Any:
    """Replace lone surrogates, which names from others may contain and messages cannot carry."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_sendable(each) for each in value]
    if isinstance(value, dict):
        return {_sendable(name): _sendable(each) for name, each in value.items()}
    return value


def _run(run: RunInfo, records: Sequence[TrainingRecord], now: datetime) -> dict[str, Any]:
    progress = progress_of(run, records, now)
    name, values = spark_of(records)
    return {
        "id": run.id,
        "mark": mark_of(run.id),
        "state": run.state.value,
        "state_text": state_text(run),
        "colour": state_colour(run.state),
        "live": is_live(run, now),
        "stop": "Clear" if run.state is RunState.LOST else "Stop",
        "words": progress.words,
        "share": progress.share,
        "cache": run.cache,
        "hosts": list(run.hosts),
        "workers": run.num_workers,
        "restarts": run.restarts,
        "tags": list(run.tags),
        "duration": duration_text(run, now),
        "started_at": run.started_at.isoformat(),
        "reason": run.reason or "",
        "metric": name,
        "spark": values,
        "last": "" if not values else f"{values[-1]:.4g}",
        "measures": _measures(run, records) if is_live(run, now) else [],
        "can_stop": run.state not in _UNSTOPPABLE,
        "can_resume": run.state in _RESUMABLE,
    }


def spark_of(records: Sequence[TrainingRecord]) -> tuple[str, list[float]]:
    """Return the loss, or else the first metric, of the last training, with its values thinned for a sparkline."""
    if not records:
        return "", []
    of_last = of_last_training(records)
    names = dict.fromkeys(name for each in of_last for name in each.values)
    name = "loss" if "loss" in names else next(iter(names), "")
    values = [each.values[name] for each in of_last if _is_number(each.values.get(name))]
    return name, _thinned(values)


def _thinned(values: list[float]) -> list[float]:
    step = max(-(-len(values) // _SPARK_POINTS), 1)
    kept = values[::step]
    if values and (len(values) - 1) % step:
        kept.append(values[-1])
    return kept


def _measures(run: RunInfo, records: Sequence[TrainingRecord]) -> list[dict[str, Any]]:
    """Return the CPU and GPU use over time, and the last memory use, of the first workers."""
    told = [each.workers for each in records[-_MEASURED_RECORDS:] if each.workers and not each.is_epoch]
    found = []
    for number, task in enumerate(_measured_tasks(run, told)[:_MEASURED_WORKERS]):
        own = [workers[number] for workers in told if number < len(workers)]
        cpu = [round(each.cpu_cores, 2) for each in own if _is_number(each.cpu_cores)]
        gpu = [round(each.gpu_share, 3) for each in own if _is_number(each.gpu_share)]
        memory = [each.memory_bytes for each in own[-1:] if _is_number(each.memory_bytes)]
        if cpu or gpu:
            text = size_text(int(memory[0])) if memory else ""
            found.append({"task": task, "cpu": _thinned(cpu), "gpu": _thinned(gpu), "memory": text})
    return found


def _measured_tasks(run: RunInfo, told: Sequence[Sequence[Any]]) -> list[str]:
    """Return the names of the measured tasks: all workers, or the only one that trains, which records leave unnamed."""
    workers = [task for task in run.tasks if task.startswith("worker")]
    if not told or len(told[-1]) == len(workers):
        return workers
    return [_CHIEF if _CHIEF in run.tasks else "one of them"] if len(told[-1]) == 1 else []


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _memory(used: int | None, most: int | None) -> str:
    return "" if used is None or most is None else f"{size_text(used)} of {size_text(most)}"
