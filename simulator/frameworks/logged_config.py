"""A model's configuration as trainers log it (`...Config {` and JSON), and the shape it states. Looks up no model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.errors import InputError
from simulator.frameworks.logs import LogLine

_BEGINS: Final = re.compile(r"\b[A-Z][A-Za-z0-9_]{1,40}Config \{\s*$")
_PREFIX: Final = re.compile(r"^(?:\[[^\]]{1,40}\] ?){1,4}- ?")
_LONGEST: Final = 2000
_PLAIN: Final = frozenset({"gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "gpt_bigcode", "starcoder2"})
"""Families whose feed-forward networks are not gated."""
_ROTARY: Final = frozenset({"gpt_neox", "falcon", "starcoder2", "gptj"})
"""Families in `_PLAIN` with rotary position embeddings."""


@dataclass(slots=True)
class LoggedConfig:
    """A logged configuration, filled line by line."""

    value: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    """File and line where it begins."""
    _open: list[str] = field(default_factory=list)

    def take(self, line: LogLine) -> bool:
        """Take a line and return whether it is part of a configuration. Raises InputError for invalid JSON."""
        if not self._open:
            if not _BEGINS.search(line.text):
                return False
            self._open, self.where = ["{"], line.where
            return True
        text = _PREFIX.sub("", line.text)
        self._open.append(text)
        if text.startswith("}") or len(self._open) >= _LONGEST:
            joined, self._open = "\n".join(self._open), []
            try:
                value = json.loads(joined)
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{self.where}: the model's configuration is not JSON up to line {line.number}"
                ) from error
            self.value = value if isinstance(value, dict) else {}
        return True

    def shape(self) -> Mapping[str, Any] | None:
        """Return the shape that the configuration states, None without one. Raises InputError for a wrong field."""
        return _shape(self.value, self.where) if self.value else None


def _shape(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:

    def count(*names: str) -> int | None:
        for name in names:
            value = config.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**31):
                raise InputError(f"{where}: {name} is {str(value)[:40]}; expected a whole number")
            if value:
                return int(value)
        return None

    def needed(*names: str) -> int:
        if (value := count(*names)) is None:
            raise InputError(f"{where}: the model's configuration has no {names[0]}")
        return value

    experts = count("num_experts", "num_local_experts", "moe_num_experts")
    kind, tied = config.get("model_type"), config.get("tie_word_embeddings")
    heads, hidden = needed("num_attention_heads", "n_head"), needed("hidden_size", "n_embd")
    plain = kind in _PLAIN
    width = count("intermediate_size", "n_inner") or (4 * hidden if plain else None)
    shape: dict[str, Any] = {
        "num_hidden_layers": needed("num_hidden_layers", "n_layer"),
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": count("num_key_value_heads") or heads,
        "head_dim": count("head_dim"),
        "vocab_size": count("vocab_size"),
        "tie_word_embeddings": tied if isinstance(tied, bool) else None,
        "num_experts": experts or 0,
        "gated": not plain,
        "norm": "layer_norm" if plain else "rms_norm",
    }
    if experts:
        shape["num_experts_per_tok"] = count("num_experts_per_tok", "moe_k")
        shape["moe_intermediate_size"] = count("moe_intermediate_size") or width
    if plain:
        shape |= {"activation": "gelu", "rotary": kind in _ROTARY}
        shape |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), True)
        shape["learned_positions"] = 0 if kind in _ROTARY else count("n_positions", "max_position_embeddings") or 0
    return shape
