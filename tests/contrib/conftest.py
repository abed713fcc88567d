"""The `session` fixture of the training tests."""

from tests.training.conftest import session

__all__ = ["session"]
