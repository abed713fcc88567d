from __future__ import annotations

import pytest

from ignite_tf_magic.runs.states import TRANSITIONS, RunEvent, RunState, after

ENDED = {RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST}


def test_every_state_can_be_reached_and_every_way_ends():
    reached, ends = {RunState.QUEUED}, set(ENDED)
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


def test_a_stop_is_heard_until_the_run_has_nothing_to_do_but_to_end():
    for state in set(RunState) - ENDED - {RunState.FINISHING, RunState.STOPPING}:
        assert after(state, RunEvent.STOP_ASKED) is RunState.STOPPING
    assert {to for (come, _), to in TRANSITIONS.items() if come is RunState.STOPPING} == {
        RunState.STOPPED,
        RunState.LOST,
    }


def test_success_comes_only_of_the_success_of_all_who_decide():
    ways = {(come, event) for (come, event), to in TRANSITIONS.items() if to is RunState.SUCCEEDED}
    assert ways == {
        (RunState.STARTING, RunEvent.ALL_SUCCEEDED),
        (RunState.RUNNING, RunEvent.ALL_SUCCEEDED),
        (RunState.FINISHING, RunEvent.ALL_GONE),
    }
    assert {event for (_, event), to in TRANSITIONS.items() if to is RunState.FINISHING} == {
        RunEvent.SCRIPT_SUCCEEDED
    }


def test_what_cannot_happen_is_refused():
    with pytest.raises(ValueError, match="succeeded cannot see this"):
        after(RunState.SUCCEEDED, RunEvent.STOP_ASKED)
