"""Keras on several workers gives the results of one process with the same batches. Rows are split 9:1 and 6:3:1."""

from __future__ import annotations

import pytest

from tests.training.cases import CASES
from tests.training.processes import compare, run_cases

OF_THE_RULE = [name for name, function in CASES.items() if function.__module__.endswith("cases_rule")]
# Several cases share processes, because TensorFlow takes seconds to start.
SHORT = (
    *("dense", "convolutional", "synchronised_batch_normalization", "own_train_step", "evaluate"),
    *("masked_sequences", "unreduced_losses", "metrics_of_many_kinds", "adversarial", "scaled_loss"),
    *OF_THE_RULE,
)
# `make matrix` and other cases cover these too.
LONG = {
    "whole_dataset",
    "sample_weight",
    "steps_per_epoch",
    "clipping",
    "regularized",
    "functional",
    "subclassed",
    "predict",
    *("optimizers_in_a_list", "accumulated_gradients", "moving_average", "weight_decay", "mixed_precision"),
    *("compiled_by_xla", "unfrozen_and_fitted_again", "fitted_in_a_loop", "rates_by_plateaus"),
    *("weights_of_uneven_sums", "mean_by_weights", "unreduced_losses_with_a_mean"),
}
# One case of each kind: former bugs, and uses of Keras that no other case here covers.
QUICK = [
    *("synchronised_batch_normalization", "own_train_step", "masked_sequences"),
    "masked_sequences_by_name",
    *("unreduced_losses", "metrics_of_many_kinds", "unknown_cardinality", "arrays_of_each_worker"),
    *("adapted_layers", "sum_of_losses", "large_layer", "gradient_of_unknown_shape", *OF_THE_RULE),
]
OTHERS = [name for name in CASES if name not in (*QUICK, *LONG)]
pytestmark = pytest.mark.timeout(3000)  # the first test runs all cases
# Many epochs at a high rate; exponents of large numbers.
CHAOTIC = {"early_stopping": 1e-3, "losses_of_keras_that_see_all_rows": 1e-3}
LAST_BITS = 4e-5  # two last bits of a 32-bit number above 128
LARGE = {("sum_of_losses", "history loss"), ("sum_of_losses", "history val_loss")}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return a function that runs cases once and returns the result folders: of one process, and of the workers."""
    found = {}

    def run(framework: str, num_workers: int, names):
        key = framework, num_workers, *names
        if key not in found:
            alone, together = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
            run_cases(framework, num_workers, names, alone, together=False)
            run_cases(framework, num_workers, names, together)
            found[key] = alone, together
        return found[key]

    return run


def check(name: str, alone, together, num_workers: int) -> None:
    found = compare(name, alone, together, num_workers)
    assert found.identical
    for what, difference in found.differences.items():
        limit = LAST_BITS if (name, what) in LARGE else CHAOTIC.get(name, 1e-5)
        assert difference < limit, found.differences


@pytest.mark.parametrize("name", QUICK)
def test_keras_on_two_workers(done, name):
    check(name, *done("keras", 2, QUICK), 2)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.nightly
def test_other_programs_on_two_workers(done, name):
    """Nightly. Shorter: test_keras_on_two_workers"""
    check(name, *done("keras", 2, OTHERS), 2)


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.nightly
def test_tf_keras_on_three_workers(done, name):
    """Nightly. Shorter: test_keras_on_two_workers"""
    check(name, *done("tf_keras", 3, SHORT), 3)
