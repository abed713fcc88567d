"""Pages of the names that Python has; Sphinx takes their words from docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

import ignite_tf_magic
from docs.markdown import block
from ignite_tf_magic import errors, session
from ignite_tf_magic.client import follow as following

# Python


def package_page() -> str:
    """Return the page of the names that the package itself has."""
    names = [
        name for name in ignite_tf_magic.__all__ if name not in ("__version__", "load_ipython_extension")
    ]
    parts = [
        "# ignite_tf_magic\n",
        '```python\nimport ignite_tf_magic as itf\n\nrows = itf.IgniteDataset("DIGITS")\n```\n',
        "The names that scripts and notebooks use. A name is loaded on first use. `IgniteDataset` needs TensorFlow; "
        "`batches` does not.\n",
    ]
    for name in names:
        home = ignite_tf_magic._HOME_OF_NAME[name]
        module, _, other = home.partition(":")
        if name in ("Session", "IgniteTfError", "connect", "load", "predict"):
            other_page = "api_errors.md" if name == "IgniteTfError" else "api_session.md"
            parts.append(f"## {name}\n\n[{other or name}]({other_page}).\n")
            continue
        if module == "ignite_tf_magic.session":
            module = f"ignite_tf_magic.{session._HOME_OF_NAME[name]}"
        parts += [f"## {name}\n", _auto(module, other or name)]
        if name == "batches":
            parts.append(_auto("ignite_tf_magic.dataset.array_batches", "Batches"))
        if name == "IgniteDataset":
            parts.append(_auto("ignite_tf_magic.dataset.paged", "PagedDataset"))
        if name == "task":
            parts.append(_auto("ignite_tf_magic.training.task", "Task"))
    return "\n".join(parts)


def session_page() -> str:
    """Return the page of `ignite_tf_magic.session`."""
    functions, classes = [], []
    for name in sorted(session._HOME_OF_NAME, key=str.lower):
        found = getattr(session, name)
        if inspect.isclass(found):  # some modules only hand a class on
            classes.append((_FIRST.get(name, len(_FIRST)), _auto(found.__module__, name)))
            if name == "RunRequest":  # has these attributes, too
                classes.append((_FIRST[name], _auto("ignite_tf_magic.runs.record", "RunOptions")))
        elif callable(found) and hasattr(found, "__code__"):
            functions.append(_auto(found.__module__, name))
    parts = [
        "# ignite_tf_magic.session\n",
        "```python\nfrom ignite_tf_magic.session import RunRequest, open_session\n\n"
        'with open_session() as session:\n    run = session.start_run(RunRequest("DIGITS", script="print(1)"))\n```\n',
        "All that a command does, as calls. Nothing here prints, but through `report`.\n",
    ]
    of_classes = [text for _, text in sorted(classes, key=lambda each: each[0])]
    return "\n".join([*parts, "## Functions\n", *functions, "## Classes\n", *of_classes])


_FIRST = {name: place for place, name in enumerate(("Session", "TrainingRun", "RunRequest"))}


def client_page() -> str:
    """Return the page of the thin client."""
    parts = [
        "# ignite_tf_magic.client\n",
        "```python\nfrom ignite_tf_magic.client import connect\n\n"
        'with connect() as client:\n    client.cache("DIGITS").get(0)\n```\n',
        "Rows by key, scans, transactions; `session.client` is one. `follow` reads rows as they come.\n",
        "## Client\n",
        _auto("ignite_tf_magic.client.client", "connect"),
        _auto("ignite_tf_magic.client.client", "Client"),
        "## Cache\n",
        _auto("ignite_tf_magic.client.client", "Cache"),
        "## follow\n",
        _auto(following.__name__, "follow"),
        _auto(following.__name__, "Follow"),
    ]
    return "\n".join(parts)


def errors_page() -> str:
    """Return the page of exceptions: the tree, then each."""
    own = [
        each for each in vars(errors).values() if inspect.isclass(each) and each.__module__ == errors.__name__
    ]

    def tree(of: type, depth: int = 0) -> Iterator[str]:
        built_in = [
            each.__name__ for each in of.__bases__ if each.__module__ == "builtins" and each is not Exception
        ]
        yield "  " * depth + of.__name__ + (f"  (also {', '.join(built_in)})" if built_in else "")
        for each in own:
            if each.__bases__[0] is of:
                yield from tree(each, depth + 1)

    parts = [
        "# Errors\n",
        "```python\nfrom ignite_tf_magic import IgniteTfError\n\ntry:\n    ...\nexcept IgniteTfError as error:\n"
        "    print(error)\n```\n",
        "A message says what was tried, on what, what came back and what to do next. The most likely ones, by their "
        "words: [Troubleshooting](../troubleshooting.md).\n",
        block("\n".join(tree(errors.IgniteTfError))),
        *(_auto(errors.__name__, each.__name__, members=False) for each in own),
    ]
    return "\n".join(parts)


def _auto(module: str, name: str, *, members: bool = True) -> str:
    """Return the directive by which Sphinx takes a thing's words from its docstring."""
    is_known = not module.startswith(_NEEDS_TENSORFLOW)
    is_class = inspect.isclass(getattr(import_module(module), name)) if is_known else name[0].isupper()
    lines = [f".. {'autoclass' if is_class else 'autofunction'}:: {module}.{name}"]
    if is_class and members:
        lines += ["   :members:", "   :inherited-members: Dataset, DatasetV2, Exception, object, tuple"]
    return "\n".join(["```{eval-rst}", *lines, "```\n"])


_NEEDS_TENSORFLOW = (
    "ignite_tf_magic.dataset.ignite",
    "ignite_tf_magic.dataset.paged",
    "ignite_tf_magic.training.",
)
