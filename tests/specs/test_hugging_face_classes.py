"""Parameter counts equal those of Hugging Face's own classes, built without storage; skipped without transformers."""

import importlib
import importlib.util
import json
from pathlib import Path

import pytest

from simulator.cost.operations.sums import total_parameters
from simulator.question.specs.families.reading import read_config
from tests.specs.small_configs import SMALL

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    *(
        pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=reason)
        for name, reason in (
            ("transformers", "the extra for Hugging Face's classes is not installed"),
            ("torch", "Hugging Face's classes need torch"),
        )
    ),
]


def class_parameters(model_type: str, keys: dict[str, object]) -> int:
    """Parameters of the class, and the corrections of its routers, which are buffers that checkpoints hold."""
    # Every worker collects this file, and one runs it: both take seconds to import.
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(model_type, **keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    corrections = sum(b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))
    parameters: int = sum(parameter.numel() for parameter in model.parameters())
    return parameters + int(corrections)


@pytest.mark.parametrize("name", SMALL)
def test_a_family_counts_what_its_class_has(name: str, tmp_path: Path) -> None:
    model_type, keys = SMALL[name]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type} | keys), encoding="utf-8")
    assert total_parameters(read_config(tmp_path / "config.json")) == class_parameters(model_type, dict(keys))
