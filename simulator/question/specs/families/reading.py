"""Reading of a configuration by its family's entries in the table: fields of a model spec. Names no family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simulator.errors import InputError
from simulator.question.specs.configuration import Config
from simulator.question.specs.families.layers import Fields, sequence
from simulator.question.specs.families.table import Family, family
from simulator.question.specs.mixers import NEEDS
from simulator.question.specs.model import Activation, ModelSpec
from simulator.question.specs.model_checks import EXPERT_FIELDS
from simulator.question.specs.validation import listed, wrong_values

ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "swigluoai": "silu",
    "situ": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
}
"""Activation names of configurations, with the activation that each is priced as."""


def fields_of(architecture: str, config: Config) -> Fields:
    """Return the fields of a model spec that a configuration of a known family gives.

    Raises InputError for what is missing or of another type, UnsupportedError for what cannot be priced.
    """
    return _Reading(family(architecture), config).fields()


class _Reading:
    """Configuration with its family; fields are read when another field or the result needs them."""

    def __init__(self, entry: Family, config: Config) -> None:
        config = config.renamed(**entry.rename)
        assumed = dict(entry.assume)
        self._read, self._set = dict(entry.read), dict(entry.set)
        for change in entry.when:
            if config.value(change["key"], assumed.get(change["key"])) == change["is"]:
                self._read |= change.get("read", {})
                self._set |= change.get("set", {})
        self._entry, self._config, self._assumed = entry, config, assumed
        self._known: dict[str, Any] = {}

    def fields(self) -> Fields:
        """Return all fields, without those of parts that the model does not have."""
        for key, only in self._entry.only.items():
            priced = self._field(only[1:]) if isinstance(only, str) and only.startswith("=") else only
            if self._config.value(key, priced) not in (priced, None):
                raise self._config.unsupported(key, f"only {str(priced).lower()} can be priced")
        problems = [problem for name in self._read if (problem := self._problem(name))]
        if problems:
            raise InputError(listed(self._config.where, [*problems, *wrong_values(ModelSpec, self._known)]))
        fields = self._known | self._set
        fields |= sequence(self._config.assuming(**self._plain_assumptions()), fields, self._entry.layers)
        return _without_absent_parts(fields)

    def _problem(self, name: str) -> str:
        """Return the problem with the keys of a field; empty where they can be read."""
        try:
            self._field(name)
        except InputError as error:
            return str(error).removeprefix(f"{self._config.where}: ")
        return ""

    def _plain_assumptions(self) -> dict[str, Any]:
        return {key: value for key, value in self._assumed.items() if "." not in key and not _refers(value)}

    def _field(self, name: str) -> Any:
        if name not in self._known:
            if name in self._set:
                return self._set[name]
            kind = _kind(name)
            text = str(self._read[name])
            if name == "activation":
                value: Any = self._activation(text)
            elif kind is bool:
                value = self._flag(text)
            else:
                value = self._number(name, text)
            self._known[name] = value
        return self._known[name]

    def _activation(self, text: str) -> Activation:
        keys = text.split(" or ")
        key = next((key for key in keys if self._config.has(key)), keys[-1])
        word = self._config.text(key, str(self._assumed.get(keys[-1], "")))
        if word not in ACTIVATIONS:
            raise self._config.unsupported(key, f"'{word[:40]}' cannot be priced; known: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[word]

    def _flag(self, text: str) -> bool:
        key, _, is_set = text.partition(" is set")
        if is_set or text.endswith(" is set"):
            return self._config.value(key, self._assumed.get(key)) is not None
        return self._config.flag(key, default=bool(self._assumed.get(key, False)))

    def _number(self, name: str, text: str) -> int | None:
        """Return the first alternative that has a value. Raises InputError for a required field without one."""
        for alternative in text.split(" or "):
            value = self._sum(alternative)
            if value is not None:
                return value
        if name == "sliding_window" or ModelSpec.model_fields[name].is_required():
            raise InputError(f"{self._config.where}: {text.partition(' ')[0]}: is missing")
        default = ModelSpec.model_fields[name].default
        return None if default is None else int(default)

    def _sum(self, text: str) -> int | None:
        parts = [self._product(part) for part in text.split(" + ")]
        return None if None in parts else sum(part for part in parts if part is not None)

    def _product(self, text: str) -> int | None:
        if " / " in text:
            return self._share(*text.split(" / "))
        result = 1
        for term in text.split(" * "):
            value = self._term(term)
            if value is None:
                return None
            result *= value
        return result

    def _share(self, whole: str, parts: str) -> int:
        """Return one field divided evenly by another."""
        of, by = self._term(whole), self._term(parts)
        if not of or not by or of % by:
            name, divided = parts.lstrip("="), whole.lstrip("=")
            raise InputError(f"{self._config.where}: {name}: {by} must divide {divided} {of} without head_dim")
        return of // by

    def _term(self, text: str) -> int | None:
        if text.isdecimal():
            return int(text)
        if _refers(text):
            value: int | None = self._field(text[1:])
            return value
        if text == "num_hidden_layers" and self._config.present(text):
            return self._config.layers(text)
        assumed: Any = self._assumed.get(text)
        if _refers(assumed) and not self._config.has(text):
            return self._term(assumed)
        return self._config.number(text, assumed)


_SLIDING: Final = {
    "sliding_attention_heads": "num_attention_heads",
    "sliding_key_value_heads": "num_key_value_heads",
    "sliding_head_dim": "head_dim",
    "sliding_value_head_dim": "v_head_dim",
}
"""Fields of sliding layers with those of other layers; equal ones are left out."""


def _refers(value: object) -> bool:
    """Tell whether a value stands for a field of the spec."""
    return isinstance(value, str) and value.startswith("=")


def _kind(name: str) -> object:
    """Return the type of a field of a model spec."""
    return bool if isinstance(ModelSpec.model_fields[name].default, bool) or name == "tie_word_embeddings" else int


def _without_absent_parts(fields: Fields) -> Fields:
    """Return the fields without those of experts, norms and mixers that the model lacks."""
    absent: set[str] = set()
    networks = fields.get("feed_forwards") or ()
    routed = any("experts" in word for word in networks) if networks else fields.get("num_experts")
    if not fields.get("num_experts") or not routed:
        absent |= EXPERT_FIELDS
    if fields.get("n_group", 0) is not None and fields.get("n_group", 0) <= 1:
        absent |= {"n_group", "topk_group"}
    if not fields.get("layer_embedding_size"):
        absent |= {"layer_embedding_rows"}
    if not fields.get("qk_norm"):
        absent |= {"qk_norm_span"}
    if "first_k_dense_replace" in fields and networks:
        absent |= {"first_k_dense_replace"}
    used = set(fields.get("mixers") or ())
    absent |= {name for mixers, name in NEEDS if not used & mixers}
    for name, usual in _SLIDING.items():
        own = fields.get(usual) or (fields.get("head_dim") if usual == "v_head_dim" else None)
        absent |= {name} if "sliding" not in used or fields.get(name) == own else set()
    absent |= set() if "sliding" in used else {"window_chunked"}
    return {name: value for name, value in fields.items() if name not in absent}
