"""Reader of InternVL's and LLaVA's training programs, by translation into the words of Hugging Face's Trainer.

Read at OpenGVLab/InternVL 2410d1d (`internvl_chat/internvl/train/internvl_chat_{finetune,pretrain,mpo}.py`,
`internvl_chat_llava/llava/train/train.py`); models and their parts stand in `variants.yaml`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.framework import Framework, LaunchForm, started
from simulator.frameworks.logs import note_samples
from simulator.frameworks.models import of_parts
from simulator.frameworks.trl.framework import purposed_run
from simulator.question.recipe import Recipe

_PROGRAM: Final = r"internvl/train/internvl_chat_(?:finetune|pretrain|mpo|dpo)\.py"
_DEFAULTS: Final = ("grad_checkpoint=true", "attn_implementation=flash_attention_2")
_LLAVA: Final = r"llava/train/train(?:_mem|_xformers)?(?:_custom)?\.py"
_ENCODER: Final = re.compile(r"internvit-\w+|$")


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch; preferences are trained on by TRL's trainer, with a frozen copy."""
    kind = "dpo" if launch.script.text.endswith(("mpo.py", "dpo.py")) else ""
    packed = arguments.switch("packed", "use_packed_ds")
    length = "max_packed_tokens" if packed else "max_seq_length"
    arguments.add_defaults((*_DEFAULTS, f"{length}=8192"), launch.line)
    if packed:
        arguments.entries["max_seq_length"] = arguments.entries.pop("max_packed_tokens")
    else:
        note_samples(arguments, "max_seq_length")
    text, sees = arguments.entry("llm_path"), arguments.entry("vision_path")
    if text is not None and sees is not None:  # put together to a model that has a name of both
        name = f"{text.text.rstrip('/').rpartition('/')[2]}+{_ENCODER.findall(sees.text.lower())[0]}"
        arguments.add_defaults([f"model_name_or_path={name}"], launch.line)
    if arguments.integer("lora_rank", "use_llm_lora", low=0):
        arguments.entries["lora_rank"] = arguments.entries.pop("use_llm_lora")
    decoder = arguments.has("lora_rank") or not arguments.switch("decoder", "freeze_llm")
    # Gradients pass a frozen language model as they pass one with adapters.
    arguments.add_defaults([] if decoder else ["lora_rank=1"], launch.line)
    frozen = arguments.switch("encoder", "freeze_backbone")
    encoder = arguments.integer("encoder", "use_backbone_lora", low=0) or (None if frozen else 0)
    projector = not arguments.switch("projector", "freeze_mlp")
    run = purposed_run(arguments, kind, deepspeed=add_deepspeed(arguments, launch), padded=False)
    if arguments.has("split_annotations", "use_custom_flash_attn"):
        # internvl_chat_gpt_oss with transformers 4.55 and DeepSpeed: logits, their shifted copy, the log-softmax and
        # its gradient are of 16 bits (modeling_internvl_chat.py, requirements.txt).
        run = replace(run, options={"loss_bytes_per_logit": "8", **run.options})
    return of_parts(arguments, run, encoder, projector=projector, decoder=decoder)


def read_llava(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch of LLaVA, which never trains the encoder."""
    arguments.add_defaults(("model_max_length=512", "attn_implementation=flash_attention_2"), launch.line)
    text, sees = arguments.entry("model_name_or_path"), arguments.entry("vision_tower")
    if text is not None and sees is not None:
        name = "+".join(entry.text.rstrip("/").rpartition("/")[2] for entry in (text, sees))
        arguments.entries.pop("model_name_or_path")
        arguments.add_defaults([f"model_name_or_path={name}"], text.value_line)
    if arguments.switch("decoder", "freeze_backbone"):
        arguments.not_modelled("a frozen language model without its output layer is not priced", "freeze_backbone")
    decoder = not arguments.any_switch("decoder", "tune_mm_mlp_adapter", "freeze_llm")
    adapters = arguments.switch("lora_rank", "lora_enable")
    if not adapters:
        arguments.entries.pop("lora_r", None)
    usual = ["lora_r=64", "lora_dropout=0.05"] if adapters else [] if decoder else ["lora_r=1"]
    arguments.add_defaults(usual, launch.line)
    if arguments.text("quantization", "bits") == "4":
        arguments.add_defaults(["load_in_4bit=true", "use_bnb_nested_quant=true"], launch.line)
    projector = not arguments.switch("projector", "freeze_mm_mlp_adapter")
    run = purposed_run(arguments, "", deepspeed=add_deepspeed(arguments, launch))
    return of_parts(arguments, run, None, projector=projector, decoder=decoder)


FRAMEWORK: Final = Framework(
    title="InternVL",
    profile="torch",
    tables=("internvl", "transformers", "deepspeed"),
    launches=(
        LaunchForm("internvl-shell", 9, started(_PROGRAM), read),
        LaunchForm("llava-shell", 9, started(_LLAVA), read_llava, tables=("llava", "transformers", "deepspeed")),
    ),
)
