"""Recognition of training, and of the trainer, in files that no reader takes.

A file is passed over only if it clearly does not train: it starts no trainer, and has no batch size beside a learning
rate, an optimizer or a model. `readers.read` asks; `frameworks.purpose` knows programs that do something else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from simulator.budget import charge
from simulator.files import read_table
from simulator.frameworks.arguments import LaunchCommand
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import table_of

_TABLE: Final = "trainers"
"""Trainers that are recognised but not read, with the keys that only their files combine, each a section, a name or
a dotted path; `name=text` is a key whose value begins so, `/name` a section at any depth."""
_ENTRIES: Final = "entries"
"""Patterns of the programs, modules and scripts that start recognised trainers which are not read."""
_FARTHEST: Final = 16
_LONGEST: Final = 4000  # most words, and characters of them, that are searched for a program's name
_KEY: Final = re.compile(r"""^[ \t]*(?:-[ \t]+)?["']?([A-Za-z_][\w.-]{0,80})["']?[ \t]*[:=]""", re.MULTILINE | re.ASCII)
_LINE_WORK: Final = 10  # units of work per searched character
_BATCH: Final = re.compile(
    r"(?:\w*_)?(?:batch_?sizes?|batchsize|mbs|gbs)(?:_in_tokens|_tokens|_per_\w+)?|\w*tokens_per_(?:micro_)?batch"
)
_RATE: Final = re.compile(r"(?:\w*_)?(?:lr|learning_rate)")
_OPTIMIZER: Final = re.compile(r"(?:\w*_)?(?:optimizer|optim|adam_beta1)(?:_config|_name|_type)?")
_SCHEDULE: Final = re.compile(
    r"lr_(?:scheduler|decay|warmup)\w*|t_warmup|warmup_(?:ratio|updates|epochs|tokens)|weight_decay|max_update"
)
_LENGTH: Final = re.compile(
    r"(?:num_|max_|total_|train_)*(?:epochs?|iters|episodes?|duration)|(?:max|train)_steps(?:_per_run)?|num_rollouts"
)
_SURE_LENGTH: Final = re.compile(r"train_(?:iters|samples|steps|tokens)|(?:num_train|train)_epochs|max_train_steps")
_TRAINER: Final = re.compile(r"trainer(?:_kwargs)?")
_TRAINING: Final = re.compile(r"train(?:ing|er)?_(?:args?|arguments|config|params|kwargs)")
_MODEL: Final = re.compile(r"model(?:_name(?:_or_path)?|_path|_config|_type|_id)?|base_model|pretrained_model\w*|arch")
_RECORDED: Final = frozenset(
    ["total_time", "train_loss", "eval_loss", "log_history", "best_metric", "num_trainable_params", "total_flos"]
)  # keys of the results of a run, of which a configuration has none or one
_IDLE: Final = re.compile(
    r"eval[a-z]*|inference[a-z]*|infer|generat[a-z]*|serv(?:e|ing)|quant\w*|tasks?|benchmark\w*|predict\w*|export|convert\w*"
)  # names of files, folders and sections for evaluation, generation, serving or conversion
_OTHER_BATCH: Final = re.compile(r"eval|valid|test|infer|generat|rollout|reward|ref_|max_num|num_batched|cache")
_PROGRAM: Final = (
    r"torchrun[ \t\\]|accelerate[ \t]+launch|torch\.distributed\.(?:run|launch)\b|paddle\.distributed\.launch\b"
    r"|deepspeed[ \t]+(?:--?[a-z]|[\w./${}-]{1,200}\.py)|composer[ \t]+(?!eval)[\w./${}-]{1,200}\.py"
    r"|(?:llamafactory-cli|axolotl|xtuner|oumi)[ \t]+train\b|(?:swift|megatron)[ \t]+(?:pt|sft|rlhf)\b"
    r"|(?:trl|llamafactory-cli)[ \t]+(?:sft|dpo|kto|grpo|reward|rm)\b|(?:tune|colossalai)[ \t]+run\b|msrun[ \t]+--"
    r"|(?:litgpt|nemo[ \t]+llm)[ \t]+(?:pretrain|finetune)"
    r"|[a-z]+(?:-[a-z]+)?-(?:pretrain|finetune|train)[ \t]+(?!eval)[\w./\"${}-]"
    r"|-m[ \t]+[\w.]{0,200}(?:train|main_ppo|sft|grpo|dpo)"
)
_PYTHON: Final = (
    r"(?:pretrain|finetune|fine_tune|(?<![a-z])train(?!ing_data|ed|_data)|(?<![a-z])(?:sft|dpo|grpo))[\w-]{0,80}\.py\b"
)
_SCRIPT: Final = (
    r"(?:pretrain|finetune|(?<![a-z])(?:train|sft|dpo|grpo|tune|pt(?=_)))[\w-]{0,80}"
    r"(?:\$[\w{(][^\n\"';|]{0,60}[})][\w-]{0,40})?\.(?:sh|slurm|sbatch|pbs|qsub|lsf)\b"
)
_COMMAND: Final = re.compile(rf"(?<![\w./-])(?:{_PROGRAM})|{_PYTHON}|{_SCRIPT}")
"""Programs, and files by their name: matching from their folders on would try every start of a path."""
_COMMENT: Final = re.compile(r"(?:^|(?<=[ \t]))#[^\n]*", re.MULTILINE)
_QUIET: Final = re.compile(
    r"^[ \t]*(?:echo|printf|git|cp|mv|ls|cat|rm|mkdir|chmod|vim?|sed|grep|pip3?|uv[ \t]+pip|conda|apt|apt-get|test"
    r"|pkill|ps|\[|\[\[|sbatch|qsub|source|\.)(?=[ \t])"
    r"|\bp(?:ip3?|kill|grep)[ \t]|\bps[ \t]+(?:-|aux|ef)|grep[ \t]"
)  # lines that name a program without starting it


@functools.cache
def _trainers() -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((row["trainer"], tuple(row["marks"].split())) for row in read_table(__file__, _TABLE))


def trainer_of(names: Collection[str], keys: Iterable[Key] = ()) -> str:
    """Return the trainer whose marks are all among `names`, or `keys` with values, of a file; empty without one."""
    keys = list(keys)
    texts = [(key.name, key.values[0].text) for key in keys if key.values]
    sections = {part for key in keys for part in key.path}

    def stands(mark: str) -> bool:
        name, equals, start = mark.partition("=")
        if mark.startswith("/"):
            return mark[1:] in sections
        return any(key == name and text.startswith(start) for key, text in texts) if equals else mark in names

    return next((trainer for trainer, marks in _trainers() if all(map(stands, marks))), "")


def entry_of(launch: LaunchCommand) -> str:
    """Return the trainer that a launch starts, by its program or script; empty for unknown ones."""
    words = [launch.program, launch.script.text, *(value.text for value in launch.arguments[:_FARTHEST])]
    text = " ".join(word for word in words if word and not word.startswith("--"))[:_LONGEST]
    return next((name for name, entry in _entries() if entry.search(text)), "")


@functools.cache
def _entries() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row["trainer"], re.compile(row["entry"])) for row in read_table(__file__, _ENTRIES))


def names_in(text: str) -> set[str]:
    """Return the names in the position of a key, in YAML, JSON or TOML that need not be valid."""
    charge(_LINE_WORK * len(text))
    return set(_KEY.findall(text))


def settings_of_training(names: Iterable[str], path: str, outer: Collection[str] | None = None) -> str:
    """Return the settings by which a file trains, as `a and b`; empty where the keys have none.

    These are two of: a batch size, a learning rate, an optimizer, a schedule of rates, a length in training steps, a
    model, a section of training; with a batch size also any length or trainer. In a file whose `path` or `outer` keys
    indicate evaluation only the first five count. A batch size of training is enough.
    """
    parts = sorted({part.lower().replace("-", "_") for name in names for part in name.split(".")})

    def first(matches: Callable[[str], object]) -> str:
        return next(filter(matches, parts), "")

    batches = [name for name in parts if _BATCH.fullmatch(name) and not _OTHER_BATCH.search(name)]
    trained = [name for name in batches if "train_" in name]
    schedule = first(_SCHEDULE.fullmatch)
    rates = (first(_RATE.fullmatch), first(_OPTIMIZER.fullmatch), schedule, first(_SURE_LENGTH.fullmatch))
    sure = [name for name in (*trained[:1], *batches[:1], *rates) if name]
    more = [name for name in (first(_MODEL.fullmatch), first(_TRAINING.fullmatch)) if name]
    more += [name for name in (first(_LENGTH.fullmatch), first(_TRAINER.fullmatch)) if name and batches]
    idle = any(_IDLE.fullmatch(word) for word in re.split(r"[/\\._-]", path.lower()))
    quiet = idle or any(_IDLE.fullmatch(name.lower()) for name in (parts if outer is None else outer))
    settings = list(dict.fromkeys((*sure, *(more if schedule or not quiet else ()))))
    return " and ".join(settings[:2]) if len(settings) > 1 or (trained and not idle) else ""


OF_DEEPSPEED: Final = ("zero_optimization", "steps_per_print", "train_micro_batch_size_per_gpu", "wall_clock_breakdown")
"""Keys that DeepSpeed's configurations have, and few others."""
_MONITORS: Final = frozenset(
    ["activation_checkpointing", "flops_profiler", "tensorboard", "wandb", "comms_logger", "aio", "amp", "log"]
)


def is_deepspeed(content: Mapping[str, object]) -> bool:
    """Return whether a file has keys of DeepSpeed, and no other ones."""
    own = {name.partition(".")[0] for name in table_of("deepspeed")} | _MONITORS
    return not content.keys().isdisjoint(OF_DEEPSPEED) and content.keys() <= own


_EXPERIMENT: Final = re.compile(
    r"^[ \t]*-[ \t]+(?:override[ \t]+)?(/(?:experiment|optimizer|trainer|scheduler|model)\b)", re.MULTILINE
)


def experiment(text: str) -> str:
    """Return the choice by which an overlay of Hydra is an experiment that trains; empty for other files."""
    match = _EXPERIMENT.search(text) if text.startswith("# @package _global_") else None
    return f"defaults: {match[1]}" if match else ""


def is_recorded(names: Collection[str]) -> bool:
    """Return whether the keys of a file are the results of a run."""
    return len(_RECORDED.intersection(names)) > 1


def command_line(text: str, judged: Collection[int] = ()) -> int:
    """Return the line of the first command that names a launcher or a training program; 0 without one.

    The text is shell, or contains shell. Comments, commands that only print, copy or install, and lines in `judged` are
    skipped.
    """
    charge(_LINE_WORK * len(text))
    for match in _COMMAND.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        before = text[start : match.start() + 1][-1000:]
        if not _COMMENT.search(before) and not _QUIET.search(before):
            line = text.count("\n", 0, match.start()) + 1
            if line not in judged:
                return line
    return 0


_FLAG: Final = re.compile(
    r"(?<![\w-])--(?:micro[_-]batch[_-]size|global[_-]batch[_-]size|per_device_train_batch_size|train[_-](?:iters|samples))"
    r"(?![\w-])"
)
_TRAINING_NAME: Final = re.compile(r"(?<![a-z])(?:pre|post)?train(?!ed|_data|_tok)|tun(?:e|ing)(?!d)|sft|dpo|grpo|ppo")


def in_code(text: str, pattern: re.Pattern[str] = _FLAG) -> tuple[str, int]:
    """Return a match outside comments, by default a flag of trainings alone, and its line; empty and 0 without one."""
    plain = _COMMENT.sub("", text)
    match = pattern.search(plain)
    return (match[0], plain.count("\n", 0, match.start()) + 1) if match else ("", 0)


def names_training(name: str) -> bool:
    """Return whether a script's name indicates training."""
    return _TRAINING_NAME.search(name.lower()) is not None


_WITHIN: Final = re.compile(r"(?<![\w-])python[0-9.]*[ \t]+(?:-[a-zA-Z][ \t]+)?(?:-c(?!\w)|-?[ \t]*<<)")
"""Python code in a shell script."""
_TRAINER_CODE: Final = re.compile(
    r"(?<!Bpe)(?<!Piece)(?<!Unigram)(?<!Level)Trainer\(|trainer\.(?:train|fit)\(|(?<![\w.])pretrain\("
)  # calls that train a network; the trainers of tokenizers have names of their own


def python_that_trains(text: str) -> int:
    """Return the line of Python code in a shell script that trains; 0 without any."""
    return in_code(text, _TRAINER_CODE)[1] if _WITHIN.search(_COMMENT.sub("", text)) else 0
