"""A session on the shared cluster, as trainings have it."""

from tests.training.conftest import session

__all__ = ["session"]
