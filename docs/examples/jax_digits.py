"""Softmax regression in JAX on all workers of a run, each on its own rows of the cache.

ignite-tf start --workers 2 DIGITS . python jax_digits.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather

import ignite_tf_magic as itf

jax.distributed.initialize()  # a run's workers know each other


@jax.jit
def gradients(weights, pixels, labels):
    """Sums over this worker's rows, so that those of all workers add up: of the loss, and of its gradient."""

    def loss(weights):
        logits = pixels @ weights["kernel"] + weights["bias"]
        return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])

    return jax.value_and_grad(loss)(weights)


rows = itf.batches("DIGITS", 256, shuffle=2000, seed=1)
weights = {"kernel": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
for epoch in range(5):
    total = 0.0
    for batch in rows:
        pixels = jnp.from_dlpack(batch["val"]["pixels"]).astype(jnp.float32) / 16
        found = gradients(weights, pixels, jnp.from_dlpack(batch["val"]["label"]))
        of_all = process_allgather((*found, np.float32(len(pixels))))
        loss, gradient, num_rows = jax.tree.map(lambda part: part.sum(0), of_all)
        step = 0.5 / num_rows
        weights = {name: weights[name] - step * gradient[name] for name in weights}
        total += float(loss)
    if jax.process_index() == 0:
        print(f"epoch {epoch}: loss {total / 1797:.6f}", flush=True)

itf.result({name: np.asarray(value) for name, value in weights.items()})
