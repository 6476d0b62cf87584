"""PaddleNLP, PaddleFormers and ERNIEKit as a framework."""

from typing import Final

from simulator.frameworks.framework import Framework, RecipeWriter
from simulator.frameworks.paddle.write import paddle_script, paddle_words

FRAMEWORK: Final = Framework(
    title="Paddle",
    profile="paddle",
    tables=("paddlenlp", "paddleformers"),
    writer=RecipeWriter(
        text=paddle_script, words=paddle_words, dialects=("paddle-shell", "paddle-yaml", "paddle-json")
    ),
)
