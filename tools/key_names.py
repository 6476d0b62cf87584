"""Names of a framework's configuration keys, out of a checkout, into the table that the readers use.

    python -m tools.key_names torchtitan ~/torchtitan --version v0.2.0

As `flag_names.py`, for frameworks that are told by keys instead of flags: sections of dataclasses (`training.seq_len`),
fields of dataclasses, calls that read a key, or the keys of the configuration files that a framework ships.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from tools.flag_names import TABLES, Row, fields_in, merged, read, write

SECTIONS, FIELDS, FILES, READS, MODELS = "sections", "fields", "files", "reads", "models"
SOURCES: dict[str, tuple[tuple[str, str], ...]] = {
    "torchtitan": (("torchtitan/config_manager.py", SECTIONS), ("torchtitan/config/job_config.py", SECTIONS)),
    "nemo": (
        ("examples/nlp/language_modeling/conf/megatron_*.yaml", FILES),
        ("examples/nlp/language_modeling/tuning/conf/megatron_gpt*.yaml", FILES),
        ("nemo/collections/nlp/models/language_modeling/megatron_base_model.py", READS),
        ("nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py", READS),
        ("nemo/collections/nlp/parts/megatron_trainer_builder.py", READS),
    ),
    "bridge": (
        ("src/megatron/bridge/training/config.py", FIELDS),
        ("src/megatron/bridge/training/mixed_precision.py", FIELDS),
        ("src/megatron/bridge/models/gpt_provider.py", FIELDS),
    ),
    "deepspeed": (("deepspeed/runtime/zero/*.py", MODELS), ("deepspeed/runtime/constants.py", MODELS)),
    "transformers": (("src/transformers/training_args.py", FIELDS),),
    "llamafactory": (("src/llamafactory/hparams/*.py", FIELDS),),
    "swift": (
        ("swift/arguments/**/*.py", FIELDS),
        ("swift/trainers/arguments.py", FIELDS),
        ("swift/megatron/arguments/*.py", FIELDS),
        ("swift/rlhf_trainers/arguments.py", FIELDS),
    ),
    "neox": (("megatron/neox_arguments/neox_args.py", FIELDS), ("megatron/neox_arguments/deepspeed_args.py", FIELDS)),
    "primus": (
        ("primus/configs/modules/megatron/*.yaml", FILES),
        ("primus/configs/modules/*.yaml", FILES),
        ("primus/configs/models/megatron/*.yaml", FILES),
    ),
}
"""Files that define keys, from the top of the checkout, and how."""
_KEY_CALL = re.compile(r"""\b(?:cfg|config|optim|model)\.get\(\s*['"]([A-Za-z_]\w*)['"]""")
_CONSTANT = re.compile(r"""^[A-Z_0-9]+ = ["']([a-z][a-z_0-9]*)["']""", re.MULTILINE)
_MODEL_FIELD = re.compile(r"""^    ([a-z_0-9]+): .*""", re.MULTILINE)
_ALIAS = re.compile(r"""alias=["']([a-z_0-9]+)["']""")


def _sections(text: str) -> Iterator[Row]:
    """Fields of the dataclasses that the job's own has, under their section's name."""
    classes = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}
    yield from _section(classes, classes["JobConfig"], "")


def _section(classes: dict[str, ast.ClassDef], cls: ast.ClassDef, prefix: str) -> Iterator[Row]:
    rows = {row.name: row for row in fields_in(ast.Module([cls], []))}
    for node in cls.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, kind = node.target.id, ast.unparse(node.annotation)
        if kind in classes:
            yield from _section(classes, classes[kind], f"{prefix}{name}.")
        elif name in rows:
            yield replace(rows[name], name=f"{prefix}{name}")


def _files(text: str) -> Iterator[Row]:
    """Keys of a configuration file, the last part of each."""
    plain = re.sub(r"!\S+", "", text)
    yield from _keys(yaml.safe_load(plain))


def _keys(value: object) -> Iterator[Row]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict):
                yield from _keys(inner)
            else:
                shown = "" if inner is None or isinstance(inner, list) or "$" in str(inner) else str(inner)
                takes = "optional" if isinstance(inner, bool) else "list" if isinstance(inner, list) else "value"
                yield Row(str(key), takes=takes, default=shown)


def _models(text: str) -> Iterator[Row]:
    """Constants that name keys, and fields with their other names."""
    names = [*_CONSTANT.findall(text), *_MODEL_FIELD.findall(text), *_ALIAS.findall(text)]
    yield from (Row(name) for name in names)


def names(framework: str, root: Path, version: str) -> dict[str, Row]:
    """Every key that a checkout defines, the first definition of each."""
    found: dict[str, Row] = {}
    for pattern, how in SOURCES[framework]:
        for path in sorted(root.glob(pattern)):
            text = path.read_text(encoding="utf-8", errors="replace")
            if how == SECTIONS and "class JobConfig" not in text:
                continue
            rows = {
                SECTIONS: _sections,
                FILES: _files,
                MODELS: _models,
                FIELDS: lambda text: fields_in(ast.parse(text)),
                READS: lambda text: (Row(name) for name in _KEY_CALL.findall(text)),
            }[how](text)
            file = path.relative_to(root).as_posix()
            for row in rows:
                found.setdefault(
                    row.name.lower(), replace(row, name=row.name.lower(), file=file, first=version, last=version)
                )
    return found


def main() -> int:
    """Merge one checkout into its table; 1 where names wait for a class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=sorted(SOURCES))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--version", required=True, help="tag or commit of the checkout")
    asked = parser.parse_args()
    path = TABLES / f"{asked.framework}.csv"
    found = names(asked.framework, asked.checkout, asked.version)
    if not found:
        parser.error(f"{asked.checkout}: none of the files that define keys of {asked.framework}")
    table = merged(read(path), found)
    write(path, table)
    open_names = sorted(name for name, row in table.items() if not row.kind)
    sys.stdout.write(f"{len(found)} names read, {len(table)} in {path.name}, {len(open_names)} to classify\n")
    sys.stdout.writelines(f"  {name}  ({table[name].file})\n" for name in open_names)
    return 1 if open_names else 0


if __name__ == "__main__":
    sys.exit(main())
