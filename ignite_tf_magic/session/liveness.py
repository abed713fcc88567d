"""Finds out whether a run without an owner may still live, on one of its hosts or through a sleeping owner."""

from __future__ import annotations

import time

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.launch.hosts import call_all
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.registry.registry import Registry

# An owner on another machine that sleeps continues when it wakes up. It cannot be asked meanwhile.
_OWNER_MAY_SLEEP_S = 86_400.0


def why_it_may_live(run: Run, registry: Registry, *, is_of_this_home: bool) -> str | None:
    """Return why a lost run may still live; None if its hosts confirmed that none of its processes lives.

    Args:
        run: The run.
        registry: Knows which hosts of a detached run have worked for it.
        is_of_this_home: Whether its owner was this user on this machine; then the owner's lock is known to be free.
    """
    record = run.record()
    must_tell = {host for worker in range(len(record.spec.roles)) for _, host in record.hosts_of(worker)}
    must_tell |= set(registry.reports(record.run_id)) if record.detached else set()
    with run.reach.visiting(run.hosts()) as opened:
        answers = call_all(opened, lambda host: host.jobs_of(record.run_id))
    for name, answer in answers.items():
        if isinstance(answer, tuple) and (living := [job.name for job in answer if not job.has_ended]):
            return f"{', '.join(living)} of the run still lives on {name}, though the run's owner is gone"
    for name in sorted(must_tell):
        answer = answers.get(name)
        if isinstance(answer, IgniteTfError):
            return (
                f"its owner is gone, and {name} cannot be asked whether the run still lives there: {answer}"
            )
        if answer is None:
            return (
                f"its owner is gone, and {name} has no files of it for this user; repeat the command as the user, and "
                f"with the IGNITE_TF_HOME, that started the run on {record.owner_host}"
            )
    ends = [job.ended_at for answer in answers.values() if isinstance(answer, tuple) for job in answer]
    last_sign = max([record.started_at, *(end for end in ends if end is not None)])
    # The owners of a detached run are processes on its hosts, which have just been asked.
    is_seen_to_be_gone = record.detached or is_of_this_home
    if not is_seen_to_be_gone and time.time() - last_sign < _OWNER_MAY_SLEEP_S:
        return (
            f"process {record.owner_pid} on {record.owner_host}, which owns the run, does not answer, and may be "
            "suspended; repeat the command there, or here after a day"
        )
    return None
