"""NeMo runs that train more than a decoder on its next tokens, recognised by keys that only such runs have."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from simulator.errors import InputError
from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.documents import Key, beside, keys_of, read_document
from simulator.question.recipe import Recipe

_SECTIONS: Final[Mapping[tuple[str, ...], str]] = {
    ("model", "mm_cfg"): "models with a vision encoder are not modelled",
    ("trainer", "ppo"): "training on preferences by PPO, with a model that generates, is not modelled",
    ("actor", "trainer"): "training on preferences by PPO, with a model that generates, is not modelled",
    ("trainer", "dpo"): "training on preferences under a frozen copy of the model is not modelled",
    ("trainer", "knowledge_distillation"): "a second model beside the one that is trained is not priced",
}
"""Sections of the configurations in examples/multimodal of NeMo 8cfedd7 and examples/nlp/gpt/conf of NeMo-Aligner."""
_KEYS: Final = {
    "virtual_prompt_style": "prompts or adapters in front of frozen layers are not priced",
    "vision_pretraining_type": "a vision model is not modelled",
}
_NAMES: Final = (("name",), ("run", "name"), ("exp_manager", "name"))
_GENERATES: Final = re.compile(r"(?<![a-z])(?:ppo|grpo|rloo|ilql|reinforce)(?![a-z])")
"""Names of runs whose scripts, such as those of trlX, add a value head, a frozen copy or a generation."""
_PAIR: Final = {("model", "vision"), ("model", "text")}
"""Sections of CLIP: an image encoder and a text encoder."""
_TWO: Final = "an encoder of images and one of text are not modelled"
_REWARD: Final = ("trainer", "rm")
_KIND: Final = "reward_model_type"


def other_run(keys: Iterable[Key]) -> tuple[Key, str] | None:
    """Return the key that marks another kind of run, and the remark on it; None where a decoder is trained."""
    sections: dict[tuple[str, ...], Key] = {}
    for key in keys:
        sections.setdefault(key.path[:2], key)
        if key.path[:2] in _SECTIONS and len(key.path) > 2:
            return key, f"{'.'.join(key.path[:2])}: {_SECTIONS[key.path[:2]]}"
        if key.name in _KEYS:
            return key, f"{key.name}: {_KEYS[key.name]}"
        text = key.values[0].text if key.values and key.path in _NAMES else ""
        if _GENERATES.search(text.lower()):
            return key, f"{text[:60]}: training with a model that generates is not modelled"
    return (sections["model", "vision"], f"vision: {_TWO}") if sections.keys() >= _PAIR else None


def reward_options(keys: Iterable[Key]) -> dict[str, str]:
    """Return the switches of a reward model: a score in place of the logits, and pairs unless it fits given scores.

    NeMo-Aligner's megatron_gpt_reward_model.py puts the chosen and the rejected answers of a micro batch into one.
    """
    listed = list(keys)
    if not any(key.path[:2] == _REWARD for key in listed):
        return {}
    kind = next((key.values[0].text for key in listed if key.name == _KIND and key.values), "")
    pairs = {} if kind == "regression" else {"sequences_per_sample": "2"}
    return {"score_head": "true", **pairs}


def note_part(arguments: Arguments, run: Recipe, sections: set[str]) -> None:
    """Remark a file of Megatron-Bridge that states neither a model nor sizes: it is only part of a recipe."""
    sized = run.model is not None or {"num_hidden_layers", "hidden_size"} & run.model_fields.keys()
    if not sized and {"train", "model"} <= sections:
        message = "no class and no sizes of a model: Megatron-Bridge lays such a file over a recipe in Python"
        arguments.remark_line("base-configuration", "warning", message, 1)


RESTORED: Final = ("run", "model_train_name")
"""Key in which NeMo 1's launcher names the weights that a run starts from."""
_SIZES: Final = frozenset(
    [
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
        *("activation", "bias", "normalization", "position_embedding_type", "share_embeddings_and_output_weights"),
        *("max_position_embeddings", "make_vocab_size_divisible_by", "override_vocab_size", "qk_layernorm"),
        *("num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "rotary_percentage", "add_qkv_bias"),
    ]
)
"""Keys taken from the weights' own configuration; others merge (tuning/megatron_gpt_finetuning.py of NeMo 8cfedd7)."""


def restored_sizes(path: Path, keys: Iterable[Key]) -> list[Key]:
    """Return the size keys of the model that a run starts from, found in the launcher's training file of that name.

    A run's name `gpt3_5b` means `training/gpt3/5b.yaml`, `falcon_7b` means `training/falcon/falcon_7b.yaml`
    (launcher_scripts/conf of 26e42fa).
    """
    name = next((key.values[0].text for key in keys if key.path == RESTORED and key.values), "")
    if not re.fullmatch(r"\w{1,60}", name, re.ASCII) or models.by_name(name)[0] is not None:
        return []
    family = name.partition("_")[0]
    for stem in (name, name.removeprefix(f"{family}_")):
        with contextlib.suppress(InputError):
            file = beside(str(path), f"training/{family}/{stem}.yaml", 1)
            listed = [key for key in keys_of(file, read_document(file)) if key.path[:-1] == ("model",)]
            return [dataclasses.replace(key, file=str(file)) for key in listed if key.name in _SIZES]
    return []
