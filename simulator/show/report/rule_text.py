"""Titles of rules, in a few words: for machines that list rules beside their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulator.recipes.rules.rule import FRAMEWORK_RULES
from simulator.search.rules import RULES

_OUTCOMES: Final[Mapping[str, str]] = {
    "starved": "so near capacity that it may run, slowly",
    "does-not-fit": "a pipeline rank needs more memory than there is",
    "fits": "it fits, and a gate is broken",
    "refused": "the framework would end with an error at the start",
    "cannot-tell": "a value is missing that only the run knows",
    "not-modelled": "something in the recipe cannot be priced as it is",
    "unreadable": "the file is no recipe, or contradicts the cluster it is given",
}
_REMARKS: Final[Mapping[str, str]] = {
    "assumed-unset": "variables of the environment were taken as not set",
    "changed-model": "fields of the model are replaced, and published weights no longer match",
    "contradiction": "two flags contradict each other, or one has no effect for lack of another",
    "exit-path": "the script may end before it starts anything",
    "full-precision": "no flag for bf16 or fp16: the framework then trains in fp32",
    "hardware-assumed": "nobody named the hardware",
    "inactive-flag": "a flag has no effect here",
    "model-guessed": "the model's name is not exact",
    "nodes-assumed": "nobody said how many nodes run it",
    "devices-assumed": "nobody said on how many devices of a node it starts",
    "unknown-vocabulary": "the model's vocabulary is not given",
    "no-sequence-parallel": "tensor parallel without sequence parallel",
    "no-vocabulary": "the vocabulary is not given",
    "one-connection": "CUDA_DEVICE_MAX_CONNECTIONS of 1 beside FSDP",
    "override": "the command line replaces what a configuration file gives",
    "partial-send-recv": "sequence parallel with pipeline stages needs a setting of the pipeline",
    "positional-parameters": "the script's own arguments decide something, and nobody gave them",
    "release-assumed": "no flag tells the release, and its oldest default counts",
    "repeated-flag": "a flag is given more than once; the last one counts",
    "sequence-parallel-off": "sequence parallel without tensor parallel is switched off",
    "sharding-off": "with one replica nothing is sharded",
    "sharding-degree": "optimizer state is split over fewer ranks than is priced",
    "uneven-stages": "layers do not divide over the stages",
    "unknown-flag": "a flag that is not read may change memory or speed",
    "unknown-model": "the model's name is not known",
    "unknown-value": "a value that only the run knows, or that the framework does not take",
    "unused-setting": "nothing depends on a --set",
    "activations-bound": "the estimate is more than the run will hold between its passes",
    "upper-bound": "the estimate is more than the run will need",
    "vocabulary-assumed": "the vocabulary is taken from the tokenizer's name",
    "warmup-exceeds-steps": "the warm-up is longer than the run",
}


def rule_text(rule: str) -> str:
    """Return what a rule is about; its words where it is of no list."""
    known = {**_OUTCOMES, **_REMARKS, **{entry.id.replace("_", "-"): entry.about for entry in RULES}}
    known |= {entry.id: entry.about for entry in FRAMEWORK_RULES}
    return known.get(rule) or f"a remark of the recipe's reader: {rule.replace('-', ' ')}"
