"""Registration of axolotl: how its launches and files are recognised. `read` interprets them."""

from typing import Final

from simulator.frameworks.axolotl.read import cluster, is_file, is_launch, read_file, read_launch, take_words
from simulator.frameworks.framework import FileForm, Framework, LaunchForm

FRAMEWORK: Final = Framework(
    title="axolotl",
    profile="torch",
    tables=("axolotl", "transformers", "trl", "deepspeed"),
    launches=(
        LaunchForm(
            dialect="axolotl-shell",
            order=10,
            is_own=is_launch,
            read=read_launch,
            take_words=take_words,
            cluster=cluster,
            is_named_by_program=True,
        ),
    ),
    files=(FileForm(dialect="axolotl-yaml", order=45, is_own=is_file, read=read_file),),
)
