"""The agent: the program that runs on a host and holds the processes of runs there.

It is written as modules and shipped as one file, which `agent_source` joins. The modules use the standard library only,
run on Python 3.8 and later, and can be imported on Windows. The file contains two programs. A relay (`relay.serve`)
answers one client over its standard streams and keeps no state. A process shim (`process_shim.keep`) is a daemon that
holds one job. The code that connects to hosts imports only `frames` from here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ignite_tf_magic.launch.agent.frames import (
    LOADER,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    FrameDecoder,
    FrameError,
    encode_frame,
    loader_arguments,
)

__all__ = [
    "LOADER",
    "MAGIC",
    "MAX_PAYLOAD_BYTES",
    "FrameDecoder",
    "FrameError",
    "agent_digest",
    "agent_source",
    "encode_frame",
    "loader_arguments",
]

# In the order in which they are joined. Each module imports earlier ones only.
MODULES = (
    *("frames", "disk", "processes", "job_files", "spawning", "process_shim", "handing_over", "parked_shim"),
    *(
        "runs",
        "devices",
        "shims",
        "parking",
        "starting",
        "polling",
        "network",
        "facts",
        "unpacking",
        "tidying",
        "relay",
    ),
)


def agent_source() -> bytes:
    """Return the one file that is shipped: all modules, without their imports of each other."""
    here = Path(__file__).parent
    parts = [_without_own_imports((here / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    return "\n".join(["from __future__ import annotations", *parts]).encode()


def agent_digest(source: bytes) -> str:
    """Return the name under which hosts keep this agent."""
    return hashlib.sha256(source).hexdigest()


def _without_own_imports(text: str) -> str:
    kept = []
    in_import = False
    for line in text.splitlines():
        starts = line.startswith(("from ignite_tf_magic.", "from __future__ "))
        if not starts and not in_import:
            kept.append(line)
        in_import = (starts or in_import) and (line.endswith("(") or (in_import and line != ")"))
    return "\n".join(kept) + "\n"
