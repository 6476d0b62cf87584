"""Remarks on networks that a recipe names and that are not priced: RWKV, BERT, a program of its own.

Reads names in the recipe's words, no weights and no code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from simulator.frameworks.documents import Key
from simulator.question.origin import Place, Remark
from simulator.question.recipe import Recipe
from simulator.question.specs.catalogue import model_names
from simulator.question.specs.model import architectures

_MIXERS: Final = (
    r"rwkv|recurrent[_-]?gemma|griffin|hawk|retnet|hyena|min[_-]?(?:lstm|gru)|x?lstm|falcon[_-]?mamba|zamba|jamba"
    r"|codestral[_-]?mamba|llama[_-]?moe|mega(?:lodon|byte)|bitnet|internvl|llava"
)
_ENCODERS: Final = r"diffusion|dit|whisper|wav2vec|clip|siglip|bert|roberta|deberta|t5|ul2|bart"
_OTHERS: Final = re.compile(rf"(?<![a-z])(?:{_MIXERS}|{_ENCODERS})(?![a-z])")
_OF_TOKENIZERS: Final = re.compile(rf"(?<![a-z])(?:{_MIXERS})(?![a-z])")
"""Networks with layers that are not priced: recurrent or state-space ones without a spec, experts of another kind,
weights quantised in training, encoders, images, speech. Decoders may use an encoder's tokenizer."""
_NAMING: Final = re.compile(
    r"(?:[\w.]*[._])?(?:model(?:_(?:type|name|class|name_or_path))?|architectures?|entrypoint|_target_)"
    r"|(?:[\w.]*\.)?tokenizer\.(?:type|name|model)|tokenizer_(?:name|name_or_path|model)"
)
"""Keys and flags whose text names the network."""
_LONGEST: Final = 100
"""Most characters examined at the end of a key."""
_PLAIN: Final = frozenset(
    (
        *("pretrain", "train", "finetune", "finetuning", "tune", "tuning", "posttrain", "pre", "post", "sft", "cpt"),
        *("main", "run", "launch", "script", "training", "trainer", "megatron", "mcore", "core", "legacy", "local"),
        *("gpt", "lm", "llm", "clm", "causal", "decoder", "model", "models", "moe", "dense", "prefix", "mem", "flash"),
        *("ds", "deepspeed", "hf", "huggingface", "withga", "with", "ga", "mtp", "dist", "multi", "node", "custom"),
        *("hybrid", "mamba", "aquila", "baichuan", "bloom", "chatglm", "falcon", "galactica", "grok", "internlm"),
        *("skywork", "starcoder", "yi", "yuan", "t", "py", "fp", "bf", "instruct", "chat", "alpaca", "vicuna"),
        *("distill", "dpo", "kto", "orpo", "simpo", "reward", "rm", "modelopt"),
    )
)
"""Words in names of programs that build the network of their flags."""
_MEGATRON: Final = ("megatron-shell", "nemo-yaml")
"""Dialects whose flags describe the whole network, so that a program of another name may build another one."""


def with_network(recipe: Recipe, keys: Iterable[Key] = ()) -> Recipe:
    """Return the recipe with a remark if its flags or its file's keys name a network that is not priced."""
    named = [(key.dotted, key.values[0].text, Place(key.file or recipe.file, key.line)) for key in keys if key.values]
    own = [(flag.name, flag.text, flag.place) for flag in recipe.flags]
    texts = [(name, text, place) for name, text, place in (*named, *own) if _NAMING.fullmatch(name[-_LONGEST:])]
    entries: list[tuple[str, Place | None]] = [
        (text, place) for name, text, place in texts if name.endswith("entrypoint")
    ]
    entries += [(recipe.title, None)] if recipe.title.endswith(".py") else []
    remark = next((_other(text, place) for name, text, place in texts if _is_other(name, text)), None)
    remark = remark or next((_other(text, place) for text, place in entries if _OTHERS.search(text.lower())), None)
    if remark is None and recipe.dialect in _MEGATRON:
        unknown = ((_unknown_words(text), text, place) for text, place in entries)
        remark = next((_program(words, text, place) for words, text, place in unknown if words), None)
    return recipe if remark is None else replace(recipe, remarks=(*recipe.remarks, remark))


def _is_other(name: str, text: str) -> bool:
    return (_OF_TOKENIZERS if "tokenizer" in name else _OTHERS).search(text.lower()) is not None


def _other(text: str, place: Place | None) -> Remark:
    shown = text[:80]
    return Remark("not-modelled", "error", f"'{shown}' names a network that is not priced", place)


def _program(words: list[str], text: str, place: Place | None) -> Remark:
    name = PurePath(text).name[:80]
    message = f"{name}: a program that is not known ('{words[0]}') may build another network than its flags say"
    return Remark("not-modelled", "error", message, place)


def _unknown_words(entry: str) -> list[str]:
    """Return the words of a program's name that are neither plain nor of a priced family."""
    stem = PurePath(entry).name.removesuffix(".py").lower()
    return [] if "$" in stem else [word for word in re.findall(r"[a-z]+", stem) if word not in _known_words()]


@functools.cache
def _known_words() -> frozenset[str]:
    names = (*model_names(), *architectures())
    return _PLAIN | {word for name in names for word in re.findall(r"[a-z]+", name)} - {"vl"}
