"""The version of this package, which must equal the one in setup.cfg."""

__version__ = "0.1.0"
