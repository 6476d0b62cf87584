"""Reader of InternVL's training programs, by translation into the words of Hugging Face's Trainer.

Read at 2410d1d (`internvl_chat/internvl/train/internvl_chat_{finetune,pretrain}.py`), whose defaults apply where a flag
is absent. `transformers.read` interprets the translated words; models and their parts stand in `vision_models.yaml`.
"""

from __future__ import annotations

import re
from typing import Final

from simulator.errors import UnsupportedError
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.transformers.read import note_samples, of_parts, trainer_run
from simulator.frameworks.values import known_value
from simulator.question.recipe import Recipe

_PROGRAM: Final = re.compile(r"internvl/train/internvl_chat_(finetune|pretrain|mpo|dpo)\.py$")
_DEFAULTS: Final = ("grad_checkpoint=true", "attn_implementation=flash_attention_2")
_ENCODER: Final = re.compile(r"internvit-\w+")


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts one of InternVL's programs."""
    return _PROGRAM.search(launch.script.text) is not None


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch. Raises UnsupportedError for training on preferences."""
    if _PROGRAM.search(launch.script.text)[1] in ("mpo", "dpo"):  # type: ignore[index]  # `is_launch` has matched it
        where = f"{arguments.file}:{launch.line}"
        raise UnsupportedError(f"{where}: InternVL's training on preferences has a frozen copy and losses not modelled")
    arguments.add_defaults(_DEFAULTS, launch.line)
    packed = arguments.switch("packed", "use_packed_ds")
    arguments.add_defaults([f"max_{'packed_tokens' if packed else 'seq_length'}=8192"], launch.line)
    if packed:
        arguments.entries["max_seq_length"] = arguments.entries.pop("max_packed_tokens")
    else:
        note_samples(arguments, "max_seq_length")
    _name_parts(arguments, launch.line)
    if arguments.integer("lora_rank", "use_llm_lora", low=0):
        arguments.entries["lora_rank"] = arguments.entries.pop("use_llm_lora")
    decoder = arguments.has("lora_rank") or not arguments.switch("decoder", "freeze_llm")
    if not decoder:  # its gradients pass the language model, as those of adapters do
        arguments.add("lora_rank", [known_value("1", launch.line)], launch.line)
    deepspeed = add_deepspeed(arguments, launch)
    encoder = not arguments.switch("encoder", "freeze_backbone") or bool(
        arguments.integer("encoder", "use_backbone_lora", low=0)
    )
    projector = not arguments.switch("projector", "freeze_mlp")
    return of_parts(arguments, trainer_run(arguments, deepspeed=deepspeed), encoder, projector, decoder)


def _name_parts(arguments: Arguments, line: int) -> None:
    """Name the model that a language model and an encoder, each of its own path, are put together to."""
    decoder, encoder = arguments.entry("llm_path"), arguments.entry("vision_path")
    if arguments.has("model_name_or_path") or decoder is None or encoder is None:
        return
    kind = _ENCODER.search(encoder.text.lower())
    name = f"{decoder.text.rstrip('/').rpartition('/')[2]}+{kind.group() if kind else encoder.text}"
    arguments.add("model_name_or_path", [known_value(name, line)], line)


FRAMEWORK: Final = Framework(
    title="InternVL",
    profile="torch",
    tables=("internvl", "transformers", "deepspeed"),
    launches=(LaunchForm("internvl-shell", 9, is_launch, read),),
)
