"""Assigns GPUs, ports and memory of this host to jobs without overlap."""

from __future__ import annotations

import os

from ignite_tf_magic.launch.agent.disk import Refused, names_in
from ignite_tf_magic.launch.agent.runs import Runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GPU_QUERY_TIMEOUT_S = 10.0


def list_gpus() -> list[dict[str, Any]]:
    """Return the GPUs that nvidia-smi lists, or none if it is missing or fails. May take some seconds."""
    import subprocess

    command = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_GPU_QUERY_TIMEOUT_S, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [
        [cell.strip() for cell in line.split(",")]
        for line in done.stdout.decode(errors="replace").splitlines()
    ]
    return [
        {"index": int(row[0]), "uuid": row[1], "name": row[2], "memory_mb": _number(row[3])}
        for row in rows
        if len(row) == 4 and row[0].isdigit()
    ]


def _number(text: str) -> int | None:
    return int(float(text)) if text.replace(".", "", 1).isdigit() else None


def list_leases(runs: Runs) -> list[dict[str, Any]]:
    """Return the GPUs, ports and memory of each running job on this host that holds any."""
    found = []
    for run in names_in(f"{runs.root}/runs"):
        for job, status in runs.alive(run):
            gpus, ports = job.request["gpus_given"], job.request["ports"]
            memory_bytes = job.request.get("memory_bytes", 0)  # missing in requests of earlier agents
            if gpus or ports or memory_bytes:
                held = {"gpus": gpus, "ports": ports, "memory_bytes": memory_bytes}
                found.append({"run": run, "job": status["name"], **held})
    return found


def gpu_environment(gpus: list[int]) -> dict[str, str]:
    """Return the environment variables of a job that has these GPUs for itself."""
    if not gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def host_memory_bytes() -> int:
    """Return the total memory of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def held_devices(leases: list[dict[str, Any]]) -> tuple[set[int], set[int]]:
    """Return the GPUs and the ports that jobs hold."""
    gpus = {gpu for lease in leases for gpu in lease["gpus"]}
    return gpus, {port for lease in leases for port in lease["ports"]}


def check_memory(wanted: int, leases: list[dict[str, Any]]) -> None:
    """Refuse a job whose memory limit exceeds what the limits of other jobs leave.

    Raises:
        Refused: `no_memory`, there is too little.
    """
    total = host_memory_bytes()
    free = total - sum(lease["memory_bytes"] for lease in leases)
    if wanted > free:
        message = (
            f"{wanted >> 20} MiB of memory requested, but only {max(free, 0) >> 20} of {total >> 20} MiB "
            f"on {os.uname().nodename} are free"
        )
        raise Refused("no_memory", message, free=free, total=total)


def choose_gpus(wanted: int, known: list[dict[str, Any]], held: set[int]) -> list[int]:
    """Choose GPUs that no job holds.

    Raises:
        Refused: `no_gpu`, there are too few.
    """
    free = [gpu["index"] for gpu in known if gpu["index"] not in held]
    if len(free) < wanted:
        message = (
            f"{wanted} GPUs requested, but only {len(free)} of {len(known)} on {os.uname().nodename} are free"
        )
        raise Refused("no_gpu", message, free=len(free), total=len(known))
    return free[:wanted]
