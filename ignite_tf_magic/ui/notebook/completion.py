"""Tab behind `%ignite_tf`: what may come next."""

from __future__ import annotations

import shlex
from typing import Any

from ignite_tf_magic.ui.completion import candidates


def complete_magic(shell: Any, event: Any) -> list[str]:
    """Return words for IPython's completer; it calls this for lines that begin with the magic.

    Names of others that are more than a word are left out: IPython runs what stands in braces or behind a dollar.
    """
    del shell
    line = event.line[: event.line.rfind(event.symbol)] if event.symbol else event.line
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # a quotation that is not at its end
        return []
    return [word for word in candidates(words, event.symbol) if shlex.quote(word) == word]
