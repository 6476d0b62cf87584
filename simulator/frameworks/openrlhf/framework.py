"""Reader of OpenRLHF's `train_sft` and `train_dpo`, by translation into the words of Hugging Face's Trainer.

Read at 3c3be623, v0.11.0, with the names of flags before v0.10.2: `openrlhf/cli/train_{sft,dpo}.py`,
`openrlhf/{models,trainer,utils/deepspeed}`. DeepSpeed makes the optimizer and has its own value for what is `auto`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.framework import Framework, LaunchForm, started
from simulator.frameworks.logs import note_samples
from simulator.frameworks.models import load_model
from simulator.frameworks.transformers.read import preference, trainer_run
from simulator.question.recipe import Recipe

_PROGRAM: Final = r"(?:^|/)openrlhf[./]cli[./]train_(sft|dpo)(?:\.py)?"
_DEFAULTS: Final = (
    *("per_device_train_batch_size=8", "train_batch_size=128", "zero_optimization.stage=2"),
    *("target_modules=all-linear", "lora_dropout=0", "use_bnb_nested_quant=true"),
)
_ENGINE: Final = {"step_temporaries": "0", "loss_bytes_per_logit": "10"}
"""Fused Adam; fp32 logits, their gradient and its cast (`log_probs_from_logits` by flash-attn's kernel, 2.8)."""


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch: of single answers, or of pairs under a frozen copy, which adapters have too."""
    arguments.leave_sections("ds", "model", "train")
    pairs = launch.script.text.removesuffix(".py").endswith("dpo")
    attention = "flash_attention_2"
    if arguments.has("bf16") and not arguments.has("flash_attn", "packing_samples", "attn_implementation"):
        attention = "eager"  # up to v0.8, in which `--bf16` and `--flash_attn` are off by default
        message = "OpenRLHF has flash attention by default since v0.9; priced is attention without"
        arguments.remark("activations-bound", "warning", message, "bf16", fix="--attn_implementation flash_attention_2")
    half = "fp16" if arguments.text("precision", "param_dtype") == "fp16" else "bf16"
    usual = (f"max_len={512 if pairs else 2048}", f"attn_implementation={attention}", f"{half}=true")
    arguments.add_defaults((*_DEFAULTS, *usual), launch.line)
    if arguments.text("optim", "optim") == "muon":
        arguments.not_modelled("DeepSpeed's Muon is not priced", "optim")
    trained, frozen = arguments.text("model", "model_name_or_path"), arguments.text("model", "ref_pretrain")
    if pairs and frozen not in (None, trained):
        arguments.not_modelled("a frozen copy of another model is not priced", "ref_pretrain")
    run = trainer_run(arguments, deepspeed=True)
    note_samples(arguments, "max_len")
    options = {name: text for name, text in run.options.items() if name != "cross_entropy_chunk_tokens"} | _ENGINE
    if "flash" in (arguments.text("flash_attention", "attn_implementation") or ""):
        options["dense_masks"] = "none"
    if pairs:
        return replace(run, options=options | preference(arguments, "dpo", adapters=False))
    if run.model is None or run.layout is None or run.seq_length is None:
        return replace(run, options=options)
    # What the model returned lives until it returns again (`trainer/sft_trainer.py`, `fit`).
    tokens = run.seq_length * run.layout.micro_batch_size / run.layout.context_parallel
    return replace(run, options=options, unpriced_bytes=4.0 * tokens * load_model(run.model).vocab_size)


FRAMEWORK: Final = Framework(
    title="OpenRLHF",
    profile="torch",
    tables=("openrlhf", "transformers", "trl", "deepspeed"),
    launches=(LaunchForm("openrlhf-shell", 9, started(_PROGRAM), read, complete=False),),
)
