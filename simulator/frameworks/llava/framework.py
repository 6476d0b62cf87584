"""Reader of LLaVA's training program, by translation into the words of Hugging Face's Trainer.

Read at OpenGVLab/InternVL 2410d1d (`internvl_chat_llava/llava/train/train.py`), a copy of haotian-liu/LLaVA with
InternViT beside CLIP. The encoder is always frozen; models and their parts stand in `vision_models.yaml`.
"""

from __future__ import annotations

import re
from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.models import of_parts
from simulator.frameworks.trl.framework import purposed_run
from simulator.question.recipe import Recipe

_PROGRAM: Final = re.compile(r"llava/train/train(?:_mem|_xformers)?(?:_custom)?\.py$")


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch."""
    arguments.add_defaults(("model_max_length=512", "attn_implementation=flash_attention_2"), launch.line)
    text, sees = arguments.entry("model_name_or_path"), arguments.entry("vision_tower")
    if text is not None and sees is not None:  # put together to a model that has a name of both
        name = "+".join(entry.text.rstrip("/").rpartition("/")[2] for entry in (text, sees))
        arguments.entries.pop("model_name_or_path")
        arguments.add_defaults([f"model_name_or_path={name}"], text.value_line)
    projector_alone = arguments.any_switch("decoder", "tune_mm_mlp_adapter", "freeze_llm")
    if arguments.switch("lora_rank", "lora_enable"):
        arguments.add_defaults(["lora_r=64"], launch.line)
    else:
        arguments.entries.pop("lora_r", None)
    if arguments.text("quantization", "bits") == "4":
        arguments.add_defaults(["load_in_4bit=true", "use_bnb_nested_quant=true"], launch.line)
    # Gradients pass a frozen language model as they pass one with adapters.
    arguments.add_defaults(["lora_r=1"] if projector_alone else [], launch.line)
    projector = not arguments.switch("projector", "freeze_mm_mlp_adapter")
    run = purposed_run(arguments, "", deepspeed=add_deepspeed(arguments, launch))
    return of_parts(arguments, run, None, projector=projector, decoder=not projector_alone)


FRAMEWORK: Final = Framework(
    title="LLaVA",
    profile="torch",
    tables=("llava", "transformers", "deepspeed"),
    launches=(LaunchForm("llava-shell", 9, lambda launch: _PROGRAM.search(launch.script.text) is not None, read),),
)
