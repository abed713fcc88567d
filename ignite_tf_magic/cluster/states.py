"""The states of a run and every way from one to another, in one table."""

from __future__ import annotations

from enum import Enum


class RunState(Enum):
    """Where a run is. Ended states are final."""

    STARTING = "starting"
    RUNNING = "running"
    FAILING = "failing"  # a worker has failed; the others are being ended
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"  # the owner ended before the run; its workers end by themselves

    @property
    def has_ended(self) -> bool:
        """Whether no worker runs any more; those of a lost run may need a moment."""
        return not any(state is self for state, _ in TRANSITIONS)


class RunEvent(Enum):
    """What happens to a run."""

    ALL_UP = "all workers are up"
    PORT_TAKEN = "a worker found its port taken before all were up"
    ALL_SUCCEEDED = "every worker ended with exit code 0"
    WORKER_FAILED = "a worker ended with another exit code"
    DEADLINE_PASSED = "not all workers came up in time"
    STOP_ASKED = "somebody asked for the run to be stopped"
    ALL_GONE = "no process of the run is left"
    OWNER_GONE = "the owner's process has ended"


_STARTING, _RUNNING, _FAILING, _STOPPING = (
    RunState.STARTING,
    RunState.RUNNING,
    RunState.FAILING,
    RunState.STOPPING,
)

TRANSITIONS: dict[tuple[RunState, RunEvent], RunState] = {
    (_STARTING, RunEvent.ALL_UP): _RUNNING,
    (_STARTING, RunEvent.PORT_TAKEN): _STARTING,
    (_STARTING, RunEvent.ALL_SUCCEEDED): RunState.SUCCEEDED,
    (_STARTING, RunEvent.WORKER_FAILED): _FAILING,
    (_STARTING, RunEvent.DEADLINE_PASSED): _FAILING,
    (_STARTING, RunEvent.STOP_ASKED): _STOPPING,
    (_STARTING, RunEvent.OWNER_GONE): RunState.LOST,
    (_RUNNING, RunEvent.ALL_SUCCEEDED): RunState.SUCCEEDED,
    (_RUNNING, RunEvent.WORKER_FAILED): _FAILING,
    (_RUNNING, RunEvent.STOP_ASKED): _STOPPING,
    (_RUNNING, RunEvent.OWNER_GONE): RunState.LOST,
    (_FAILING, RunEvent.ALL_GONE): RunState.FAILED,
    (_FAILING, RunEvent.OWNER_GONE): RunState.LOST,
    (_STOPPING, RunEvent.ALL_GONE): RunState.STOPPED,
    (_STOPPING, RunEvent.OWNER_GONE): RunState.LOST,
}


def after(state: RunState, event: RunEvent) -> RunState:
    """Give the state that follows.

    Raises:
        ValueError: That cannot happen in this state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a run that is {state.value} cannot see this: {event.value}") from None
