"""Renders one run, the placement of a run, and the doctor's diagnosis. Pure functions, as in `render`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.session import (
    Health,
    RunState,
)
from ignite_tf_magic.ui.metrics_views import place_text, speed_text
from ignite_tf_magic.ui.render import View, duration_text, health_colour, message_view, state_text, table_view

if TYPE_CHECKING:
    from ignite_tf_magic.session import (
        Check,
        Diagnosis,
        PlacementRow,
        Plan,
        RunInfo,
        RunRecord,
        TrainingRecord,
    )


def run_as_json(run: RunInfo) -> dict[str, Any]:
    """Return a run of a listing for JSON output."""
    return {
        "id": run.id,
        "state": run.state.value,
        "exit_code": run.exit_code,
        "cache": run.cache,
        "hosts": run.hosts,
        "num_workers": run.num_workers,
        "tasks": list(run.tasks),
        "tags": list(run.tags),
        "restarts": run.restarts,
        "started_at": run.started_at.isoformat(),
        "ended_at": run.ended_at.isoformat() if run.ended_at else None,
        "detached": run.detached,
        "waiting_for": run.waiting_for,
        "left_until": run.left_until.isoformat() if run.left_until else None,
        "directory": str(run.directory),
    }


def record_as_json(
    run: RunInfo, record: RunRecord, latest: TrainingRecord | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the details of a run for JSON output; `latest` is its last training record, `given` its parameters."""
    local_rows = {seat.worker: seat.local_rows for seat in record.order.seats}
    return {
        **run_as_json(run),
        "owner": {
            "host": record.owner_host,
            "pid": record.owner_pid,
            "supervisor": record.supervisor or None,
        },
        "reason": run.reason,
        "command": list(record.spec.command),
        "strategy": record.spec.strategy.value,
        "note": record.spec.note,
        "made_with": dict(record.spec.made_with),
        "parameters": dict(given),
        "cluster_spec": record.cluster_spec or None,
        "workers": [
            {
                "worker": worker.worker,
                "task": record.role(worker.worker).name,
                "host": worker.host,
                "pid": None if run.state is RunState.LOST else worker.pid,
                "exit_code": worker.exit_code,
                "respawns": worker.respawns,
                "joined_at": _iso(worker.joined_at),
                "rows": worker.rows,
                "local_rows": local_rows.get(worker.worker, 0),
            }
            for worker in record.workers
        ],
        "restarts_because_of": [each.cause for each in record.past],
        "training": None if latest is None else asdict(latest),
    }


def describe_view(
    run: RunInfo, record: RunRecord, latest: TrainingRecord | None, given: Mapping[str, Any], now: datetime
) -> View:
    """Show the details of a run: its state, owner, parameters, workers, and earlier generations."""
    facts = _facts(run, record, now)
    if given:
        facts.append(["parameters", ", ".join(f"{name} {value}" for name, value in given.items())])
    if latest is not None:
        facts.append(["training", ", ".join(filter(None, [place_text(latest), speed_text(latest)]))])
    views = [
        table_view(["", ""], [row for row in facts if row[1]]),
        table_view(
            ["Task", "Host", "PID", "State", "TensorFlow", "Rows", "Local"],
            _worker_rows(record, is_lost=run.state is RunState.LOST),
            right={2, 5, 6},
        ),
    ]
    if record.past:
        rows = [
            [str(each.generation), ", ".join(dict.fromkeys(each.hosts)), each.cause] for each in record.past
        ]
        views.append(table_view(["Generation", "Hosts", "Ended because"], rows))
    text = "\n\n".join(view.text for view in views).lstrip("\n")  # the first table has empty heads
    return View(text, "".join(view.html for view in views))


def _facts(run: RunInfo, record: RunRecord, now: datetime) -> list[list[str]]:
    owner = f"{record.owner_host}, process {record.owner_pid}"
    if record.detached:
        owner = f"its hosts; {record.supervisor or 'none of them yet'} supervises it"
    lasted = duration_text(run, now)
    end = ["ended", f"{_time(run.ended_at)}, after {lasted}"] if run.ended_at else ["runs for", lasted]
    if run.state is RunState.LOST:
        end = ["last seen", f"{_time(run.seen_at)}, after {lasted}" if run.seen_at else "not from here"]
    return [
        ["run", run.id],
        ["state", state_text(run)],
        ["waits for" if run.left_until is None else "is left", run.waiting_for or ""],
        ["cache", run.cache],
        ["runs", " ".join(record.spec.command) or record.spec.script_name],
        ["strategy", record.spec.strategy.value],
        ["tags", ", ".join(run.tags)],
        ["note", record.spec.note],
        ["created by", ", ".join(f"{name} {value}" for name, value in record.spec.made_with.items())],
        ["owner", owner],
        *_starts(run, record),
        end,
        ["restarts", f"{run.restarts}"],
        ["reason", run.reason or ""],
        ["files", str(run.directory)],
    ]


def _starts(run: RunInfo, record: RunRecord) -> list[list[str]]:
    if record.first_started_at is None:
        return [["started", _time(run.started_at)]]
    first = datetime.fromtimestamp(record.first_started_at, timezone.utc)
    return [["started", _time(first)], ["resumed", _time(run.started_at)]]


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _time(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _worker_rows(record: RunRecord, *, is_lost: bool) -> list[list[str]]:
    seats = {seat.worker: seat for seat in record.order.seats}
    addresses = record.order.addresses if len(record.workers) > 1 else ()
    rows = []
    for worker in record.workers:
        state = "running" if worker.exit_code is None and worker.pid else "not started"
        if is_lost:
            state = "unknown" if record.detached else "ended with its owner"
        if worker.exit_code is not None:
            state = f"exit code {worker.exit_code}"
        if worker.respawns:
            state += f", started again {worker.respawns}x"
        seat = seats.get(worker.worker)
        share = f"{seat.local_rows / seat.rows:.0%}" if seat and seat.rows else ""
        about = "~" if seat and not seat.is_counted else ""
        address = addresses[worker.worker] if worker.worker < len(addresses) else ""
        rows.append(
            [
                record.role(worker.worker).name,
                worker.host,
                str(worker.pid or "") if not is_lost else "",
                state,
                address,
                f"{about}{worker.rows:,}",
                share,
            ]
        )
    return rows


def explain_view(rows: Sequence[PlacementRow]) -> View:
    """Show the partitions that each worker would read, and from which host."""
    if not rows:
        return message_view("The cache is replicated: one worker reads all of it from its own host.")
    head = ["Host", "Node", "Worker", "Partitions", "Rows", "Share", "Bytes read locally"]
    cells = [
        [
            row.host,
            str(row.node)[:8],
            str(row.worker),
            f"{row.num_partitions} ({_short(row.partitions)})",
            f"{row.rows:,}",
            f"{row.rows_share:.1%}",
            f"{row.local_bytes_share:.0%}",
        ]
        for row in rows
    ]
    return table_view(head, cells, right={2, 4, 5, 6})


def explain_as_json(planned: Plan) -> dict[str, Any]:
    """Return the planned workers and their partitions for JSON output."""
    workers = [
        {
            "worker": row.worker,
            "host": row.host,
            "node": str(row.node),
            "partitions": row.partitions,
            "num_partitions": row.num_partitions,
            "rows": row.rows,
            "rows_share": row.rows_share,
            "local_bytes_share": row.local_bytes_share,
        }
        for row in planned.rows
    ]
    return {"workers": workers, "unusable": dict(planned.unusable)}


def _short(ranges: str) -> str:
    return ranges if len(ranges) <= 40 else f"{ranges[:36].rpartition(',')[0]}, ..."


def diagnosis_as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis for JSON output."""
    return {
        "healthy": diagnosis.is_healthy,
        "seconds": round(diagnosis.seconds, 3),
        "checks": [
            {
                "host": check.host or None,
                "check": check.what,
                "status": check.health.value,
                "found": check.found,
                "fix": check.fix or None,
            }
            for check in diagnosis.checks
        ],
    }


def diagnosis_view(diagnosis: Diagnosis) -> View:
    """List all checks, and below them a fix for each fault."""
    checks = diagnosis.checks
    table = table_view(
        ["Host", "Check", "State", "Found"],
        [[_host_once(checks, place), c.what, c.health.value, c.found] for place, c in enumerate(checks)],
        dots={2: [health_colour(check.health) for check in checks]},
    )
    faults = [check for check in checks if check.health is not Health.GOOD]
    faults.sort(key=lambda check: check.health is not Health.BAD)
    advice = [f"{check.host or 'all'}, {check.what}: {check.found}\n    {check.fix}" for check in faults]
    num_bad = sum(check.health is Health.BAD for check in faults)
    num = "1 check" if len(checks) == 1 else f"{len(checks)} checks"
    told = f"{num_bad} of {num} failed" if num_bad else f"{num}, none failed"
    views = [table, message_view("\n".join(["What to do:", *advice]))] if advice else [table]
    views.append(message_view(f"{told}; {diagnosis.seconds:.1f} s"))
    return View("\n\n".join(view.text for view in views), "".join(view.html for view in views))


def _host_once(checks: Sequence[Check], place: int) -> str:
    """Return the host of a check if it is the first check of that host, else an empty text."""
    host = checks[place].host
    return "" if place and checks[place - 1].host == host else host or "all"
