"""Variants of shipped decoders: as many parameters as their checkpoints have, known by the names that people write."""

import json
from dataclasses import asdict

import pytest

from simulator.cost.operations.sums import total_parameters
from simulator.frameworks.models import by_name
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import plain, validated
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.names import model_names, variants
from tests.memory.counted import mtp_parameters

DECODERS = [name for name, row in variants().items() if "type" not in row]

# As Hugging Face counts the parameters of their safetensors, in billions.
COUNTED = {
    "afm-4.5b": 4.62,
    "aya-expanse-8b": 8.03,
    "aya-expanse-32b": 32.3,
    "bloom-560m": 0.5592,
    "bloom-1b1": 1.0653,
    "bloom-1b7": 1.7224,
    "bloom-3b": 3.0026,
    "codeqwen1.5-7b": 7.25,
    "deepseek-coder-1.3b": 1.3465,
    "distilgpt2": 0.0819,
    "eurollm-1.7b": 1.657,
    "eurollm-9b": 9.152,
    "exaone-3.5-2.4b": 2.405,
    "exaone-3.5-7.8b": 7.818,
    "exaone-3.5-32b": 32.0,
    "falcon3-1b": 1.669,
    "falcon3-3b": 3.228,
    "granite-3.1-2b": 2.5335,
    "granite-3.3-8b": 8.1710,
    "granite-4.0-micro": 3.40,
    "hunyuan-0.5b": 0.539,
    "hunyuan-1.8b": 1.79,
    "hunyuan-4b": 4.22,
    "hunyuan-7b": 7.50,
    "internlm2-1.8b": 1.889,
    "internlm3-8b": 8.80,
    "mimo-7b": 7.8335,
    "minicpm-2b": 2.7249,
    "nemotron-mini-4b": 4.19,
    "opt-125m": 0.12524,
    "phi-1.5": 1.4183,
    "qwen-1.8b": 1.8368,
    "qwen-14b": 14.167,
    "qwen1.5-0.5b": 0.46399,
    "solar-10.7b": 10.732,
    "stablelm-2-1.6b": 1.6445,
    "stablelm-3b-4e1t": 2.7954,
}


def test_every_variant_is_held_to_its_checkpoint() -> None:
    assert list(COUNTED) == DECODERS
    assert not set(DECODERS) & set(model_names())


@pytest.mark.parametrize("name", DECODERS)
def test_a_variant_is_a_sound_spec_with_the_parameters_of_its_checkpoint(name: str) -> None:
    spec = load_model(name)
    assert spec.encoder is None
    assert validated(name, ModelSpec, json.loads(json.dumps(plain(spec)))) == spec
    assert asdict(spec)["name"] == name
    assert (total_parameters(spec) + mtp_parameters(spec)) / 1e9 == pytest.approx(COUNTED[name], rel=0.002)


@pytest.mark.parametrize(
    ("text", "name", "guessed"),
    [
        ("microsoft/phi-1_5", "phi-1.5", False),
        ("tiiuae/Falcon3-1B-Instruct", "falcon3-1b", False),
        ("stabilityai/stablelm-2-1_6b-chat", "stablelm-2-1.6b", False),
        ("./checkpoints/bloom-3b-my-sft", "bloom-3b", True),
        ("distilgpt2-qwen-7b", None, False),
        ("Qwen/Qwen-14B-Chat-Int4", None, False),
        ("shenzhi-wang/Llama3-8B-Chinese-Chat", "llama3-8b", True),
        ("out/Meta-Llama-3.1-8B-sft", "llama3.1-8b", True),
    ],
)
def test_names_of_variants_and_of_what_people_tune(text: str, name: str | None, guessed: bool) -> None:
    assert by_name(text) == (name, guessed)
