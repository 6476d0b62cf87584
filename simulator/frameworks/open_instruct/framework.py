"""Registration of open-instruct: how its files and launches are recognised. `read` interprets them."""

from typing import Final

from simulator.frameworks.accelerate.words import cluster
from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.open_instruct.read import is_file, is_launch, read, read_launch
from simulator.frameworks.trl.read import take_words

FRAMEWORK: Final = Framework(
    title="open-instruct",
    profile="torch",
    tables=("open_instruct", "transformers", "trl", "deepspeed"),
    launches=(
        LaunchForm(
            dialect="open-instruct-shell",
            order=59,
            is_own=is_launch,
            read=read_launch,
            complete=False,
            take_words=take_words,
            cluster=cluster,
        ),
    ),
    files=(FileForm(dialect="open-instruct-yaml", order=30, is_own=is_file, read=read, complete=False),),
)
