"""Finds and kills the living descendants of a process, exactly on Linux, and by process group elsewhere."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

KEEPER_MARK = "IGNITE_TF_KEEPER"  # in the environment of shims, so that killing a tree spares the shims in it
JOB_MARK = "IGNITE_TF_JOB"  # in the environment of a job's processes, to find them when no shim lives

_MARKED_CLEAN_PASSES = 4  # one pass may miss a process that forks and ends
_SHIM_ENDS_S = 10.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Call prctl, or do nothing if the system does not have it."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def environment_has(pid: int, name: str, value: str = "") -> bool:
    """Return whether a process was started with a variable; False if its environment cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    wanted = f"{name}={value}".encode()
    return any(each == wanted if value else each.startswith(wanted) for each in variables)


def _table() -> dict[int, list[int]]:
    """Return the living children of every process on this host."""
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
    """Return the children of this single-threaded process. Where Linux allows, much faster than `_table`."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return _table().get(pid, [])


def descendants_memory_bytes() -> int:
    """Return the private memory of all descendants of this process; 0 if the system cannot tell.

    Memory that they share with others, such as mapped files, is not counted.
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
    """Send SIGKILL once to all descendants of this process, except shims and their descendants."""
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
    """Send SIGKILL to the children of this process; return whether there were any besides shims.

    A process that adopts orphans becomes the parent of a child's descendants when the child ends. So if it has no
    children left, it has no descendants, and no race with forks can hide one.
    """
    killed = [_kill_with_group(pid) for pid in _own_children() if not environment_has(pid, KEEPER_MARK)]
    return any(killed)


def _kill_with_group(pid: int) -> bool:
    """Kill a process of a job and its group, all at once, so that a fork storm cannot outrun it.

    The group contains only processes of the job, because the job's first process began its own session.
    """
    try:
        group = os.getpgid(pid)
    except ProcessLookupError:
        return False
    if group not in (os.getpgrp(), 0, 1):
        kill_group(group)
    return _kill(os.kill, pid)


def kill_group(group: int) -> bool:
    """Send SIGKILL to a process group; return whether there was one that we may kill."""
    return _kill(os.killpg, group)


def _kill(how: object, number: int) -> bool:
    try:
        how(number, signal.SIGKILL)  # type: ignore[operator]
    except ProcessLookupError:
        return False
    except PermissionError:  # it now belongs to another user, and only that user can end it
        return False
    return True


def kill_marked(nonce: str, leader: int | None) -> bool:
    """Kill every process that carries a job's mark; for jobs without a living shim.

    Args:
        nonce: The value of the mark.
        leader: The job's first process, whose pid is also the number of its group.

    Returns:
        False if some of them may still live: processes that wait for a disk, or that fork and end faster than this
        function sees them. The caller must then call it again.
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
    """Kill both processes of the shim with a mark, then what it had started; wait at most 10 s for their end."""
    deadline = time.monotonic() + _SHIM_ENDS_S
    while time.monotonic() < deadline:
        killed = [_kill(os.kill, pid) for pid in _pids() if environment_has(pid, KEEPER_MARK, nonce)]
        if not any(killed) and kill_marked(nonce, None):
            return
        time.sleep(0.002)


def _marked(nonce: str) -> Iterator[int]:
    """Yield the processes with a job's mark, youngest first, because in a fork storm those still live."""
    for pid in sorted(_pids(), reverse=True):
        if pid != os.getpid() and environment_has(pid, JOB_MARK, nonce):
            yield pid


def _group_may_live(group: int | None, nonce: str) -> bool:
    """Return whether a group may live: it exists, and is neither dead nor another one with the same number."""
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
    """Return the number of out-of-memory kills on this host since its boot; 0 if unknown."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def available_memory_bytes() -> int:
    """Return the memory that is available to new processes on this host; 0 if unknown."""
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
    """Yield the memory that the limits of this process's control groups leave, such as a container's."""
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
