"""Process trees: whose descendants live, and killing exactly those. Linux tells; elsewhere there are only groups."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

KEEPER_MARK = "IGNITE_TF_KEEPER"  # in the environment of shims: no tree that they are in takes them along
JOB_MARK = "IGNITE_TF_JOB"  # in the environment of a job's processes: who they belong to when no shim lives

_MARKED_CLEAN_PASSES = 4  # a process that forks and ends may be missed by one
_SHIM_ENDS_S = 10.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Call prctl; does nothing where there is none."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have this process killed when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def environment_has(pid: int, name: str, value: str = "") -> bool:
    """Tell whether a process was started with that variable; False when that cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    wanted = f"{name}={value}".encode()
    return any(each == wanted if value else each.startswith(wanted) for each in variables)


def _table() -> dict[int, list[int]]:
    """Return the children of every process of this host that has not ended."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(pid)
    return children


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _own_children() -> list[int]:
    """Return the children of this process, which has one thread. Much faster than the table, where Linux has it."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return _table().get(pid, [])


def descendants_memory_bytes() -> int:
    """Sum the memory up that the descendants of this process have for themselves; 0 where Linux does not tell.

    What they share with others, as files that they map, is not counted.
    """
    children, parents, total = _table(), [os.getpid()], 0
    while parents:
        for pid in children.get(parents.pop(), ()):
            if not environment_has(pid, KEEPER_MARK):
                parents.append(pid)
                total += _own_memory_bytes(pid)
    return total


def _own_memory_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = [line.split() for line in file if line.startswith((b"RssAnon:", b"RssShmem:"))]
    except OSError:
        return 0
    return sum(int(words[1]) * 1024 for words in lines)


def kill_descendants() -> bool:
    """Send SIGKILL to all descendants of this process once, but not to shims and what is below those."""
    children = _table()
    parents = [os.getpid()]
    killed = False
    while parents:
        for pid in children.get(parents.pop(), ()):
            if not environment_has(pid, KEEPER_MARK):
                parents.append(pid)
                killed |= _kill_with_group(pid)
    return killed


def kill_children() -> bool:
    """Send SIGKILL to the children of this process; tell whether there were any but shims.

    To one that adopts orphans the descendants of a child become children when it ends: so when there are no
    children left, there are no descendants, and no race with forks can hide one.
    """
    killed = [_kill_with_group(pid) for pid in _own_children() if not environment_has(pid, KEEPER_MARK)]
    return any(killed)


def _kill_with_group(pid: int) -> bool:
    """Kill a process of a job and its group, all at once: a storm of forks cannot run ahead.

    Such a group has only processes of the job: the job's first process began a session of its own.
    """
    try:
        group = os.getpgid(pid)
    except ProcessLookupError:
        return False
    if group not in (os.getpgrp(), 0, 1):
        kill_group(group)
    return _kill(os.kill, pid)


def kill_group(group: int) -> bool:
    """Send SIGKILL to a process group; tell whether there was one that may be killed."""
    return _kill(os.killpg, group)


def _kill(how: object, number: int) -> bool:
    try:
        how(number, signal.SIGKILL)  # type: ignore[operator]
    except ProcessLookupError:
        return False
    except PermissionError:  # it became another user's; nobody but that user can end it
        return False
    return True


def kill_marked(nonce: str, leader: int | None) -> bool:
    """Kill every process that carries a job's mark; for jobs without a living shim.

    Args:
        nonce: The value of the mark.
        leader: The job's first process, whose number is also that of a group.

    False when some of them may still live: processes that wait for a disk, or that fork and end faster than
    they are seen. Call it again then.
    """
    deadline = time.monotonic() + 0.5
    clean_passes = 0
    while clean_passes < _MARKED_CLEAN_PASSES and time.monotonic() < deadline:
        killed = [_kill_with_group(pid) for pid in _marked(nonce)]
        is_clean = not any(killed) and not _group_may_live(leader, nonce)
        clean_passes = clean_passes + 1 if is_clean else 0
        time.sleep(0.002 if any(killed) else 0)
    return clean_passes == _MARKED_CLEAN_PASSES


def kill_shim(nonce: str) -> None:
    """Kill both processes of the shim with a mark, then what it had started; returns when nothing of them runs."""
    deadline = time.monotonic() + _SHIM_ENDS_S
    while time.monotonic() < deadline:
        killed = [_kill(os.kill, pid) for pid in _pids() if environment_has(pid, KEEPER_MARK, nonce)]
        if not any(killed) and kill_marked(nonce, None):
            return
        time.sleep(0.002)


def _marked(nonce: str) -> Iterator[int]:
    """Find the processes with a mark, the youngest first: of a storm they are the ones that still live."""
    for pid in sorted(_pids(), reverse=True):
        if pid != os.getpid() and environment_has(pid, JOB_MARK, nonce):
            yield pid


def _group_may_live(group: int | None, nonce: str) -> bool:
    """Tell whether a group lives and is not known to be dead or, its number given anew, somebody else's."""
    if not group:
        return False
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, _, found = file.read().rpartition(b")")[2].split()[:3]
        except OSError:
            continue
        if int(found) == group and (state in (b"Z", b"X") or not environment_has(pid, JOB_MARK, nonce)):
            return False
    return True


def oom_kills() -> int:
    """Return how often this host has killed for want of memory since its boot; 0 where it does not tell."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def available_memory_bytes() -> int:
    """Return how much memory new processes could have here; 0 where the system does not tell."""
    found = 0
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    found = int(line.split()[1]) * 1024
    except OSError:
        pass
    return min([found, *_rooms_of_groups()])


def _rooms_of_groups() -> Iterator[int]:
    """Return what the limits of the control groups leave that this process is in, as a container's."""
    try:
        with open("/proc/self/cgroup", encoding="ascii", errors="replace") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for _, controllers, path in groups:
        if not controllers:
            base, limit, used, idle = "/sys/fs/cgroup", "memory.max", "memory.current", b"inactive_file "
        elif "memory" in controllers.split(","):
            base, limit, used = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            idle = b"total_inactive_file "
        else:
            continue
        while True:
            try:
                with open(f"{base}{path}/{limit}", "rb") as file_of_limit:
                    most = int(file_of_limit.read())
                with open(f"{base}{path}/{used}", "rb") as file_of_use:
                    taken = int(file_of_use.read())
                with open(f"{base}{path}/memory.stat", "rb") as lines:
                    taken -= sum(int(line.split()[1]) for line in lines if line.startswith(idle))
                yield max(most - taken, 0)
            except (OSError, ValueError):  # no such group here, or no limit
                pass
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]
