"""What JSON a function makes, read in its source: dicts by their keys, values by the types of what they come from."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ignite_tf_magic import session
from ignite_tf_magic.session import RunState

PACKAGE = Path(__file__).parent.parent / "ignite_tf_magic"
A_RUN = "{a run, as in ps}"


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def shown(shape: Any, indent: int = 0) -> str:
    gap = "  " * (indent + 1)
    if isinstance(shape, dict):
        inner = ",\n".join(f'{gap}"{key}": {shown(value, indent + 1)}' for key, value in shape.items())
        return "{\n" + inner + "\n" + "  " * indent + "}"
    if isinstance(shape, list):
        return f"[{shown(shape[0], indent)}, ...]"
    if isinstance(shape, tuple):
        return f"{shown(shape[0], indent)} | null"
    return str(shape)


def shape_of(
    source: str, types: Mapping[str, str] | None = None, told: Mapping[str, str] | None = None
) -> Any:
    """Return what a function makes for JSON, or a dataclass that is written as it is.

    Args:
        source: "module:function", "module:Class" or "module:Class.method", from the package's name on.
        types: Classes of variables of the function that no annotation tells.
        told: What values are, by their keys, where nothing tells.
    """
    module, _, name = source.partition(":")
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    owner, _, method = name.partition(".")
    function = _named(parsed(path).body, owner)
    known = {variable: _anywhere(kind) for variable, kind in (types or {}).items()}
    if method:
        known["self"] = _fields_of(module, owner)
        function = _named(function.body, method)
    elif isinstance(function, ast.ClassDef):
        return {key: _type_words(kind) for key, kind in _fields_of(module, owner).items()}
    return _Shape(module, known, told or {}).of_function(function)


def _named(body: list[ast.stmt], name: str) -> Any:
    return next(each for each in body if getattr(each, "name", "") == name)


def _fields_of(module: str, name: str) -> dict[str, str]:
    return _field_types(import_module(f"ignite_tf_magic.{module}"), name)


def _field_types(module: Any, name: str) -> dict[str, str]:
    holder = getattr(module, name, None) or getattr(session, name, None)
    if not is_dataclass(holder):
        return {}
    found = {each.name: str(each.type) for each in fields(holder)}
    for base in holder.__mro__:
        for key, value in vars(base).items():
            if (
                isinstance(value, property)
                and value.fget is not None
                and "return" in value.fget.__annotations__
            ):
                found.setdefault(key, str(value.fget.__annotations__["return"]))
    return found


def _type_words(kind: str) -> str:
    """Write a type as JSON has it."""
    kind = re.sub(r"\b(tuple|Sequence|list)\[([\w |]+?)(, \.\.\.)?\]", r"[\2, ...]", kind).replace(
        "None", "null"
    )
    kind = kind.replace("Path", "str").replace("datetime", "time").replace("'", "").replace('"', "")
    if kind == "RunState":
        return " | ".join(state.value for state in RunState)
    return "any" if kind in ("Any", "object") else kind


class _Shape:
    """Reads in the source of a function what the JSON is that it makes."""

    def __init__(self, module: str, types: dict[str, dict[str, str]], told: Mapping[str, str]) -> None:
        self._module, self._types, self._told = module, types, told
        self._values: dict[str, ast.expr] = {}
        self._more: dict[str, Any] = {}

    def of_function(self, function: Any) -> Any:
        loaded = import_module(f"ignite_tf_magic.{self._module}")
        for argument in [*function.args.args, *function.args.kwonlyargs]:
            if argument.annotation is not None:
                match = re.search(r"\w+(?=\]?$)", ast.unparse(argument.annotation))
                name = match[0] if match else ""
                self._types.setdefault(argument.arg, _field_types(loaded, name) or _anywhere(name))
        wanted: list[ast.expr] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._values.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.DictComp):
                renamed = getattr(loaded, ast.unparse(node.value.generators[0].iter).removesuffix(".items()"))
                self._more |= dict.fromkeys(renamed.values(), "any")
            elif isinstance(node, ast.Return) and node.value is not None:
                wanted.append(node.value)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "say_json":
                wanted.append(node.args[1])
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "json.dumps":
                wanted.append(node.args[0])
        return self.of(wanted[0])

    def of(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Dict):
            return self._of_dict(node)
        if isinstance(node, ast.ListComp):
            self._learn(node)
            return [self.of(node.elt)]
        if isinstance(node, ast.DictComp):
            return "{name: value, ...}"
        if isinstance(node, ast.Name) and isinstance(self._values.get(node.id), ast.Dict | ast.ListComp):
            return self.of(self._values[node.id])
        if isinstance(node, ast.IfExp):
            if isinstance(node.body, ast.Constant) and node.body.value is None:
                return self._maybe(self.of(node.orelse), node.body)
            if (
                isinstance(node.body, ast.Constant)
                and isinstance(node.orelse, ast.Constant)
                and node.orelse.value
            ):
                return f"{node.body.value} | {node.orelse.value}"
            return self._maybe(self.of(node.body), node.orelse)
        if isinstance(node, ast.BoolOp):
            first, *_, last = node.values
            if isinstance(node.op, ast.And):
                shape = self.of(last)
                return (shape,) if isinstance(shape, dict) else f"{shape} | null"
            return self._maybe(self.of(first), last)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        return self._leaf(node)

    def _maybe(self, shape: Any, other: ast.expr) -> Any:
        is_null = isinstance(other, ast.Constant) and other.value is None
        if isinstance(shape, str) and is_null and not shape.endswith("null"):
            return f"{shape} | null"
        return (shape,) if isinstance(shape, dict) and is_null else shape

    def _learn(self, node: ast.ListComp) -> None:
        """Note what the items of a list are whose items a comprehension goes through."""
        over = node.generators[0]
        if not isinstance(over.target, ast.Name):
            return
        kind = self._type_of(over.iter)
        match = re.search(r"\[(\w+)", kind)
        name = match[1] if match else {"runs": "RunInfo", "pruned": "Pruned"}.get(ast.unparse(over.iter), "")
        loaded = import_module(f"ignite_tf_magic.{self._module}")
        self._types[over.target.id] = self._types.get(ast.unparse(over.iter)) or (
            _field_types(loaded, name) or _anywhere(name)
        )

    def _of_dict(self, node: ast.Dict) -> Any:
        found: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                name = str(ast.literal_eval(key))
                found[name] = self._told.get(name) or self.of(value)
            elif ast.unparse(value).startswith("run_as_json("):
                found |= shape_of("ui.run_views:run_as_json")
            else:
                inner = self.of(value)
                found |= inner if isinstance(inner, dict) else {}
                found |= self._more
        return found

    def _of_call(self, node: ast.Call) -> Any:
        called = ast.unparse(node.func)
        if called == "run_as_json":
            return A_RUN
        if called == "_column_as_json":
            return "{...}"
        if called == "asdict":
            return "{...}"
        if called in ("list", "dict", "sorted"):
            inner = self.of(node.args[0])
            if called == "dict":
                return "{name: value, ...}"
            return inner if isinstance(inner, str) and "[" in inner else "[str, ...]"
        if called.endswith("isoformat") or called == "_iso":
            return "time" if called != "_iso" else "time | null"
        if called in ("str", "round", "len", "sum"):
            return {"str": "str", "round": "float", "len": "int", "sum": "int"}[called]
        return "any"

    def _leaf(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant):
            return (
                f'"{node.value}"'
                if isinstance(node.value, str)
                else str(node.value).lower().replace("none", "null")
            )
        if isinstance(node, ast.Attribute) and node.attr == "value":
            kind = self._type_of(node.value)
            values = _enum_values(kind)
            return " | ".join(values) if values else "any"
        return _type_words(self._type_of(node)) or "any"

    def _type_of(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name):
                return self._types.get(node.value.id, {}).get(node.attr, "")
            outer = self._type_of(node.value).partition(" | ")[0]
            return _anywhere(outer).get(node.attr, "")
        return ""


def _anywhere(name: str) -> dict[str, str]:
    """Return the fields of a dataclass that some module of the package has by that name."""
    for module in ("session", "runs.record", "session.pruning", "training.records", "profiling.profile",
                   "profiling.column_numbers", "profiling.columns", "profiling.seen_fields", "tensorboard.record",
                   "igfs.fsck", "runs.logs.output",
                   "doctor.diagnosis"):  # fmt: skip
        if found := _field_types(import_module(f"ignite_tf_magic.{module}"), name):
            return found
    return {}


def _enum_values(kind: str) -> list[str]:
    name = kind.partition(" | ")[0]
    holder = getattr(session, name, None) if name in session.__all__ else None
    return (
        [str(each.value) for each in holder] if holder is not None and hasattr(holder, "__members__") else []
    )
