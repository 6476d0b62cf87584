"""Recognition of launches, by their program, and files, by their switches, that do not train and are refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from simulator.errors import NoRecipeError
from simulator.files import read_table
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import plain

_TRAINS: Final = re.compile(
    r"train(?!ed)|tun(?:e(?!d)|ing)|sft|dpo|kto|ppo|grpo|rlhf|distill|orpo|simpo|reinforce|(?<![a-z])rl(?![a-z])"
)  # parts of the name of a program that trains, whatever else it does
_ROWS: Final = read_table(__file__, "_purposes")


def _words(kind: str) -> tuple[str, ...]:
    """Return the words of a kind in `_purposes.csv`, which has their sources."""
    return tuple(word for row in _ROWS if row["kind"] == kind for word in row["words"].split())


_ACTS: Final = tuple(
    (row["says"], re.compile(rf"(?<![a-z])(?:{row['words']})(?![a-z])")) for row in _ROWS if row["kind"] == "act"
)
"""Activities of programs other than training, by words of their names and folders (LLaMA-MoE b17aff4:
smoe/entrypoint); the first match counts."""
_GENERATES: Final = frozenset(("max_new_tokens", "save_generations", "generation_only"))
"""Flags of programs that generate text, where none says how long one trains."""
_SIZES: Final = frozenset(("lr", "micro_batch_size", "global_batch_size", "train_batch_size", "num_layers"))
"""Flags with which a folder's name, or a length of output, does not say that a program trains nothing."""
_SURE: Final = _words("sure")
"""Programs recognised by name even with training flags, which their own scripts pass along."""
_LENGTHS: Final = frozenset(_words("length"))
"""Flags of training runs; with one of them the name of another program is not decisive."""
_OF_OPTIMIZER: Final = ("learning_rate", "lr", "do_train", "num_train_epochs", "optim", "lr_scheduler_type")
"""Flags that say that a program updates weights."""
_OVERRIDE: Final = re.compile(r"[+~]{0,2}\w+(?:\.\w+)+=|\S+\.(?:ya?ml|json|toml)$", re.ASCII)
"""A key of a configuration that a command line overrides, or a configuration file."""
_DATA: Final = re.compile(r"-o$|--(?:in|out|save)[_a-z]*$")
"""An option before a file of data, which is no configuration."""
_CHOICE: Final = re.compile(
    r"\w+=(?!\S*eval)(?:\S*/)?(?:fine-?tun|(?:pre|post)?-?train(?!ed)|sft|dpo|grpo|rlhf)", re.ASCII
)  # a choice among configurations, of which one that trains is taken: `recipes=fine-tuning/x`
_SPREADS: Final = re.compile(r"--?(?:nnodes|nproc[-_]per[-_]node|num[-_](?:nodes|gpus))(?![\w-])")
"""An option of a program that starts others, with a number of nodes or of processes per node."""
_HOLE: Final = re.compile(r"\$\{?[A-Za-z_]|`|\$\(")
"""A variable or command among the flags; a script's own parameters are excluded, as most scripts only pass them on."""
_SUBCOMMANDS: Final = ("erniekit", "paddleformers-cli")  # programs whose subcommand says what they do
_EVALUATIONS: Final = _words("evaluation")  # tasks that only evaluate
_ENCODERS: Final = _words("encoder")  # tasks that train BERT with another head
_IDLE_STAGES: Final = _words("idle_stage")  # stages of NeMo's launcher that train nothing
_TRAINING_STAGES: Final = _words("training_stage")  # the launcher's stages that train
STAGES: Final = frozenset((*_IDLE_STAGES, *_TRAINING_STAGES))
"""All stages: the groups under which the launcher puts a configuration before it resolves references."""
_STAGE: Final = re.compile(r"\$\{(?:\w+:\$\{)?(\w+)\.")
"""Top-level section that a value refers to; a launcher's file refers mostly to its own stage."""
_CHOSEN: Final = re.compile(r"stages=\[([\w, ]*)\]")
_WITHOUT_OPTIMIZER: Final = {"quantization": "save_path", "prune": "save_path", "inference": "tokens_to_generate"}
"""Sections of NeMo's files that train nothing if no optimizer is named, with a key that such files have. NeMo
8cfedd7, examples/nlp/language_modeling: conf/megatron_gpt_{ptq,prune}.yaml,
tuning/conf/megatron_gpt_generate_config.yaml."""
_SAYS: Final = (
    re.compile(r"^(MODE|run_mode):[ \t]*[\"']?(inference|predict|eval|export)\b", re.MULTILINE),
    re.compile(
        r"^experiment:[^\n]*\n(?:[ \t][^\n]*\n|\n)*?[ \t]+(task):[ \t]*\n[ \t]+type:[ \t]*[\"']?"
        r"(serve|inference|compress)\b",
        re.MULTILINE,
    ),
)
"""Lines that state another purpose than training. Megatron-LM d98e8a6,
tests/functional_tests/shell_test_utils/run_ci_test.sh, whose default is pretraining; MindFormers,
configs/*/predict_*.yaml; FlagScale da4935e,
flagscale/runner/runner_*.py."""
_INSTEAD: Final = ("do_ptq", "do_gptq", "do_predict", "do_export", "export_dir", "infer_backend", "n_shot")
_BY_THEMSELVES: Final = ("do_qat", "autotuner_benchmark")
"""Switches that start training without `do_train`: PaddleNLP fb3e4c0, llm/run_quantization.py:450 and
llm/run_pretrain.py:94."""


def no_training(purpose: str, file: str, line: int = 0) -> NoRecipeError:
    """Return the error for a launch or a file that does not train."""
    return NoRecipeError(f"{file}{f':{line}' if line else ''}: starts no training: {purpose}")


def require_training(launch: LaunchCommand, file: str) -> None:
    """Raise NoRecipeError for a launch that does not train."""
    program = _program(launch)
    stem = program.lower().removesuffix(".py")
    does = ""
    if task := _task(launch, _EVALUATIONS):
        does = f"{program} --task {task} evaluates a model"
    elif _on(launch.texts, "skip_train") and not _on(launch.texts, "perform_rl_step"):
        does = f"{program} --skip-train evaluates a model"
    elif stages := _idle_stages(launch):
        does = f"{program} stages=[{stages}]"
    elif "$" not in stem and not _TRAINS.search(stem) and (stem in _SURE or not _may_train(launch)):
        within = PurePath(launch.script.text.replace(".", "/").removesuffix("/py")).parent.name.lower()
        plainly = not _TRAINS.search(launch.script.text.lower()) and _SIZES.isdisjoint(launch.flags)
        names = (stem, within) if plainly else (stem,)
        does = next((f"{program} {act}" for name in names for act, words in _ACTS if words.search(name)), "")
        does = does or (f"{program} generates text" if plainly and _GENERATES & launch.flags else "")
        does = does or (f"{program} is started alone, and nothing says that it trains" if _is_plain(launch) else "")
    if does:
        raise no_training(does[:200], file, launch.line)


def note_purpose(arguments: Arguments, launch: LaunchCommand) -> None:
    """Remark a program of which neither its name nor a flag says that it trains: it may keep no optimizer."""
    if not (_TRAINS.search(launch.script.text.lower()) or launch.program == "trl" or arguments.has(*_OF_OPTIMIZER)):
        message = f"{_program(launch)[:80]}: neither its name nor a flag says that it trains; a training is priced"
        arguments.remark("upper-bound", "warning", message)


def encoder_task(launch: LaunchCommand) -> str:
    """Return the remark on a launch of `tasks/main.py` that trains a model with an encoder; else empty."""
    task = _task(launch, _ENCODERS)
    return f"{_program(launch)} --task {task}: models with an encoder are not modelled" if task else ""


def require_training_text(path: str, text: str) -> None:
    """Raise NoRecipeError for YAML text that states another purpose, even where the rest is invalid."""
    phrase = next((match for line in _SAYS if (match := line.search(text))), None)
    if phrase:
        raise no_training(f"{phrase[1]} is {phrase[2]}", path)


def require_training_keys(path: str, keys: Iterable[Key]) -> None:
    """Raise NoRecipeError for a configuration file whose keys state that it does not train."""
    keys = [key for key in keys if not key.path[0].startswith("MODEL_ARGS_")]
    on = {plain(key.name) for key in keys if key.values and key.values[0].text.lower() == "true"}
    sections = {key.path[0] for key in keys}
    texts = [value.text for key in keys for value in key.values]
    stages = Counter(name for text in texts for name in _STAGE.findall(text) if name in STAGES)
    stage = max(stages, key=lambda name: (stages[name], name in _TRAINING_STAGES), default="")
    optimized = any(part.startswith("optim") for key in keys for part in key.path)
    names = {key.name for key in keys}
    calibrated = [name for name, key in _WITHOUT_OPTIMIZER.items() if name in sections and key in names]
    if "skip_train" in on and "perform_rl_step" not in on:
        raise no_training("skip_train is on", path)
    if stage in _IDLE_STAGES and stage not in sections and ("run" in sections or not optimized):
        raise no_training(f"stage {stage} of the launcher", path)
    if calibrated and not optimized:
        raise no_training(f"{calibrated[0]} without an optimizer", path)


def require_training_switches(arguments: Arguments) -> None:
    """Raise NoRecipeError where `do_train` is off, or absent while a switch for another activity is on.

    Off is the default: PaddleNLP fb3e4c0, paddlenlp/trainer/training_args.py:413; Transformers 4.57.1,
    training_args.py; both trainers require it for training (llm/run_finetune.py:407; LLaMA-Factory ff6d4d1,
    train/sft/workflow.py).
    """
    states = {name: _state(arguments, name) for name in ("do_train", *_INSTEAD, *_BY_THEMSELVES)}
    if any(states[name] is not False for name in _BY_THEMSELVES if arguments.has(name)):
        return
    done = next((name for name in _INSTEAD if states[name]), "")
    if states["do_train"] is False and arguments.has("do_train"):
        raise no_training("do_train is off", arguments.file)
    if done and not arguments.has("do_train"):
        raise no_training(f"{done} without do_train", arguments.file)


def _state(arguments: Arguments, name: str) -> bool | None:
    """Whether a switch is on; None where only the run knows."""
    entry = arguments.entry(name)
    if entry is None:
        return False
    return None if entry.causes else entry.text.lower() not in ("false", "0", "no", "off", "null", "none")


def _is_plain(launch: LaunchCommand) -> bool:
    """Whether a fully known command starts a program on one device, without a configuration or a training script."""
    alone = launch.launcher == "python" and not launch.spread and not launch.in_front
    texts = list(launch.texts)
    starts = any(text.endswith(".py") and _TRAINS.search(PurePath(text).name.lower()) for text in texts)
    behind = zip(["", *texts], texts, strict=False)
    texts = [text for option, text in behind if _DATA.match(option) is None]
    said = any(_OVERRIDE.match(text) or _CHOICE.match(text) or _SPREADS.match(text) for text in texts)
    return alone and not starts and not said


def _program(launch: LaunchCommand) -> str:
    """Return the program's file name, or a module's last part; empty for other launchers."""
    if launch.program in _SUBCOMMANDS:
        return f"{launch.program} {launch.script.text}"
    name = "" if launch.launcher == "other" else PurePath(launch.script.text).name
    # A module's name begins with its packages.
    return name if name.endswith((".py", ".sh")) or "$" in name else name.rpartition(".")[2]


def _on(words: Sequence[str], name: str) -> bool:
    """Whether a switch is among the arguments, alone or with a value that is not false."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, equals, text = word.partition("=")
        if flag.startswith("--") and plain(flag) == name:
            return (text if equals else following).lower() not in ("false", "0", "no")
    return False


def _may_train(launch: LaunchCommand) -> bool:
    """Whether flags of training are among the arguments, or an unknown text that may hold one."""
    pairs = zip(launch.arguments, ["", *launch.texts], strict=False)
    if any(not value.known and _HOLE.match(value.text) and not before.startswith("-") for value, before in pairs):
        return True
    return _on(launch.texts, "do_train") or not _LENGTHS.isdisjoint(launch.flags)


def _task(launch: LaunchCommand, tasks: Iterable[str]) -> str:
    """Return the `--task` of `main.py` if it is among `tasks`, else empty."""
    words = [part for word in launch.texts for part in (word.split("=", 1) if word.startswith("--task=") else (word,))]
    task = next((following for word, following in pairwise(words) if word == "--task" and following in tasks), "")
    return task if PurePath(launch.script.text).name == "main.py" else ""


def _idle_stages(launch: LaunchCommand) -> str:
    """Return the stages that a command line of NeMo's launcher selects if none of them trains, else empty."""
    chosen = next((match[1] for text in launch.texts if (match := _CHOSEN.fullmatch(text))), "")
    names = re.findall(r"\w+", chosen)
    return ", ".join(names) if names and all(name in _IDLE_STAGES for name in names) else ""
