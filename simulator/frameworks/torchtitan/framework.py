"""Registration of torchtitan: its launches, files and writer. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, LaunchForm, RecipeWriter
from simulator.frameworks.torchtitan.cut import STEP_LOG
from simulator.frameworks.torchtitan.read import is_file, is_launch, read, read_launch, take_words
from simulator.frameworks.torchtitan.write import torchtitan_config, torchtitan_words

FRAMEWORK: Final = Framework(
    title="torchtitan",
    profile="torch",
    tables=("torchtitan",),
    launches=(
        LaunchForm(dialect="torchtitan-shell", order=20, is_own=is_launch, read=read_launch, take_words=take_words),
    ),
    files=(FileForm(dialect="torchtitan-toml", order=10, is_own=is_file, read=read),),
    step_log=STEP_LOG,
    writer=RecipeWriter(text=torchtitan_config, words=torchtitan_words, dialects=("torchtitan-toml",)),
)
