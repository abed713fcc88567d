"""Training cases for Keras features, run in one process or in several with the same global batches.

As a program, cases.py FRAMEWORK FOLDER NAME... runs cases one after the other as the worker that TF_CONFIG names, and
writes each result to FOLDER/NAME-WORKER.npz.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import numpy as np

from tests.training import (
    cases_basic,  # noqa: F401
    cases_inputs,  # noqa: F401
    cases_losses,  # noqa: F401
    cases_rows,  # noqa: F401
    cases_rule,  # noqa: F401
    cases_steps,  # noqa: F401
)
from tests.training.case_setting import CASES, Setting, cases_of  # noqa: F401

_SHARES = {1: (1.0,), 2: (0.9, 0.1), 3: (0.6, 0.3, 0.1)}


def main(framework: str, folder: str, *names: str) -> None:
    import as_worker  # noqa: F401

    __import__(framework)
    from ignite_tf_magic.training.group import worker_group

    shares = _SHARES[int(os.environ["CASES_WORKERS"])]
    for name in names:
        setting = Setting(framework, shares)
        path = Path(folder) / f"{name}-{worker_group().place.index}"
        try:
            found = CASES[name](setting)
        except Exception:
            path.with_suffix(".error").write_text(traceback.format_exc())
            raise
        np.savez(path.with_suffix(".npz"), **found)
        print(name, "done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
