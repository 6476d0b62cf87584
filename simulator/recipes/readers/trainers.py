"""Trainers of a repository, whose flags its `.simulate.yaml` translates to those of a framework that is read.

    trainers:
      "train/main.py": {like: pretrain_gpt.py, flags: {--bs: --micro-batch-size, --wandb-tag: ""}}

`check.repository` reads the settings; `readers.read` hands the translated words to the reader of the framework.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Annotated, Final

from simulator.question.specs.documents import Frozen, Limits
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.values import Value, text_value

FlagName = Annotated[str, Limits(max_length=100, pattern=r"^(--?)?[A-Za-z_]?[\w.-]*$")]
_STARTS: Final = re.compile(r"--?[A-Za-z_]")


class OwnTrainer(Frozen):
    """How a repository's own trainer is read."""

    like: Annotated[str, Limits(max_length=100)] = ""
    """Program whose flags are meant, such as `pretrain_gpt.py`; empty for flags that say by themselves whose they are.
    """
    flags: Annotated[Mapping[FlagName, FlagName], Limits(max_length=500)] = field(default_factory=dict)
    """Flag of the framework by the trainer's own, dashes included, or the name in `name=value`; empty for one that
    changes neither memory nor speed."""


def translated(launch: TrainingCommand, trainers: Mapping[str, OwnTrainer]) -> TrainingCommand:
    """Return a launch with the flags of the trainer that its script's path or name matches; else the launch itself."""
    path = launch.script.text
    names = (path, PurePath(path).name)
    trainer = next((own for pattern, own in trainers.items() if any(fnmatchcase(n, pattern) for n in names)), None)
    if trainer is None:
        return launch
    words: list[Value] = []
    dropped = False
    for word in launch.arguments:
        name, equals, _ = word.text.partition("=")
        if _STARTS.match(word.text):
            dropped = False
        elif dropped:
            continue
        own = trainer.flags.get(name) if word.pieces and word.pieces[0].known else None
        if own is None or not (_STARTS.match(name) or equals):
            words.append(word)
        elif own == "":
            dropped = not equals
        else:
            rest = word.after(len(name) + len(equals))
            words += [text_value(own, word.line), *([rest] if equals else [])]
    script = text_value(trainer.like, launch.script.line) if trainer.like else launch.script
    return replace(launch, script=script, arguments=tuple(words))
