"""Registration of torchtitan: how its launches, files and logs are recognised, and who reads and writes them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, LaunchForm, RecipeWriter, marked
from simulator.frameworks.torchtitan.read import STEP_LOG, is_launch, read, take_words, torchtitan_run
from simulator.frameworks.torchtitan.write import torchtitan_config, torchtitan_words

FRAMEWORK: Final = Framework(
    title="torchtitan",
    profile="torch",
    launches=(LaunchForm("torchtitan-shell", 20, is_launch, lambda words, _: torchtitan_run(words), take_words),),
    files=(FileForm("torchtitan-toml", 10, marked("model.flavor", "training.seq_len model.name"), read),),
    step_log=STEP_LOG,
    writer=RecipeWriter(text=torchtitan_config, words=torchtitan_words, dialects=("torchtitan-toml",)),
)
