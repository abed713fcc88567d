"""Runs `ignite-tf` as `python -m ignite_tf_magic`."""

from __future__ import annotations

import sys

from ignite_tf_magic.ui.shell.cli import main

if __name__ == "__main__":
    sys.exit(main())
