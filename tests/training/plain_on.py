"""Plain Keras: plain_on.py FOLDER writes the error and warnings to FOLDER/said-WORKER.json."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import as_worker  # noqa: F401
import numpy as np

said = {"raised": None}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import keras

    from ignite_tf_magic import task

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        model.fit(np.zeros((8, 2)), np.zeros(8), verbose=0)
    except Exception as error:  # noqa: BLE001 - the test checks it
        said["raised"] = f"{type(error).__name__}: {error}"
said["warned"] = [str(each.message) for each in caught]
(Path(sys.argv[1]) / f"said-{task().index}.json").write_text(json.dumps(said))
