"""Names of a framework's arguments, out of a checkout, into the table that the readers use.

    python tools/flag_names.py megatron ~/Megatron-LM --version core_v0.19.0

Rows that are already classified keep their class; new ones are written with an empty class and listed, and the tests
fail until each is `priced`, `no_effect` or `not_modelled`. Run older versions first: `first` and `last` follow the
order.
"""

from __future__ import annotations

import argparse
import ast
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

TABLES = Path(__file__).resolve().parents[1] / "simulator" / "recipes" / "flags"
COLUMNS = ("name", "kind", "weight", "takes", "default", "what", "file", "first", "last")
KEPT = ("kind", "weight", "takes", "what", "first")
"""What a person decides, and the oldest version: another version read does not change them."""
CALLS, FIELDS, FACTORY, LISTS = "calls", "fields", "factory", "lists"
SOURCES: dict[str, tuple[tuple[str, str], ...]] = {
    "megatron": (
        ("megatron/arguments.py", CALLS),
        ("megatron/training/arguments.py", CALLS),
        ("megatron/training/arguments.py", FACTORY),
        ("megatron/post_training/arguments.py", CALLS),
        ("pretrain_*.py", CALLS),
    ),
    "mindspeed": (
        ("mindspeed/arguments.py", CALLS),
        ("mindspeed/features_manager/**/*.py", CALLS),
        ("modellink/arguments.py", CALLS),
        ("modellink/training/arguments.py", CALLS),
        ("mindspeed_llm/arguments.py", CALLS),
        ("mindspeed_llm/training/arguments.py", CALLS),
        ("mindspeed_llm/features_manager/**/*.py", CALLS),
        ("mindspeed_llm/tasks/checkpoint/convert_param.py", CALLS),
    ),
    "flagscale": (
        ("megatron/arguments.py", CALLS),
        ("megatron/megatron/arguments.py", CALLS),
        ("megatron/megatron/training/arguments.py", CALLS),
        ("flagscale/backends/Megatron-LM/megatron/training/arguments.py", CALLS),
        ("flagscale/train/arguments.py", CALLS),
    ),
    "megatron_deepspeed": (("megatron/arguments.py", CALLS),),
    "pai": (("megatron_patch/arguments.py", CALLS),),
    "paddlenlp": (
        ("paddlenlp/trainer/training_args.py", FIELDS),
        ("paddlenlp/trainer/auto_training_args.py", FIELDS),
        ("paddlenlp/transformers/configuration_utils.py", LISTS),
        ("paddlenlp/trl/*.py", FIELDS),
        ("llm/utils/argument.py", FIELDS),
        ("llm/run_*.py", FIELDS),
        ("llm/alignment/*/run_*.py", FIELDS),
    ),
    "paddleformers": (
        ("paddleformers/trainer/training_args.py", FIELDS),
        ("paddleformers/transformers/configuration_utils.py", LISTS),
        ("paddleformers/cli/hparams/*.py", FIELDS),
        ("erniekit/hparams/*.py", FIELDS),
        ("erniekit/train/**/*.py", FIELDS),
    ),
}
"""Files that define arguments, from the top of the checkout, and how: parser calls, fields of dataclasses, fields of
those dataclasses that a factory turns into flags, or lists of tuples that a decorator turns into fields."""
FORKS = {"flagscale": "megatron", "megatron_deepspeed": "megatron"}
"""Frameworks that carry another's definitions: only what that one's table lacks is theirs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    name: str
    kind: str = ""
    weight: str = ""
    takes: str = "value"
    default: str = ""
    what: str = ""
    file: str = ""
    first: str = ""
    last: str = ""


def _constant(node: ast.expr | None) -> str:
    """A default as text; empty where the code computes it."""
    if isinstance(node, ast.Constant) and node.value not in (None, ""):
        return str(node.value)
    return ""


def _calls(tree: ast.AST) -> Iterator[Row]:
    """`parser.add_argument("--name", ...)`, every spelling."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "add_argument":
            continue
        words = {word.arg: word.value for word in node.keywords if word.arg}
        action, count = _constant(words.get("action")), _constant(words.get("nargs"))
        takes = "switch" if action.startswith("store_") else "list" if count in ("*", "+") else "value"
        takes = "optional" if count == "?" else takes
        default = "" if takes == "switch" else _constant(words.get("default"))
        for argument in node.args:
            text = _constant(argument)
            if text.startswith("--") and len(text) > 3:
                yield Row(_plain(text), takes=takes, default=default)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _dataclasses(tree: ast.AST) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(mark) for mark in node.decorator_list):
            yield node


def _field_default(node: ast.expr | None) -> str:
    if isinstance(node, ast.Call):
        return next((_constant(word.value) for word in node.keywords if word.arg == "default"), "")
    return _constant(node)


def fields_in(tree: ast.AST) -> Iterator[Row]:
    """Fields of every dataclass of the file."""
    for cls in _dataclasses(tree):
        yield from _fields_of(cls)


def _fields_of(cls: ast.ClassDef) -> Iterator[Row]:
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = ast.unparse(node.annotation)
            takes = "optional" if "bool" in kind else "list" if "List" in kind or "list" in kind else "value"
            yield Row(node.target.id.lower(), takes=takes, default=_field_default(node.value))


def _lists(tree: ast.AST) -> Iterator[Row]:
    """`("name", type, default, "comment")` in lists of a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == 4 and isinstance(node.elts[0], ast.Constant):
            name, kind, default, _ = node.elts
            takes = "optional" if ast.unparse(kind) == "bool" else "list" if "List" in ast.unparse(kind) else "value"
            yield Row(_constant(name).lower(), takes=takes, default=_constant(default))


def _wanted(tree: ast.AST) -> dict[str, set[str]]:
    """Names of the dataclasses that factories take, with the fields that they leave out."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id.endswith("Factory") and node.args and isinstance(node.args[0], ast.Name):
            excluded = {_constant(x) for word in node.keywords for x in ast.walk(word.value)} - {""}
            found.setdefault(node.args[0].id, set()).update(excluded)
    return found


def _factory(tree: ast.AST, root: Path) -> Iterator[Row]:
    """Fields of the dataclasses that a factory turns into flags: `no_x` for what is on by default."""
    wanted = _wanted(tree)
    classes: dict[str, ast.ClassDef] = {}
    for path in sorted(root.glob("megatron/**/*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "@dataclass" in text:
            classes |= {cls.name: cls for cls in _dataclasses(ast.parse(text))}
    for name, excluded in wanted.items():
        for row in _inherited(classes, name):
            if row.name in excluded:
                continue
            if row.takes == "optional":
                shown = f"no_{row.name}" if row.default == "True" else row.name
                yield replace(row, name=shown, takes="switch", default="")
            yield row if row.takes != "optional" else replace(row, takes="switch", default="")


def _inherited(classes: dict[str, ast.ClassDef], name: str) -> Iterator[Row]:
    cls = classes.get(name)
    if cls is None:
        return
    for base in cls.bases:
        if isinstance(base, ast.Name):
            yield from _inherited(classes, base.id)
    yield from _fields_of(cls)


def names(framework: str, root: Path, version: str) -> dict[str, Row]:
    """Every argument that a checkout defines, the first definition of each."""
    found: dict[str, Row] = {}
    for pattern, how in SOURCES[framework]:
        for path in sorted(root.glob(pattern)):
            tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
            read = {CALLS: _calls, FIELDS: fields_in, LISTS: _lists, FACTORY: partial(_factory, root=root)}[how]
            file = path.relative_to(root).as_posix()
            for row in read(tree):
                found.setdefault(row.name, replace(row, file=file, first=version, last=version))
    return found


def merged(old: dict[str, Row], new: dict[str, Row]) -> dict[str, Row]:
    """The table with a version read: classes kept, the newest definition of each name."""
    table = dict(old)
    for name, row in new.items():
        kept = old.get(name)
        if kept is not None:
            table[name] = replace(row, **{column: getattr(kept, column) for column in KEPT})
        else:
            table[name] = row
    return table


def read(path: Path) -> dict[str, Row]:
    """A table as it stands."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as stream:
        return {line["name"]: Row(**line) for line in csv.DictReader(stream)}


def write(path: Path, table: dict[str, Row]) -> None:
    """A table, by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([getattr(table[name], column) for column in COLUMNS] for name in sorted(table))


def main() -> int:
    """Merge one checkout into its table; 1 where names wait for a class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=sorted(SOURCES))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--version", required=True, help="tag or commit of the checkout")
    asked = parser.parse_args()
    path = TABLES / f"{asked.framework}.csv"
    found = names(asked.framework, asked.checkout, asked.version)
    base = read(TABLES / f"{FORKS.get(asked.framework)}.csv")
    found = {name: row for name, row in found.items() if name not in base}
    if not found:
        parser.error(f"{asked.checkout}: none of the files that define arguments of {asked.framework}")
    table = merged(read(path), found)
    write(path, table)
    open_names = sorted(name for name, row in table.items() if not row.kind)
    sys.stdout.write(f"{len(found)} names read, {len(table)} in {path.name}, {len(open_names)} to classify\n")
    sys.stdout.writelines(f"  {name}  ({table[name].file})\n" for name in open_names)
    return 1 if open_names else 0


if __name__ == "__main__":
    sys.exit(main())
