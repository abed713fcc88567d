"""Tests of predictions by real runs: each input row gives one output row with the model's values, also after kills."""

from __future__ import annotations

import fsspec
import numpy as np
import pytest

import ignite_tf_magic
from ignite_tf_magic.client.cache_facts import check_complete, forget
from ignite_tf_magic.errors import (
    CacheExists,
    CacheNameError,
    CacheNotFound,
    ConfigError,
    EmptyCache,
    LoadIncomplete,
    LoadNotResumed,
    RunFailed,
)
from ignite_tf_magic.protocol.messages import CacheConfig, CacheMode
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.session import open_session
from tests.prediction.predicted import (
    content,
    expected,
    kill_prediction,
    linear_model,
    num_rows,
    rows_of,
)

ROWS = 3000


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)


@pytest.fixture
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened
        for name in opened.client.cache_names():
            if name.startswith("PREDICT"):
                opened.client.destroy_cache(name)
                forget(opened.client, name)


@pytest.mark.smoke
def test_rows_are_predicted_once_beside_their_keys(session):
    rows = rows_of(ROWS)
    session.load("PREDICT_IN", {**rows, "label": np.arange(ROWS)})
    told = []
    model = linear_model()
    outcome = session.predict(
        model, "PREDICT_IN", "PREDICT_OUT", workers=2, fields=["x"], progress=lambda *of: told.append(of)
    )
    assert (outcome.rows, outcome.predicted) == (ROWS, ROWS)
    assert told[-1] == (ROWS, ROWS)
    found, source = content(session, "PREDICT_OUT"), content(session, "PREDICT_IN")
    assert {key: partition for key, (_, partition) in found.items()} == {
        key: partition for key, (_, partition) in source.items()
    }
    outputs = np.stack([found[key][0]["prediction"] for key in range(ROWS)])
    assert np.array_equal(outputs, expected(rows))
    assert np.allclose(outputs, model.predict(rows["x"], verbose=0), atol=1e-6)
    check_complete(session.client, "PREDICT_OUT")
    joined = "SELECT COUNT(*) FROM PREDICT_OUT o JOIN PREDICT_IN i ON o.ID = i.ID"
    assert list(session.query(joined).rows) == [(ROWS,)]

    again = session.predict(model, "PREDICT_IN", "PREDICT_OUT", fields=["x"], resume=True)
    assert (again.rows, again.predicted, again.run_id) == (ROWS, 0, None)
    with pytest.raises(CacheExists, match="3,000 rows"):
        session.predict(model, "PREDICT_IN", "PREDICT_OUT", fields=["x"])
    model.set_weights([np.zeros((4, 3), np.float32)])
    with pytest.raises(LoadNotResumed, match="no unfinished prediction of this model"):
        session.predict(model, "PREDICT_IN", "PREDICT_OUT", fields=["x"], resume=True)


@pytest.mark.nightly
def test_a_function_makes_the_input_and_several_outputs_have_names(session):
    """The keys have several columns, the cache is unknown to SQL, and some outputs are scalars or NaN.

    Nightly. Shorter: tests/prediction/test_outputs.py::test_several_outputs_have_their_names
    """
    import keras

    cache = session.client.get_or_create_cache(CacheConfig("PREDICT_KEYS", backups=1))
    for day in range(60):
        key = BinaryObject("PredictKey", {"shop": f"s{day % 7}", "day": day})
        value = BinaryObject("PredictValue", {"a": float(day) if day else float("nan"), "name": "x" * day})
        cache.put(key, value)

    def prepare(value):
        import tensorflow as tf

        length = tf.cast(tf.strings.length(value["name"]), tf.float32)
        return tf.stack([tf.cast(value["a"], tf.float32), length]), value["a"]

    given = keras.Input((2,))
    first = keras.layers.Dense(1, use_bias=False)
    model = keras.Model(given, {"first": first(given), "both": keras.layers.Identity()(given)})
    first.set_weights([np.array([[1], [0]], np.float32)])
    session.predict(model, "PREDICT_KEYS", "PREDICT_NAMED", workers=1, prepare=prepare)
    found = content(session, "PREDICT_NAMED")
    assert set(found) == {(f"s{day % 7}", day) for day in range(60)}
    for (_, day), (fields, _) in found.items():
        a = float(day) if day else np.nan
        assert np.array_equal([fields["first"], *fields["both"]], [a, a, day], equal_nan=True)
    listed = session.query("SELECT SHOP, DAY, FIRST FROM PREDICT_NAMED ORDER BY DAY").rows
    assert list(listed[1:3]) == [("s1", 1, 1.0), ("s2", 2, 2.0)]


def test_a_cache_that_is_read_whole_is_predicted_by_one_worker(session):
    rows = rows_of(50)
    session.load("PREDICT_IN", rows)
    whole = session.client.create_cache(CacheConfig("PREDICT_WHOLE", mode=CacheMode.REPLICATED))
    whole.put_all(
        {
            key: BinaryObject("PredictWhole", fields)
            for key, (fields, _) in content(session, "PREDICT_IN").items()
        }
    )
    outcome = session.predict(linear_model(), "PREDICT_WHOLE", "PREDICT_OUT", replace=True)
    assert outcome.predicted == 50
    found = content(session, "PREDICT_OUT")
    assert np.array_equal(np.stack([found[key][0]["prediction"] for key in range(50)]), expected(rows))


@pytest.mark.nightly
def test_a_model_of_tf_keras_and_one_in_igfs(session, ignite, tmp_path, monkeypatch):
    """Nightly. Shorter: test_rows_are_predicted_once_beside_their_keys"""
    import tf_keras

    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    rows = rows_of(200)
    session.load("PREDICT_IN", rows)
    linear_model(tmp_path / "linear.keras")
    files, where = fsspec.filesystem("igfs"), "igfs:///predict-test/linear.keras"
    files.put(str(tmp_path / "linear.keras"), where)
    other = tf_keras.Sequential([tf_keras.layers.InputLayer((4,)), tf_keras.layers.Dense(3, use_bias=False)])
    other.set_weights(linear_model().get_weights())
    try:
        for model in (where, other):
            session.predict(model, "PREDICT_IN", "PREDICT_OUT", replace=True)
            found = content(session, "PREDICT_OUT")
            assert np.array_equal(
                np.stack([found[key][0]["prediction"] for key in range(200)]), expected(rows)
            )
    finally:
        files.rm("igfs:///predict-test", recursive=True)


def test_what_cannot_be_predicted_is_refused_in_words(session, tmp_path):
    path = tmp_path / "model.keras"
    linear_model(path)
    session.load("PREDICT_WIDE", {"x": np.zeros((40, 5), np.float32), "y": np.arange(40)})
    with pytest.raises(RunFailed, match=r"shape \(rows, 4\).*'PREDICT_WIDE' have \(rows, 5\)"):
        session.predict(path, "PREDICT_WIDE", "PREDICT_NONE", workers=1, fields=["x"])
    assert "PREDICT_NONE" not in session.client.cache_names()
    session.client.get_or_create_cache(CacheConfig("PREDICT_EMPTY"))
    for source, target, error in (
        ("PREDICT_EMPTY", "PREDICT_NONE", EmptyCache),
        ("PREDICT_NOWHERE", "PREDICT_NONE", CacheNotFound),
        ("PREDICT_WIDE", "PREDICT_WIDE", CacheNameError),
        ("PREDICT_WIDE", "ignite-tf-caches", CacheNameError),
    ):
        with pytest.raises(error):
            session.predict(path, source, target)
    with pytest.raises(ConfigError, match="choose one"):
        session.predict(path, "PREDICT_WIDE", "PREDICT_NONE", resume=True, replace=True)
    with pytest.raises(ConfigError, match=r"not a \.keras file"):
        session.predict(tmp_path, "PREDICT_WIDE", "PREDICT_NONE")
    with pytest.raises(ConfigError, match="neither a Keras model"):
        session.predict(5, "PREDICT_WIDE", "PREDICT_NONE")
    (tmp_path / "bad.keras").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"not a \.keras file"):
        session.predict(tmp_path / "bad.keras", "PREDICT_WIDE", "PREDICT_NONE")


@pytest.mark.nightly
def test_a_function_of_a_cell_takes_along_what_other_cells_define(session):
    """Nightly. Shorter: tests/ui/notebook/test_training_cells.py::test_a_function_of_the_notebook"""
    from IPython.core.interactiveshell import InteractiveShell

    rows = rows_of(100)
    session.load("PREDICT_IN", rows)
    shell = InteractiveShell()
    shell.user_ns.update(session=session, model=linear_model())
    for cell in (
        "import tensorflow as tf\nSCALE = 4.0\ndef doubled(x):\n    return 2 * x",
        "def prepare(value):\n    return doubled(tf.cast(value['x'], tf.float32)) / 2 * SCALE",
        "session.predict(model, 'PREDICT_IN', 'PREDICT_OUT', prepare=prepare, workers=1)",
    ):
        shell.run_cell(cell).raise_error()
    found = content(session, "PREDICT_OUT")
    outputs = np.stack([found[key][0]["prediction"] for key in range(100)])
    assert np.array_equal(outputs, 4 * expected(rows))


@pytest.mark.nightly
def test_kills_leave_each_row_once(session, ignite, tmp_path):
    """Nightly. Shorter:
    tests/prediction/test_progress.py::test_who_goes_on_keeps_what_is_done_and_others_are_told_to_stop
    """
    rows, path = rows_of(20_000), tmp_path / "model.keras"
    session.load("PREDICT_KILLED_IN", rows)
    linear_model(path)
    port = ignite.connect_options.endpoints[0].port
    kill_prediction(
        session,
        port,
        path,
        "PREDICT_KILLED_IN",
        "PREDICT_KILLED",
        lambda: num_rows(session, "PREDICT_KILLED") > 4_000,
        lambda: num_rows(session, "PREDICT_KILLED") > 500,
    )
    with pytest.raises(LoadIncomplete):
        check_complete(session.client, "PREDICT_KILLED")
    with pytest.raises(CacheExists, match="has not finished: continue"):
        session.predict(path, "PREDICT_KILLED_IN", "PREDICT_KILLED", fields=["x"])
    outcome = session.predict(
        path, "PREDICT_KILLED_IN", "PREDICT_KILLED", fields=["x"], workers=1, resume=True
    )
    assert outcome.rows == 20_000
    assert outcome.predicted < 20_000
    found = content(session, "PREDICT_KILLED")
    assert sorted(found) == list(range(20_000))
    assert np.array_equal(np.stack([found[key][0]["prediction"] for key in range(20_000)]), expected(rows))
    check_complete(session.client, "PREDICT_KILLED")


def test_the_name_of_the_package():
    assert callable(ignite_tf_magic.predict)
