"""Names of a framework's arguments and keys, out of a checkout, into the table that the readers use.

    python -m tools.flag_names megatron ~/Megatron-LM --version core_v0.19.0
    python -m tools.flag_names torchtitan ~/torchtitan --version v0.2.2

Names that are already classified keep their class; new ones are written with an empty class and listed, and the tests
fail until each is `priced`, `no_effect` or `not_modelled`. Run older versions first: `first` and `last` follow the
order.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import replace
from pathlib import Path

from simulator.frameworks.flags import COLUMNS, Flag, is_harmless, table_file
from tools.definitions import CALLS, FACTORY, FIELDS, FILES, FINDERS, LISTS, MODELS, READS, SECTIONS

SOURCES: dict[str, tuple[tuple[str, ...], ...]] = {
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
    "trl": (
        *((f"trl/trainer/{name}_config.py", FIELDS) for name in ("sft", "dpo", "kto", "reward", "model")),
        ("trl/scripts/utils.py", FIELDS),
        ("trl/commands/cli_utils.py", FIELDS),
    ),
    "open_instruct": (("open_instruct/finetune.py", FIELDS), ("open_instruct/dpo_utils.py", FIELDS)),
    "oumi": (
        ("src/oumi/core/configs/params/model_params.py", FIELDS, "model"),
        ("src/oumi/core/configs/params/training_params.py", FIELDS, "training"),
        ("src/oumi/core/configs/params/peft_params.py", FIELDS, "peft"),
        ("src/oumi/core/configs/params/fsdp_params.py", FIELDS, "fsdp"),
        ("src/oumi/core/configs/params/deepspeed_params.py", FIELDS, "deepspeed"),
    ),
    "axolotl": (
        *((f"src/axolotl/utils/schemas/{name}.py", MODELS) for name in ("config", "model", "peft", "training")),
        *((f"src/axolotl/utils/schemas/{name}.py", MODELS) for name in ("deprecated", "multimodal", "integrations")),
        ("src/axolotl/utils/schemas/fsdp.py", MODELS, "fsdp_config"),
        ("src/axolotl/integrations/*/args.py", MODELS),
    ),
    "llm_foundry": (("llmfoundry/utils/config_utils.py", FIELDS),),
    "llamafactory": (("src/llamafactory/hparams/*.py", FIELDS),),
    "swift": (
        ("swift/arguments/**/*.py", FIELDS),
        ("swift/trainers/arguments.py", FIELDS),
        ("swift/rlhf_trainers/arguments.py", FIELDS),
    ),
    "megatron_swift": (("swift/megatron/arguments/*.py", FIELDS),),
    "neox": (("megatron/neox_arguments/neox_args.py", FIELDS), ("megatron/neox_arguments/deepspeed_args.py", FIELDS)),
    "primus": (
        ("primus/configs/modules/megatron/*.yaml", FILES),
        ("primus/configs/modules/*.yaml", FILES),
        ("primus/configs/models/megatron/*.yaml", FILES),
    ),
}
"""Files that define names, from the top of the checkout, how (the words of `FINDERS`), and the names' section."""
FORKS = {"flagscale": "megatron", "megatron_deepspeed": "megatron"}
"""Frameworks that carry another's definitions: only what that one's table lacks is theirs."""


def names(framework: str, root: Path, version: str) -> dict[str, Flag]:
    """Every name that a checkout defines, the first definition of each."""
    found: dict[str, Flag] = {}
    for pattern, how, *section in SOURCES[framework]:
        for path in sorted(root.glob(pattern)):
            text, file = path.read_text(encoding="utf-8", errors="replace"), path.relative_to(root).as_posix()
            for flag in FINDERS[how](text, root):
                name = ".".join((*section, flag.name.lower()))
                found.setdefault(name, replace(flag, name=name, file=file, first=version, last=version))
    return found


def merged(old: dict[str, Flag], new: dict[str, Flag]) -> dict[str, Flag]:
    """The table with a version read: the newest definition of each name, with what a person decides kept."""
    table = dict(old)
    for name, flag in new.items():
        kept = old.get(name)
        if kept is None:
            table[name] = flag
        else:
            table[name] = replace(kept, default=flag.default, file=flag.file, last=flag.last)
    return table


def read(path: Path) -> dict[str, Flag]:
    """A table as it stands, with what nobody has classified."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as stream:
        rows = ({field: line[column] for field, column in COLUMNS.items()} for line in csv.DictReader(stream))
        return {row["name"]: Flag(**row) for row in rows}  # type: ignore[arg-type]  # words are checked by the readers


def write(path: Path, table: dict[str, Flag]) -> None:
    """A table, by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS.values())
        writer.writerows([getattr(table[name], field) for field in COLUMNS] for name in sorted(table))


def main() -> int:
    """Merge one checkout into its table; 1 where names wait for a class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=sorted(SOURCES))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--version", required=True, help="tag or commit of the checkout")
    asked = parser.parse_args()
    path = table_file(asked.framework)
    found = names(asked.framework, asked.checkout, asked.version)
    base = read(table_file(FORKS[asked.framework])) if asked.framework in FORKS else {}
    old = read(path)
    together = tuple(name[:-1] for name in old if name.endswith("*"))  # rows of many names, `galore_*`
    known = {name for name in found if name.startswith(together) or is_harmless(name)} - old.keys()
    found = {name: flag for name, flag in found.items() if name not in known}
    found = {name: flag for name, flag in found.items() if name not in base}
    if not found:
        parser.error(f"{asked.checkout}: none of the files that define names of {asked.framework}")
    table = merged(old, found)
    write(path, table)
    open_names = sorted(name for name, flag in table.items() if not flag.effect)
    sys.stdout.write(f"{len(found)} names read, {len(table)} in {path.name}, {len(open_names)} to classify\n")
    sys.stdout.writelines(f"  {name}  ({table[name].file})\n" for name in open_names)
    return 1 if open_names else 0


if __name__ == "__main__":
    sys.exit(main())
