"""Reader of OpenRLHF's finetuning, preferences and reward models, in the words of Hugging Face's Trainer.

Read at v0.5.0 to v0.9.9 and 3c3be623 (`openrlhf/cli/train_{sft,dpo,rm}.py`, `openrlhf/utils/deepspeed/`,
`openrlhf/models/actor.py`), from where on names have sections: `--pretrain` became `--model.model_name_or_path`.
"""

from __future__ import annotations

import re
from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.trl.framework import purposed_run
from simulator.question.recipe import Recipe

_PROGRAM: Final = re.compile(r"(?:.*[./])?openrlhf[./]cli[./]train_(?:sft|dpo|rm)(?:\.py)?")
_USUAL: Final = (
    "train_batch_size=128",
    "zero_optimization.stage=2",
    "optimizer.type=Adam",
    "use_bnb_nested_quant=true",
)  # defaults, and what no flag changes: DeepSpeed's own Adam, on devices or the host


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch."""
    kind = launch.script.text.removesuffix(".py").rpartition("_")[2].removeprefix("sft")
    arguments.add_defaults((*_USUAL, f"max_length={512 if kind else 2048}"), launch.line)
    precision = arguments.text("precision", "param_dtype") or "bf16" * arguments.has("model.model_name_or_path")
    arguments.add_defaults([precision] if precision in ("bf16", "fp16") else [], launch.line)
    if not arguments.has("attn_implementation", "flash_attn"):
        flash = arguments.has("packing_samples") or arguments.has("model.model_name_or_path")
        arguments.add_defaults([f"attn_implementation={'flash_attention_2' if flash else 'eager'}"], launch.line)
        if not flash:
            message = "attn_implementation is absent: eager till v0.9.2, FlashAttention from then on; priced as eager"
            arguments.remark("activations-bound", "warning", message)
    if (arguments.text("optim", "optim") or "adam").lower() != "adam":
        arguments.not_modelled("DeepSpeed's Muon is not priced", "optim")
    return purposed_run(arguments, kind, deepspeed=True)


FRAMEWORK: Final = Framework(
    title="OpenRLHF",
    profile="torch",
    tables=("openrlhf", "transformers", "trl", "deepspeed"),
    launches=(LaunchForm("openrlhf-shell", 9, lambda launch: bool(_PROGRAM.fullmatch(launch.script.text)), read),),
)
