"""Flags of Megatron-LM and the frameworks built on it that a recipe is read from."""

from __future__ import annotations

from typing import Final

from simulator.frameworks.flags import flags_of, passed_of, read_of

FRAMEWORKS: Final = ("megatron", "mindspeed", "pai", "flagscale", "megatron_deepspeed")
FLAGS: Final = read_of(*FRAMEWORKS)
PASSED: Final = passed_of(*FRAMEWORKS)
"""Flags that change neither memory nor speed as far as it is modelled."""
MINDSPEED: Final = frozenset(flags_of("mindspeed")) - frozenset(flags_of("megatron", "pai", "flagscale"))
"""Flags that only MindSpeed has."""
TOKENIZERS: Final = {
    "llama3tokenizer": 128256,
    "llama2tokenizer": 32000,
    "qwen3": 151669,
    "qwen2.5": 151665,
    "qwen2": 151646,
    "qwen1.5": 151646,
    "qwen15": 151646,
    "qwen-7b": 151851,
    "qwen-14b": 151851,
    "qwen-72b": 151851,
    "baichuan2": 125696,
    "mixtral": 32000,
    "gpt2bpetokenizer": 50257,
    "gptneox20b": 50277,
}
"""Entries of known tokenizers, by a part of the type's or path's name in lower case."""
PATCHED: Final = {"qwen2tokenizer": 151643}
"""Vocabularies of Pai's tokenizers, whatever weights are loaded: megatron_patch/tokenizer/__init__.py of a098ca5 counts
the entries of vocab.json alone, the same for Qwen1.5, Qwen2 and Qwen2.5."""
