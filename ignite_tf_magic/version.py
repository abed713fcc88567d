"""The version of this package; setup.cfg says the same."""

__version__ = "0.1.0"
