"""Names of flags that no table has: which may be passed over, and which one a name was meant to be."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from typing import Final

from simulator.budget import charge

_IRRELEVANT: Final = frozenset(
    [
        "logs",
        "saving",
        "loading",
        "evaluate",
        "valid",
        "validation",
        "test",
        "datasets",
        "dataloader",
        "datasource",
        "lr",
        "learning",
        "seed",
        "paths",
        "directory",
        "warmup",
        "dropout",
        "interval",
        "iters",
        "iter",
        "epochs",
        "epoch",
        "steps",
        "samples",
        "decay",
        "beta1",
        "beta2",
        "eps",
        "epsilon",
        "clip",
        "init",
        "std",
        "rotary",
        "rope",
        "theta",
        "merge",
        "bos",
        "eos",
        "prompt",
        "template",
        "report",
        "tqdm",
        "timeout",
        "timers",
        "timing",
        "exit",
        "finetune",
        "output",
        "vdl",
        "scheduler",
        "project",
        "ckpt",
        "cache",
        "split",
        "num_workers",
        "workers",
        "nccl",
        "distributed",
        "backend",
        "rng",
        "loss_scale",
        "initializer",
        "softmax",
        "norm_epsilon",
        "metric",
        "metrics",
        "best",
        "hub",
        "push",
        "resume",
        "overwrite",
        "ignore",
        "unified",
        "profiler",
        "profile",
        "trigger",
        "max_grad_norm",
        "min",
        "alpha",
        "tool",
        "thinking",
        "shuffle",
        "packing",
        "intokens",
        "mix",
        "strategy",
        "port",
        "addr",
        "master",
        "prefetch",
        "mmap",
        "host",
    ]
)
"""Words that mark a flag as one that changes neither memory nor speed, unless another word says that it may."""
_SURELY_IRRELEVANT: Final = frozenset(
    [
        "log",
        "logging",
        "tensorboard",
        "wandb",
        "visualdl",
        "swanlab",
        "eval",
        "evaluation",
        "dataset",
        "data",
        "tokenizer",
        "path",
        "dir",
        "file",
        "save",
        "name",
    ]
)
"""Words that do whatever its other words are."""
_NAMES: Final = frozenset(
    [
        "load",
        "no_load_optim",
        "no_load_rng",
        "no_load",
        "load_strict",
        "do_train",
        "device",
        "device_type",
        "model_type",
        "stage",
        "plot_loss",
        "fsdp_transformer_layer_cls_to_wrap",
        "trainer_type",
        "rank",
        "local_rank",
        "node_rank",
        "lora_alpha",
        "lora_dropout",
    ]
)
"""Whole names of the same kind, whose words alone would say nothing."""
_RELEVANT: Final = re.compile(
    r"recompute|offload|parallel|precision|fp8|fp16|bf16|shard|expert|moe|lora|flash|overlap|cpu|fus|grad_dtype"
    r"|optimizer|attention|batch|seq|hidden|layers|heads|vocab|mtp|quant|chunk|checkpoint_act|activation"
    r"|checkpointing|\dbit|memory|adapter|peft|freez|compile|galore|liger"
)
"""Words that mark a flag as one that may change them whatever its other words are."""
_CLOSE: Final = 0.9
"""Likeness from which a name is taken for a misspelling: names of flags share many words."""

_OTHER_LETTERS: Final = 3
"""Letters that only one of two names has, where they differ by a slip."""
_LETTERS_WORK: Final = 50
"""Units of work of comparing the letters of two names."""
_LIKENESS_WORK: Final = 1500
"""Units of work of comparing two names."""


def plain(name: str) -> str:
    """A flag's name as the tables spell it: no dashes in front, underscores, lower case."""
    return name.lstrip("-").replace("-", "_").lower()


def is_irrelevant(name: str) -> bool:
    """Whether a flag that no table has is one that changes neither memory nor speed."""
    name = plain(name).rsplit(".", 1)[-1]
    words = {name, *name.split("_")}
    surely = name in _NAMES or bool(words & _SURELY_IRRELEVANT)
    return surely or (bool(words & _IRRELEVANT) and not _RELEVANT.search(name))


def misspelled(name: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` for a known name that differs by a slip of the hand."""
    size = len(name)
    alike = [one for one in known if 2 * min(size, len(one)) >= _CLOSE * (size + len(one))] if size <= 200 else []
    letters = _letters(name)
    near = [one for one in alike if len(letters ^ _letters(one)) <= _OTHER_LETTERS]
    charge(_LETTERS_WORK * len(alike) + _LIKENESS_WORK * (1 + len(near)))
    found = difflib.get_close_matches(name, near, n=1, cutoff=_CLOSE)
    return f", did you mean '{found[0]}'?" if found else ""


@functools.lru_cache(maxsize=20_000)
def _letters(name: str) -> frozenset[str]:
    return frozenset(name)
