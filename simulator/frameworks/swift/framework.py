"""Registration of ms-swift: `swift sft` on Hugging Face's Trainer, `megatron sft` on Megatron-LM."""

from typing import Final

from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.swift.read import cluster, is_on_megatron, is_swift, read_megatron, read_trainer, take_words

FRAMEWORK: Final = Framework(
    title="ms-swift",
    profile="torch",
    tables=("swift", "transformers", "deepspeed"),
    launches=(
        LaunchForm(
            dialect="swift-shell",
            order=10,
            is_own=is_on_megatron,
            read=read_megatron,
            tables=("megatron", "megatron_swift", "swift"),
            take_words=take_words,
            cluster=cluster,
            is_named_by_program=True,
        ),
        LaunchForm(
            dialect="swift-shell",
            order=10,
            is_own=is_swift,
            read=read_trainer,
            take_words=take_words,
            cluster=cluster,
            is_named_by_program=True,
        ),
    ),
)
