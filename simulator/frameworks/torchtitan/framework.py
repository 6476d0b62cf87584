"""torchtitan as a framework."""

from typing import Final

from simulator.frameworks.framework import Framework, RecipeWriter
from simulator.frameworks.torchtitan.write import torchtitan_config, torchtitan_words

FRAMEWORK: Final = Framework(
    title="torchtitan",
    profile="torch",
    tables=("torchtitan",),
    writer=RecipeWriter(text=torchtitan_config, words=torchtitan_words, dialects=("torchtitan-toml",)),
)
