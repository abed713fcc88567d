"""The states of a run, and all transitions between them in one table."""

from __future__ import annotations

from enum import Enum


class RunState(Enum):
    """The state of a run. Ended states are final."""

    QUEUED = "queued"  # waits until hosts have room
    STARTING = "starting"  # hosts are being prepared and processes started
    RUNNING = "running"  # every worker's process runs or has finished its work
    FAILING = "failing"  # a worker or a host has failed; the other workers are being ended
    RESTARTING = "restarting"  # all workers have been ended, or are being ended, before a new start
    FINISHING = "finishing"  # the script has succeeded; servers are being ended
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"  # no process owns the run any more; its workers end by themselves

    @property
    def has_ended(self) -> bool:
        """Whether all workers have ended; those of a lost run may still take a moment."""
        return not any(state is self for state, _ in TRANSITIONS)


class RunEvent(Enum):
    """An event in the life of a run."""

    ROOM_FOUND = "the hosts have room for it"
    ALL_STARTED = "the processes of all workers run"
    ALL_SUCCEEDED = "every worker ended with exit code 0"
    SCRIPT_SUCCEEDED = "whoever runs the script ended with exit code 0, and others still run"
    WORKER_FAILED = "a worker ended with another exit code, or could not be started"
    HOST_LOST = "a host has not been heard of for longer than its workers live alone"
    DEADLINE_PASSED = "it took longer than it may"
    OWNERS_CHANGED = "other nodes have become the primary owners of the cache's partitions"
    STOP_ASKED = "somebody asked for the run to be stopped"
    WORTH_A_RETRY = "no process of the run is left, and what failed may succeed another time"
    STARTED_AGAIN = "the workers are started again"
    ALL_GONE = "no process of the run is left"
    OWNER_GONE = "whoever answered for the run has ended"


_BUSY = (RunState.STARTING, RunState.RUNNING)
_ENDING = (RunState.FAILING, RunState.RESTARTING, RunState.FINISHING, RunState.STOPPING)
_ALIVE = (RunState.QUEUED, *_BUSY, *_ENDING)

TRANSITIONS: dict[tuple[RunState, RunEvent], RunState] = {
    (RunState.QUEUED, RunEvent.ROOM_FOUND): RunState.STARTING,
    (RunState.QUEUED, RunEvent.STOP_ASKED): RunState.STOPPING,
    (RunState.QUEUED, RunEvent.DEADLINE_PASSED): RunState.FAILING,
    (RunState.STARTING, RunEvent.ALL_STARTED): RunState.RUNNING,
    **{(state, RunEvent.ALL_SUCCEEDED): RunState.SUCCEEDED for state in _BUSY},
    **{(state, RunEvent.SCRIPT_SUCCEEDED): RunState.FINISHING for state in _BUSY},
    **{(state, RunEvent.WORKER_FAILED): RunState.FAILING for state in _BUSY},
    **{(state, RunEvent.HOST_LOST): RunState.FAILING for state in _BUSY},
    **{(state, RunEvent.DEADLINE_PASSED): RunState.FAILING for state in _BUSY},
    **{(state, RunEvent.OWNERS_CHANGED): RunState.RESTARTING for state in _BUSY},
    **{(state, RunEvent.STOP_ASKED): RunState.STOPPING for state in _BUSY},
    (RunState.FAILING, RunEvent.WORTH_A_RETRY): RunState.RESTARTING,
    (RunState.FAILING, RunEvent.ALL_GONE): RunState.FAILED,
    (RunState.FAILING, RunEvent.STOP_ASKED): RunState.STOPPING,
    (RunState.RESTARTING, RunEvent.STARTED_AGAIN): RunState.STARTING,
    (RunState.RESTARTING, RunEvent.DEADLINE_PASSED): RunState.FAILING,
    (RunState.RESTARTING, RunEvent.STOP_ASKED): RunState.STOPPING,
    (RunState.FINISHING, RunEvent.ALL_GONE): RunState.SUCCEEDED,
    (RunState.STOPPING, RunEvent.ALL_GONE): RunState.STOPPED,
    **{(state, RunEvent.OWNER_GONE): RunState.LOST for state in _ALIVE},
}


def after(state: RunState, event: RunEvent) -> RunState:
    """Return the state that follows an event.

    Raises:
        ValueError: The event cannot happen in this state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a run that is {state.value} cannot see this: {event.value}") from None
