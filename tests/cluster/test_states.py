from __future__ import annotations

import pytest

from ignite_tf_magic.cluster.states import TRANSITIONS, RunEvent, RunState, after

ENDED = {RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST}


def test_every_state_can_be_reached_and_every_way_ends():
    reached, ends = {RunState.STARTING}, set(ENDED)
    for _ in RunState:
        reached |= {to for (come, _), to in TRANSITIONS.items() if come in reached}
        ends |= {come for (come, _), to in TRANSITIONS.items() if to in ends}
    assert reached == set(RunState) == ends


def test_ended_states_are_final():
    assert {state for state in RunState if state.has_ended} == ENDED


def test_every_event_means_something_and_every_run_may_lose_its_owner():
    assert {event for _, event in TRANSITIONS} == set(RunEvent)
    for state in set(RunState) - ENDED:
        assert after(state, RunEvent.OWNER_GONE) is RunState.LOST


def test_what_cannot_happen_is_refused():
    with pytest.raises(ValueError, match="succeeded cannot see this"):
        after(RunState.SUCCEEDED, RunEvent.STOP_ASKED)
