"""Registration of accelerate: its table of options, and the writer of TRL scripts that it starts."""

from typing import Final

from simulator.frameworks.accelerate.write import accelerate_script, accelerate_words
from simulator.frameworks.framework import Framework, RecipeWriter

FRAMEWORK: Final = Framework(
    title="accelerate",
    profile="torch",
    writer=RecipeWriter(text=accelerate_script, words=accelerate_words, dialects=(), is_usual=False),
)
