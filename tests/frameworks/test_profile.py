"""Framework profiles: what they switch, and options given as text."""

import dataclasses

import pytest

from simulator.errors import InputError
from simulator.question.frameworks.profile import FrameworkProfile, switch_meanings, switches
from simulator.question.frameworks.stacks import PROFILES, framework


def test_the_profiles() -> None:
    assert sorted(PROFILES) == ["megatron", "paddle", "torch"]
    for name, profile in PROFILES.items():
        assert framework(name) is not None
        assert profile.name == name
        assert framework(name) == profile
    assert len({tuple(dataclasses.astuple(p)[1:]) for p in PROFILES.values()}) == 3


def test_every_switch_is_described_and_its_values_are_allowed() -> None:
    described = {f.name for f in switches()}
    beside = {
        "name",
        "limits",
        "version",
        "stack",
        "release",
        "release_source",
        "case",
        "stated",
        "stack_assumed",
        "hashed",
    }
    assert described == {f.name for f in dataclasses.fields(FrameworkProfile)} - beside
    assert list(switch_meanings()) == [one.name for one in switches()]
    for one in switches():
        about = switch_meanings()[one.name]
        assert about
        assert "\n" not in about
        for profile in PROFILES.values():
            value = getattr(profile, one.name)
            if isinstance(value, str | tuple):
                words = value if isinstance(value, tuple) else (value,)
                assert set(words) <= set(one.metadata["choices"])
            elif not isinstance(value, bool):
                assert one.metadata["low"] <= value <= one.metadata["high"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("1", True), ("on", True), ("yes", True), ("no", False), ("0", False)],
)
def test_flags(text: str, value: bool) -> None:
    assert framework("torch", {"fused_swiglu": text}).fused_swiglu is value


def test_other_values() -> None:
    changed = framework(
        "paddle",
        {
            "cp_communication": "all_to_all",
            "gradient_dtype": "fp32",
            "loss_bytes_per_logit": "12",
            "expert_imbalance": "1.25",
        },
    )
    assert changed == dataclasses.replace(
        PROFILES["paddle"],
        cp_communication="all_to_all",
        gradient_dtype="fp32",
        loss_bytes_per_logit=12,
        expert_imbalance=1.25,
    )
    assert isinstance(changed.loss_bytes_per_logit, int)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("megatorn", {}, "unknown framework 'megatorn', did you mean 'megatron'?; allowed: megatron, paddle, torch"),
        ("jax", {}, "unknown framework 'jax'; allowed: megatron, paddle, torch"),
        (
            "torch",
            {"fused_crossentropy": "true"},
            "--option fused_crossentropy: unknown switch, did you mean 'fused_cross_entropy'?",
        ),
        ("torch", {"name": "x"}, "--option name: unknown switch"),
        ("torch", {"mtp": "maybe"}, "--option mtp=maybe: allowed are true and false"),
        ("torch", {"cp_communication": "star"}, "--option cp_communication=star: allowed are ring, gathered_ring"),
        ("torch", {"gradient_dtype": "fp16"}, "--option gradient_dtype=fp16: allowed are fp32, bf16"),
        (
            "torch",
            {"loss_bytes_per_logit": "64"},
            "--option loss_bytes_per_logit=64: must be a whole number from 2 to 32",
        ),
        ("torch", {"loss_bytes_per_logit": "8.5"}, "--option loss_bytes_per_logit=8.5: must be a whole number"),
        ("torch", {"expert_imbalance": "0.001"}, "--option expert_imbalance=0.001: must be a number from 0.01"),
        ("torch", {"expert_imbalance": "nan"}, "--option expert_imbalance=nan: must be a number from 0.01"),
        ("torch", {"expert_imbalance": "inf"}, "--option expert_imbalance=inf: must be a number from 0.01"),
        (
            "torch",
            {"cross_entropy_chunk_tokens": "-1"},
            "--option cross_entropy_chunk_tokens=-1: must be a whole number",
        ),
        ("torch", {"cross_entropy_chunk_tokens": ""}, "--option cross_entropy_chunk_tokens=: must be a whole number"),
    ],
)
def test_errors_are_one_line_with_what_is_allowed(name: str, options: dict[str, str], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        framework(name, options)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
