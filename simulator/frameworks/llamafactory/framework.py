"""Registration of LLaMA-Factory: how its launches and files are recognised. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.llamafactory.read import cluster, is_file, is_launch, read_file, read_launch, take_words

FRAMEWORK: Final = Framework(
    title="LLaMA-Factory",
    profile="torch",
    tables=("llamafactory", "transformers", "deepspeed"),
    launches=(
        LaunchForm(
            dialect="llamafactory-shell",
            order=10,
            is_own=is_launch,
            read=read_launch,
            take_words=take_words,
            cluster=cluster,
            is_named_by_program=True,
        ),
    ),
    files=(FileForm(dialect="llamafactory-yaml", order=50, is_own=is_file, read=read_file),),
)
