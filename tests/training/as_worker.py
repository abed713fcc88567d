"""Prepares a script as a run's bootstrap does: Keras is hooked when it is imported. Import it first.

It hides packages that Keras imports if they are installed and that no script here uses. With them, TensorFlow starts
one or two seconds slower, and starting it takes most of the time of these tests.
"""

from __future__ import annotations

import os
import sys
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
    sys.modules.update(dict.fromkeys(("jax", "pandas", "scipy")))

from ignite_tf_magic.after_import import after_import, call_named
from ignite_tf_magic.runs.deferred_imports import defer_imports

defer_imports()
after_import("random", partial(call_named, "ignite_tf_magic.training.seeding:seed_random"))
after_import("numpy", partial(call_named, "ignite_tf_magic.training.seeding:seed_numpy"))
for framework in ("keras", "tf_keras"):
    after_import(framework, partial(call_named, f"ignite_tf_magic.training.keras_hooks:install_{framework}"))
