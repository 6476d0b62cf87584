"""Recognition of training commands, split into launcher, script and arguments. Interprets no flag."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from simulator.frameworks.launch import LaunchCommand, LauncherName
from simulator.recipes.shell.values import Cause, Value, text_value
from simulator.recipes.shell.wrappers import WRAPPERS

_PROGRAMS: Final[Mapping[str, LauncherName]] = {
    "torchrun": "torch",
    "deepspeed": "deepspeed",
    "msrun": "msrun",
    "accelerate": "accelerate",
    "erniekit": "paddle",
    "paddleformers-cli": "paddle",
    "llamafactory-cli": "other",
    "colossalai": "other",
    "horovodrun": "other",
    "swift": "other",
    "megatron": "other",
    "xtuner": "other",
    "axolotl": "other",
    "composer": "torch",
    "litgpt": "other",
    "oumi": "other",
    "trl": "other",
    "tune": "torch",
}
_TRAINING: Final = {
    "accelerate": ("launch",),
    "swift": ("pt", "sft", "rlhf"),
    "megatron": ("pt", "sft", "rlhf"),
    "llamafactory-cli": ("train",),
    "axolotl": ("train",),
    "litgpt": ("pretrain", "finetune", "finetune_full", "finetune_lora", "finetune_adapter"),
    "oumi": ("train", "distributed", "tune"),
    "trl": ("sft", "dpo", "kto", "grpo", "reward", "rloo"),
    "tune": ("run",),
}
"""Subcommands that train, of programs that have others too."""
_MODULES: Final[Mapping[str, LauncherName]] = {
    "torch.distributed.run": "torch",
    "torch.distributed.launch": "torch",
    "paddle.distributed.launch": "paddle",
    "paddle.distributed.fleet.launch": "paddle",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate",
}
_WORDS_BEFORE_OPTIONS: Final = ("accelerate", "tune")
"""Programs whose subcommand takes a launcher's options, a script, and the script's arguments."""
_UNREAD: Final = frozenset(["colossalai", "litgpt", "xtuner"])
_UNREAD_MODULES: Final = re.compile(r"openrlhf\.cli\.train_\w+|verl\.trainer\.(main_ppo|\w*sft_trainer)\w*")
"""Programs, and modules of `python -m`, that train by themselves and whose flags are not read."""
_SUBMITTERS: Final = frozenset(["mason.py"])
_FARTHEST: Final = 64
"""Most words before the program."""
_PYTHON: Final = re.compile(r"python[0-9.]*")
_WITHOUT_VALUE: Final = frozenset(
    [
        "",
        "standalone",
        "no_python",
        "use_env",
        "run_path",
        "module",
        "m",
        *("no_ssh", "no_ssh_check", "no_local_rank", "force_multi", "elastic_training", "bind_cores_to_rank"),
        "enable_each_rank_log",
        "save_pid",
        *("quiet", "cpu", "multi_gpu", "tpu", "enable_cpu_affinity", "use_deepspeed", "use_fsdp", "use_megatron_lm"),
        *("use_parallelism_config", "same_network", "downcast_bf16", "debug", "dynamo_use_fullgraph"),
        *("dynamo_use_dynamic", "dynamo_use_regional_compilation", "tpu_cluster", "tpu_use_sudo"),
    ]
)


@dataclass(frozen=True, slots=True)
class TrainingCommand(LaunchCommand):
    """A training command of a shell script, whose arguments may be lists of words."""

    arguments: tuple[Value, ...]


def find_launch(argv: Sequence[Value], environment: Mapping[str, Value], line: int) -> TrainingCommand | None:
    """Return the launch that a command is; None for other commands."""
    for start in _programs(argv):
        launch = _launch(argv, start, environment, line)
        if launch is not None and PurePath(launch.script.text).name in _SUBMITTERS:
            return _submitted(launch, environment) or launch
        if launch is not None:
            in_front = _causes(argv, range(start))
            return dataclasses.replace(launch, in_front=in_front) if in_front else launch
    return None


def _submitted(submitter: TrainingCommand, environment: Mapping[str, Value]) -> TrainingCommand | None:
    """Return the launch after `--` of a program that starts it on several machines; None without one.

    mason.py of open-instruct e6c3044 multiplies the processes of `accelerate launch` by its machines (line 537).
    """
    texts = [value.text for value in submitter.arguments]
    if "--" not in texts:
        return None
    place = texts.index("--")
    own, _, _, _ = _options(submitter.arguments[:place])
    ends = [number for number, text in enumerate(texts) if number >= place and text in ("--", "&&", ";")]
    commands = (submitter.arguments[start + 1 : end] for start, end in pairwise([*ends, len(texts)]))
    launches = (find_launch(words, environment, submitter.line) for words in commands if words)
    launch = next((submitted for submitted in launches if submitted is not None), None)
    nodes = own.get("num_nodes")
    if launch is None or launch.launcher != "accelerate" or nodes is None:
        return launch
    each = launch.options.get("num_processes")
    options = {**launch.options, "num_machines": nodes}
    if each is not None and each.text.isdecimal() and nodes.text.isdecimal():
        options["num_processes"] = text_value(str(int(each.text) * int(nodes.text)), each.line)
    return dataclasses.replace(launch, options=options)


def _launch(argv: Sequence[Value], start: int, environment: Mapping[str, Value], line: int) -> TrainingCommand | None:
    """Return the launch of the program at an index; None without one."""
    if _is_script(argv[start]):
        return TrainingCommand("python", "", line, argv[start], tuple(argv[start + 1 :]), {}, environment)
    program = PurePath(argv[start].text).name
    rest = list(argv[start + 1 :])
    if _PYTHON.fullmatch(program):
        rest = _without_valued(rest)
    launcher = _PROGRAMS.get(program)
    if launcher is None:
        module = _module(rest)
        if module is None:
            return _plain_python(program, rest, environment, line)
        launcher, rest = module
    by_word = program in ("erniekit", "paddleformers-cli", *_WORDS_BEFORE_OPTIONS) or launcher == "other"
    if by_word and (not rest or rest[0].text not in _TRAINING.get(program, (rest[0].text,))):
        return None
    if program in _WORDS_BEFORE_OPTIONS:
        rest = rest[1:]
    elif by_word:
        return TrainingCommand(launcher, program, line, rest[0], tuple(rest[1:]), {}, environment)
    options, script, arguments, unknown = _options(rest)
    if script is None:
        return None
    return TrainingCommand(
        launcher, program, line, script, tuple(arguments), options, environment, open_options=unknown
    )


def other_trainer(launch: TrainingCommand) -> str:
    """Return the program or module of a trainer whose flags are never read; empty for others."""
    if _UNREAD_MODULES.fullmatch(launch.script.text):
        return launch.script.text
    return launch.program if launch.program in _UNREAD else ""


def _programs(argv: Sequence[Value]) -> Iterator[int]:
    """Yield the indices of possible launching programs, after `nohup`, `srun -N 4`, `env A=B` and unknown words."""
    wrapped = False
    for number, value in enumerate(argv[:_FARTHEST]):
        name = PurePath(value.text).name
        module = argv[2].text if number == 0 and len(argv) > 2 and argv[1].text == "-m" else ""
        starts_module = module != "" and (not value.known or module in _MODULES)
        if name in _PROGRAMS or _PYTHON.fullmatch(name) or _is_script(value) or starts_module:
            yield number
        wrapped = wrapped or name in WRAPPERS or not value.known
        if not wrapped:
            return


def _is_script(value: Value) -> bool:
    """Whether a word is a Python file; the path before its name may be unknown."""
    text = value.text
    return text.endswith(".py") and not text.startswith("-") and len(text.split()) == 1 and value.pieces[-1].known


def _without_valued(words: Sequence[Value]) -> list[Value]:
    """Return the words behind `python` without its options that take a value, `-X dev` and `-W ignore`."""
    place = 0
    while place < len(words) and words[place].text[:1] == "-" and words[place].text not in ("-m", "-c", "-"):
        place += 2 if re.fullmatch(r"-[a-zA-Z]*[XW]", words[place].text) else 1
    return list(words[place:])


def _module(rest: Sequence[Value]) -> tuple[LauncherName, list[Value]] | None:
    """Return the launcher of `python -m` and the words after it; None without one."""
    for number, value in enumerate(rest):
        if value.text == "-m" and number + 1 < len(rest):
            module = rest[number + 1].text
            if _UNREAD_MODULES.fullmatch(module):
                return "other", list(rest[number + 1 :])
            launcher = _MODULES.get(module)
            return (launcher, list(rest[number + 2 :])) if launcher else None
        if not value.text.startswith("-"):
            return None
    return None


def _plain_python(
    program: str, rest: Sequence[Value], environment: Mapping[str, Value], line: int
) -> TrainingCommand | None:
    """Return `python train.py ...` or `python -m package.train ...`, which has one device; None for others."""
    plain = [i for i, value in enumerate(rest) if not value.text.startswith("-")]
    # `python $OPTIONS train.py`
    number = next((i for i in plain if rest[i].known or rest[i].text.endswith(".py")), next(iter(plain), None))
    if number is None or not (rest[number].text.endswith(".py") or rest[number - 1].text == "-m"):
        return None
    return TrainingCommand("python", program, line, rest[number], tuple(rest[number + 1 :]), {}, environment)


def _options(
    rest: Sequence[Value],
) -> tuple[dict[str, Value], Value | None, list[Value], frozenset[Cause]]:
    """Return the launcher's options, the script, its arguments, and what unknown options depend on."""
    options: dict[str, Value] = {}
    skipped: list[int] = []
    position = 0
    while position < len(rest):
        value = rest[position]
        text = value.text
        if not text.startswith("-") or not value.pieces[0].known:
            if not value.known and not text.endswith(".py") and position + 1 < len(rest):
                skipped.append(position)
                position += 1
                continue
            return options, value, list(rest[position + 1 :]), _causes(rest, skipped)
        name, equals, _ = text.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if equals:
            options[key] = value.after(len(name) + 1)
            position += 1
        elif key in _WITHOUT_VALUE or position + 1 >= len(rest):
            options[key] = value
            position += 1
        else:
            options[key] = rest[position + 1]
            position += 2
    if not skipped:
        return options, None, [], frozenset()
    # The last word that may be the script is taken for it; its arguments follow.
    place = skipped.pop()
    return options, rest[place], list(rest[place + 1 :]), _causes(rest, skipped)


def _causes(words: Sequence[Value], places: Iterable[int]) -> frozenset[Cause]:
    return frozenset(cause for place in places for cause in words[place].causes)
