"""Fake GPUs: an nvidia-smi that lists some, in the real one's output format."""

from __future__ import annotations

from pathlib import Path


def make_nvidia_smi(folder: Path, num_gpus: int) -> Path:
    """Make a program that answers only the agents' query. Returns its directory, for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{index}, GPU-{index:08x}, NVIDIA Test, 81559\\n" for index in range(num_gpus))
    query = "--query-gpu=index,uuid,name,memory.total --format=csv,noheader,nounits"
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$*" = "{query}" ] || exit 6\nprintf "{rows}"\n')
    program.chmod(0o755)
    return folder
