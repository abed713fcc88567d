"""Imported first, makes of a script what a run's bootstrap makes of it: Keras is hooked as soon as it is imported.

Packages that Keras imports only where they are installed, for what no script here uses, are left out: with them
TensorFlow takes a second or two more to start, and starting it is most of the time that these tests take.
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
