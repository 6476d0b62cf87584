"""Parameters of every decoder and vision-language class of the installed transformers, beside what is counted here.

    python -m benchmarks.transformers_sync [TYPE ...] [--output docs/transformers.csv]

Each class is built without storage from its default configuration with few layers. A row says `exact`, `text exact`
(the language model of one whose encoder is not known), `refused` with the reason, `differs` with both counts, or
`not built` where its defaults make no model. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import json
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import say
from simulator.cost.operations.sums import total_parameters
from simulator.errors import SimulateError
from simulator.question.specs.families.reading import model_of_config

_LAYERS: Final = 6
_SECONDS: Final = 60
_PER_LAYER: Final = ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type", "attn_layer_indices")
_LANGUAGE: Final = ("language_model", "lm_head", "embed_tokens", "text_model")


def shrunk(config: Any) -> Any:
    """Return a configuration whose language model has few layers; lists with an entry a layer are cut alike."""
    text = config.get_text_config()
    if getattr(text, "num_hidden_layers", 0) > _LAYERS:
        text.num_hidden_layers = _LAYERS
        for name in _PER_LAYER:
            listed = getattr(text, name, None)
            if isinstance(listed, list | tuple) and len(listed) > _LAYERS:
                setattr(text, name, list(listed)[:_LAYERS])
    return config


def counted(kind: str, group: str) -> tuple[str, str]:
    """Return result and detail of one model type; `group` is the transformers' automatic class that builds it."""
    transformers, torch = importlib.import_module("transformers"), importlib.import_module("torch")
    try:
        config = shrunk(transformers.AutoConfig.for_model(kind))
        with torch.device("meta"):
            model = getattr(transformers, group).from_config(config)
    except Exception as error:  # noqa: BLE001  a class may fail in any way
        return "not built", f"{type(error).__name__}: {error}".splitlines()[0][:120]
    corrections = {name: b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")}
    sizes = {name: tensor.numel() for name, tensor in model.named_parameters()} | corrections
    values = json.loads(json.dumps(config.to_dict(), default=str))
    try:
        spec = model_of_config(values, "config.json", kind)
    except SimulateError as error:
        return "refused", str(error).removeprefix("config.json: ").partition(" known: ")[0].rstrip(";")[:160]
    own, built = total_parameters(spec), sum(sizes.values())
    if spec.encoder is not None:
        own += spec.encoder.parameters + spec.encoder.projector_parameters
        return ("exact", f"{built}") if own == built else ("differs", f"{built} built, {own} counted")
    if spec.text_part:
        built = sum(size for name, size in sizes.items() if any(part in name for part in _LANGUAGE))
        return ("text exact", f"{built}") if own == built else ("differs", f"{built} of the text built, {own} counted")
    return ("exact", f"{built}") if own == built else ("differs", f"{built} built, {own} counted")


def rows(kinds: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield model type, result and detail of every class, or of some."""
    names = importlib.import_module("transformers.models.auto.modeling_auto")
    groups = dict.fromkeys(names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "AutoModelForCausalLM")
    groups |= dict.fromkeys(names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "AutoModelForImageTextToText")
    for kind in kinds or sorted(groups):
        signal.alarm(_SECONDS)
        try:
            yield kind, *counted(kind, groups[kind])
        except TimeoutError:
            yield kind, "not built", f"takes more than {_SECONDS} s"
        finally:
            signal.alarm(0)


def _late(*_: object) -> None:
    raise TimeoutError


def main() -> int:
    """Print or write the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="TYPE")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _late)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("model_type", "result", "detail"))
    results: Counter[str] = Counter()
    for row in rows(asked.kinds):
        writer.writerow(row)
        results[row[1]] += 1
    if asked.output is None:
        say(table.getvalue())
    else:
        asked.output.write_text(table.getvalue(), encoding="utf-8")
    version = importlib.import_module("transformers").__version__
    say(f"transformers {version}: " + ", ".join(f"{count} {name}" for name, count in results.most_common()))
    return int(results["differs"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
