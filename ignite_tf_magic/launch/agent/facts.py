"""Reports what a host is and has, to match it with nodes, to place workers, and for the doctor."""

from __future__ import annotations

import json
import os
import sys
import time

from ignite_tf_magic.launch.agent.devices import host_memory_bytes, list_gpus
from ignite_tf_magic.launch.agent.disk import Refused, disk_fault, disk_of, find_foreign, names_in
from ignite_tf_magic.launch.agent.runs import Runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_INTERPRETER_TIMEOUT_S = 20.0
# Reads versions without importing the modules, because TensorFlow takes seconds. PYTHONPATH and the user's own packages
# count as they do for workers, so Python does not run isolated. It starts in a directory of ours, and removes that from
# the path before it imports anything that a file there could shadow.
_ASK_VERSIONS = """\
import sys
sys.path[:] = [place for place in sys.path if place]
import json
from importlib import metadata
def version(name):
    for found in (name, name + "-cpu", name + "-rocm"):
        try:
            return metadata.version(found)
        except metadata.PackageNotFoundError:
            pass
versions = {name: version(name) for name in sys.argv[1:]}
print("\\n" + json.dumps({"version": sys.version.split()[0], "path": sys.executable, "modules": versions}))
"""


def greeting(runs: Runs, digest: str) -> dict[str, Any]:
    """Return the facts about this host that a client needs first."""
    system = os.uname()
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "hostname": runs.hostname,
        "boot_id": runs.boot_id,
        "uid": os.getuid(),
        "user": _user(),
        "python": sys.version.split()[0],
        "platform": sys.platform,
        "machine": system.machine,
        "cpus": os.cpu_count(),
        "root": runs.root,
        "pid": os.getpid(),
        "time": time.time(),
        "ssh_address": connection[2] if len(connection) == 4 else None,
        "agent": digest,
    }


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return str(os.getuid())


def probe(runs: Runs, interpreter: str | None, modules: list[str]) -> dict[str, Any]:
    """Return facts about an interpreter, the disk, the memory and the GPUs. May take some seconds."""
    return {
        **_interpreter_facts(runs.root, interpreter or sys.executable, modules),
        "disk_free_bytes": disk_of(runs.root)[0],
        "disk_fault": disk_fault(runs.root),
        "memory_bytes": host_memory_bytes(),
        "gpus": list_gpus(),
        "ends_at_logout": ends_at_logout(_user()),
        "uv": _found("uv", [os.path.expanduser("~/.local/bin"), os.path.expanduser("~/.cargo/bin")]),
    }


def ends_at_logout(user: str, top: str = "/") -> bool:
    """Return whether systemd's configuration ends all processes of a user at logout."""
    if not os.path.isdir(os.path.join(top, "run/systemd/system")):
        return False  # the system uses another init
    found = {"KillUserProcesses": "no", "KillOnlyUsers": "", "KillExcludeUsers": "root"}
    for path in _logind_files(top):
        found.update(_logind_settings(path, with_defaults=path.endswith("/logind.conf")))
    if found["KillUserProcesses"].lower() not in ("yes", "true", "on", "1", "y", "t"):
        return False
    only = found["KillOnlyUsers"].split()
    return user not in found["KillExcludeUsers"].split() and (not only or user in only)


def _logind_files(top: str) -> list[str]:
    """Return logind's main configuration file, then its drop-ins by name. /etc overrides files of equal name."""
    places = [
        os.path.join(top, place, "systemd") for place in ("etc", "run", "usr/local/lib", "usr/lib", "lib")
    ]
    main = [f"{place}/logind.conf" for place in places if os.path.isfile(f"{place}/logind.conf")]
    changes = {}
    for place in reversed(places):
        for name in names_in(f"{place}/logind.conf.d"):
            if name.endswith(".conf"):
                changes[name] = f"{place}/logind.conf.d/{name}"
    return main[:1] + [changes[name] for name in sorted(changes)]


def _logind_settings(path: str, with_defaults: bool) -> dict[str, str]:
    """Read the Kill* settings of a file. In the main file, commented-out ones are the built-in defaults."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return {}
    found = {}
    for prefix in ("#", "") if with_defaults else ("",):
        for line in lines:
            key, separator, value = line.partition("=")
            if separator and key.strip().startswith(f"{prefix}Kill"):
                found[key.strip().lstrip("#")] = value.strip()
    return found


def _found(program: str, more: list[str]) -> str | None:
    if "/" in program:
        return os.path.expanduser(program)
    for directory in [*os.environ.get("PATH", os.defpath).split(os.pathsep), *more]:
        path = os.path.join(directory, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _check_environment(environments: str, interpreter: str) -> None:
    """Raise Refused if an environment of ours contains a file of another account."""
    if not interpreter.startswith(f"{environments}/"):
        return
    name = interpreter[len(environments) + 1 :].partition("/")[0]
    foreign = find_foreign(f"{environments}/{name}")
    if foreign:
        raise Refused(
            "foreign",
            f"{foreign!r} belongs to another account, and workers start from there; inspect it, and remove "
            f"{f'{environments}/{name}'!r}, which is built again",
        )


def _interpreter_facts(root: str, interpreter: str, modules: list[str]) -> dict[str, Any]:
    import subprocess

    path = _found(interpreter, [])
    if path is None or not os.access(path, os.X_OK):
        raise Refused("no_program", f"there is no interpreter {interpreter!r} on {os.uname().nodename}")
    path = os.path.abspath(path)
    _check_environment(f"{root}/venvs", path)
    try:
        done = subprocess.run(
            [path, "-c", _ASK_VERSIONS, *modules],
            cwd=root,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_INTERPRETER_TIMEOUT_S,
            check=True,
        )
        facts = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Refused(
            "probe_failed", f"{path} failed with exit code {error.returncode}: {' '.join(last)}"
        ) from error
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise Refused("probe_failed", f"{path} does not behave like Python: {error}") from error
    return {"interpreter": facts["path"] or path, "version": facts["version"], "modules": facts["modules"]}
