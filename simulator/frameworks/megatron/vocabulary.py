"""The vocabulary of Megatron's flags: the stated size, or that of the tokenizer they name. Opens no tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.question.specs.documents import read_yaml

_DEFAULT: Final = "gpt2bpetokenizer"
"""Default tokenizer of pretrain_gpt.py."""
_WHOLE: Final = ("padded-vocab-size", "pad-vocab-size-to")


@functools.cache
def _tokenizers() -> Mapping[str, Mapping[str, int]]:
    tables: Mapping[str, Mapping[str, int]] = read_yaml(Path(__file__).with_name("tokenizers.yaml"))
    return tables


def padded(count: int, multiple: int) -> int:
    """Return a count rounded up to a multiple."""
    return -(-count // multiple) * multiple


def padding(arguments: Arguments, tensor_parallel: int) -> int:
    """Return the multiple that Megatron pads a vocabulary to; 1 where its padded size is stated."""
    if arguments.has(*_WHOLE):
        return 1
    return (arguments.integer("vocab_size", "make-vocab-size-divisible-by") or 128) * tensor_parallel


def vocabulary(arguments: Arguments) -> tuple[int | None, str]:
    """Return the size of the vocabulary, None if unknown, and the tokenizer that it is assumed from."""
    whole = arguments.integer("vocab_size", *_WHOLE)
    if whole:
        return whole, ""
    # MindSpeed sizes the table by the tokenizer it loads, regardless of --vocab-size.
    known, _ = models.by_name(_text(arguments, "tokenizer-name-or-path"))
    if known and known not in models.BY_NAME_ALONE:
        return models.load_model(known).vocab_size, ""
    count = arguments.integer("vocab_size", "vocab-size")
    if count:
        return count, ""
    names = _tokenizers()["by_part_of_name"]
    if arguments.has("merge-file") and not arguments.has("tokenizer-type"):
        # Only that tokenizer has merges.
        return names[_DEFAULT], "GPT-2"
    # A known file is more specific than its class, which several models share.
    file = arguments.entry("tokenizer-model")
    sure = ("tokenizer-model",) if file is not None and not file.causes else ()
    for flag in ("patch-tokenizer-type", *sure, "tokenizer-type", "tokenizer-model", "tokenizer-name-or-path"):
        text = _text(arguments, flag)
        for name, entries in names.items():
            if name in text.lower() and not text.lower().endswith("qwen2tokenizer"):
                return entries, PurePath(text).name
    return _beside_weights(arguments)


def _text(arguments: Arguments, flag: str) -> str:
    """Return a tokenizer's name; one that only the run knows is empty, so that the next flag counts."""
    text = arguments.text("tokenizer", flag) or ""
    arguments.incomplete.discard("tokenizer")
    arguments.forget("tokenizer")
    return text


def _beside_weights(arguments: Arguments) -> tuple[int | None, str]:
    """Return the vocabulary of the loaded weights, and their name.

    Pai's patch takes the tokenizer from there, whatever its class (megatron_patch/tokenizer of a098ca5); without known
    weights the vocabulary is that of all tokenizers of the class.
    """
    patched, weights = arguments.entry("patch-tokenizer-type"), arguments.entry("load")
    if patched is None:
        return None, ""
    known, _ = models.by_name(weights.text) if weights is not None and not weights.causes else (None, False)
    if weights is not None and known:
        return models.load_model(known).vocab_size, PurePath(weights.text).name
    return _tokenizers()["of_pai"].get(patched.text.lower()), patched.text
