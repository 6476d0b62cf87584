"""Names of arguments and keys in a framework's source, read as text: nothing of a framework is imported or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml

from simulator.frameworks.flags import Flag, Takes

_KEY_CALL = re.compile(r"""\b(?:cfg|config|optim|model)\.get\(\s*['"]([A-Za-z_]\w*)['"]""")
_CONSTANT = re.compile(r"""^[A-Z_0-9]+ = ["']([a-z][a-z_0-9]*)["']""", re.MULTILINE)
_MODEL_FIELD = re.compile(r"""^    ([a-z_0-9]+): .*""", re.MULTILINE)
_ALIAS = re.compile(r"""alias=["']([a-z_0-9]+)["']""")


def _found(name: str, takes: Takes = "value", default: str = "") -> Flag:
    """A flag that nobody has classified."""
    return Flag("", takes, name=name, effect="", default=default)


def _constant(node: ast.expr | None) -> str:
    """A default as text; empty where the code computes it."""
    if isinstance(node, ast.Constant) and node.value not in (None, ""):
        return str(node.value)
    return ""


def _calls(text: str, _root: Path) -> Iterator[Flag]:
    """`parser.add_argument("--name", ...)`, every spelling."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "add_argument":
            continue
        words = {word.arg: word.value for word in node.keywords if word.arg}
        action, count = _constant(words.get("action")), _constant(words.get("nargs"))
        takes: Takes = "switch" if action.startswith("store_") else "list" if count in ("*", "+") else "value"
        takes = "optional" if count == "?" else takes
        default = "" if takes == "switch" else _constant(words.get("default"))
        for argument in node.args:
            name = _constant(argument)
            if name.startswith("--") and len(name) > 3:
                yield _found(name.lstrip("-").replace("-", "_"), takes, default)


def _dataclasses(tree: ast.AST) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(mark) for mark in node.decorator_list):
            yield node


def _field_default(node: ast.expr | None) -> str:
    if isinstance(node, ast.Call):
        return next((_constant(word.value) for word in node.keywords if word.arg == "default"), "")
    return _constant(node)


def _fields(text: str, _root: Path) -> Iterator[Flag]:
    """Fields of every dataclass of the file."""
    for cls in _dataclasses(ast.parse(text)):
        yield from _fields_of(cls)


def _fields_of(cls: ast.ClassDef) -> Iterator[Flag]:
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = ast.unparse(node.annotation)
            takes: Takes = "optional" if "bool" in kind else "list" if "List" in kind or "list" in kind else "value"
            yield _found(node.target.id, takes, _field_default(node.value))


def _lists(text: str, _root: Path) -> Iterator[Flag]:
    """`("name", type, default, "comment")` in lists of a class."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Tuple) and len(node.elts) == 4 and isinstance(node.elts[0], ast.Constant):
            name, kind, default, _ = node.elts
            word = ast.unparse(kind)
            takes: Takes = "optional" if word == "bool" else "list" if "List" in word else "value"
            yield _found(_constant(name), takes, _constant(default))


def _wanted(tree: ast.AST) -> dict[str, set[str]]:
    """Names of the dataclasses that factories take, with the fields that they leave out."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id.endswith("Factory") and node.args and isinstance(node.args[0], ast.Name):
            excluded = {_constant(x) for word in node.keywords for x in ast.walk(word.value) if isinstance(x, ast.expr)}
            found.setdefault(node.args[0].id, set()).update(excluded - {""})
    return found


def _factory(text: str, root: Path) -> Iterator[Flag]:
    """Fields of the dataclasses that a factory turns into flags: `no_x` for what is on by default."""
    wanted = _wanted(ast.parse(text))
    classes: dict[str, ast.ClassDef] = {}
    for path in sorted(root.glob("megatron/**/*.py")):
        source = path.read_text(encoding="utf-8", errors="replace")
        if "@dataclass" in source:
            classes |= {cls.name: cls for cls in _dataclasses(ast.parse(source))}
    for name, excluded in wanted.items():
        for flag in _inherited(classes, name):
            if flag.name in excluded:
                continue
            if flag.kind == "optional":
                shown = f"no_{flag.name}" if flag.default == "True" else flag.name
                yield _found(shown, "switch")
            yield flag if flag.kind != "optional" else _found(flag.name, "switch")


def _inherited(classes: Mapping[str, ast.ClassDef], name: str) -> Iterator[Flag]:
    cls = classes.get(name)
    if cls is None:
        return
    for base in cls.bases:
        if isinstance(base, ast.Name):
            yield from _inherited(classes, base.id)
    yield from _fields_of(cls)


def _sections(text: str, _root: Path) -> Iterator[Flag]:
    """Fields of the dataclasses that the job's own has, under their section's name."""
    classes = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}
    if "JobConfig" in classes:
        yield from _section(classes, classes["JobConfig"], "")


def _section(classes: Mapping[str, ast.ClassDef], cls: ast.ClassDef, prefix: str) -> Iterator[Flag]:
    flags = {flag.name: flag for flag in _fields_of(cls)} if list(_dataclasses(ast.Module([cls], []))) else {}
    for node in cls.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, kind = node.target.id, ast.unparse(node.annotation)
        if kind in classes:
            yield from _section(classes, classes[kind], f"{prefix}{name}.")
        elif name in flags:
            yield replace(flags[name], name=f"{prefix}{name}")


def _files(text: str, _root: Path) -> Iterator[Flag]:
    """Keys of a configuration file, the last part of each."""
    yield from _keys(yaml.safe_load(re.sub(r"!\S+", "", text)))


def _keys(value: object) -> Iterator[Flag]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict):
                yield from _keys(inner)
            else:
                shown = "" if inner is None or isinstance(inner, list) or "$" in str(inner) else str(inner)
                takes: Takes = "optional" if isinstance(inner, bool) else "list" if isinstance(inner, list) else "value"
                yield _found(str(key), takes, shown)


def _models(text: str, _root: Path) -> Iterator[Flag]:
    """Constants that name keys, and fields with their other names."""
    yield from map(_found, (*_CONSTANT.findall(text), *_MODEL_FIELD.findall(text), *_ALIAS.findall(text)))


def _reads(text: str, _root: Path) -> Iterator[Flag]:
    """Calls that read a key."""
    yield from map(_found, _KEY_CALL.findall(text))


CALLS, FIELDS, FACTORY, LISTS = "calls", "fields", "factory", "lists"
SECTIONS, FILES, READS, MODELS = "sections", "files", "reads", "models"
FINDERS: Final[Mapping[str, Callable[[str, Path], Iterator[Flag]]]] = {
    CALLS: _calls,
    FIELDS: _fields,
    FACTORY: _factory,
    LISTS: _lists,
    SECTIONS: _sections,
    FILES: _files,
    READS: _reads,
    MODELS: _models,
}
"""How a file defines names: parser calls, fields of dataclasses, fields of those dataclasses that a factory turns into
flags, lists of tuples that a decorator turns into fields, sections of dataclasses (`training.seq_len`), the keys of the
configuration files that a framework ships, calls that read a key, constants and fields of models. Each takes the file's
text and the top of the checkout."""
