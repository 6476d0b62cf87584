"""Registration of PaddleNLP, PaddleFormers and ERNIEKit: launches, files, logs, writer. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, LaunchForm, RecipeWriter
from simulator.frameworks.logs import LogForm
from simulator.frameworks.paddle import log
from simulator.frameworks.paddle.read import is_file, is_launch, read_file, read_launch, take_words
from simulator.frameworks.paddle.write import paddle_script, paddle_words

FRAMEWORK: Final = Framework(
    title="Paddle",
    profile="paddle",
    tables=("paddlenlp", "paddleformers"),
    launches=(LaunchForm(dialect="paddle-shell", order=1, is_own=is_launch, read=read_launch, take_words=take_words),),
    files=(FileForm(dialect="paddle-yaml", order=59, is_own=is_file, read=read_file),),
    log=LogForm(is_own=log.is_paddle, runs=log.runs_of, read=log.read_dump, rate="tokens"),
    writer=RecipeWriter(text=paddle_script, words=paddle_words, dialects=("paddle-shell", "paddle-yaml")),
)
