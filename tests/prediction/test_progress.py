"""Notes about a prediction: only the latest one may write them, and they list all runs that may have written rows."""

from __future__ import annotations

import pytest

from ignite_tf_magic.client.cache_facts import check_complete, forget, load_mark, mark_loading, read_facts
from ignite_tf_magic.errors import PredictionReplaced
from ignite_tf_magic.prediction.progress import begin, finish, note, progress_of

CACHE = "PREDICTION_NOTES"


@pytest.fixture(autouse=True)
def nothing_left(client):
    yield
    forget(client, CACHE)


def noted(client):
    found = progress_of(read_facts(client, CACHE))
    return sorted(found.done), found.runs


def test_notes_add_up_until_the_end(client):
    mark = begin(client, CACHE, 10, "predict a", goes_on=False)
    note(client, CACHE, mark, run="r1")
    note(client, CACHE, mark, run="r1", done=[0, 1023, -1])
    assert sorted(note(client, CACHE, mark, done=[5], undone=[0]).done) == [-1, 5, 1023]
    assert noted(client) == ([-1, 5, 1023], ("r1",))
    finish(client, CACHE, mark, 10)
    assert noted(client) == ([], ())
    check_complete(client, CACHE)
    assert load_mark(read_facts(client, CACHE)).rows == 10


def test_who_goes_on_keeps_what_is_done_and_others_are_told_to_stop(client):
    first = begin(client, CACHE, 10, "predict a", goes_on=False)
    note(client, CACHE, first, run="r1", done=[3])
    second = begin(client, CACHE, 10, "predict a", goes_on=True)
    assert noted(client) == ([3], ("r1",))
    with pytest.raises(PredictionReplaced, match="PREDICTION_NOTES"):
        note(client, CACHE, first, done=[4])
    with pytest.raises(PredictionReplaced):
        finish(client, CACHE, first, 10)
    note(client, CACHE, second, run="r2")
    assert noted(client) == ([3], ("r1", "r2"))
    begin(client, CACHE, 10, "predict b", goes_on=False)
    assert noted(client) == ([], ("r1", "r2"))
    mark_loading(client, CACHE, 5)
    with pytest.raises(PredictionReplaced):
        note(client, CACHE, second, run="r3")


@pytest.mark.parametrize("found", [None, 5, {}, {"done": "zz", "runs": []}, {"done": "3", "runs": 5}])
def test_notes_of_others_are_none(found):
    assert progress_of({"prediction": found}) == progress_of({})
