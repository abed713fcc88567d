"""Which tasks a session of TensorFlow 1 reaches, in scripts that are started once for each task."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.task import task


def reach_own_devices() -> None:
    """Let sessions reach their own task and the parameter servers, where their configuration does not say otherwise.

    By default a session opens only when every task of the cluster answers: a worker that comes when another has done
    its work would wait for it for ever. Estimators choose the same.
    """
    own = task()
    original = tf.compat.v1.Session.__init__

    @functools.wraps(original)
    def opened(session: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        if target and not (config is not None and config.device_filters):
            chosen = tf.compat.v1.ConfigProto()
            chosen.CopyFrom(config or chosen)
            chosen.device_filters.extend(("/job:ps", f"/job:{own.kind}/task:{own.index}"))
            config = chosen
        original(session, target, graph, config)

    tf.compat.v1.Session.__init__ = opened
