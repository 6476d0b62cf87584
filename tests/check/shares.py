"""How many public recipes that train a language model get a verdict, by family. Run as a script, it prints them.

A recipe counts where it starts the training of a decoder in a framework whose recipes are read. It gets a verdict with
the hardware of its family and at most the number of nodes told; `told` says how many more get one with the arguments or
variables that the script or the file leaves to the run.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked
from tests.recipes.corpus import Public, corpus, verdict

CLAIMED: Final = (
    *("bigscience", "flagscale", "gpt-neox", "hf-trainer", "llamafactory", "megatron-bridge", "megatron-deepspeed"),
    *("megatron-forks", "megatron-lm", "megatron-moe-zoo", "megatron-tests", "mindspeed", "nemo", "nemo-launcher"),
    *("paddleformers", "paddlenlp", "pai", "primus", "swift", "torchtitan"),
)
"""Families of the corpus whose recipes are read."""
_HARDWARE: Final = {"mindspeed": ("ascend-910b-64g-8", "ascend-910c"), "primus": ("mi300x",)}
_NODES: Final = (None, *sorted(step << power for power in range(12) for step in (1, 3)))
_FIRM: Final = ("fits", "starved", "does_not_fit", "refused")
_NONE: Final = re.compile(
    r"starts no training|before it starts any training|no such file beside|no recipe of a framework|is no recipe"
    r"|flags of no framework|(?:keeps (?:what it sets|its values)|recipes) in Python"
    r"|mcore_adapter is not read|a part of a training; give the script"
    r"|a file of [^,]{1,40}, which is not read"
    r"|is to be judged by itself"
    r"|must hold a mapping|tuner chooses the layout|names no model; give the script|nothing is trained"
)
"""What is said of files that start no training, start another program's, or are but a part of a recipe."""
_OTHER: Final = re.compile(
    r"vision|VL-SFT|an encoder|encoders? with|retrieval model|img_size|image|(?i:vl)(?![a-z])|vlmoe|omni"
    r"|FlagScale on pi0|diffusion models|reranker|seq_cls|\bt5|bert|/rl/"
)
"""What is said of recipes that train another model than a decoder of text."""
_PARTS: Final = ("base-configuration",)
"""Remarks on a file that only changes another, which is not at hand."""
_TEMPLATE: Final = re.compile(r"\w+_TEMPLATE\.json")
"""What a script fills in for DeepSpeed; without it the script is a part of a recipe."""
_ARGUMENT: Final = re.compile(r"^\s*(?:export\s+)?(\w+)=[\"']?\$\{?(\d+)\b", re.MULTILINE)
_SIZE: Final = re.compile(r"\$\{?MODEL_SIZE\}?[\"']?\s*=+\s*[\"']?([\w.-]+)")
_TOLD: Final = {
    "ENV": "dsw",
    "BATCH_SIZE": "1",
    "MICRO_BATCH_SIZE": "1",
    "M_BATCHSIZE": "1",
    "MBS": "1",
    "GLOBAL_BATCH_SIZE": "256",
    "GBS": "256",
    "TOTAL_BATCHSIZE": "256",
    "G_BATCHSIZE": "256",
    "SEQ_LEN": "2048",
    "SEQ_LENGTH": "2048",
    "PAD_LEN": "2048",
    "EXTRA_VOCAB_SIZE": "0",
    "PR": "bf16",
    "TP": "2",
    "PP": "1",
    "CP": "1",
    "EP": "4",
    "ETP": "1",
    "MP_SIZE": "2",
    "TP_SIZE": "2",
    "PP_SIZE": "1",
    "AC": "sel",
    "DO": "true",
    "FL": "true",
    "SP": "true",
    "TE": "false",
    "SFT": "false",
    "MOE": "false",
    "GPUS_PER_NODE": "8",
    "NNODES": "1",
    "ZERO_STAGE": "3",
    "OPTIMIZER_OFFLOAD": "false",
    "LAYERS_PER_VP": "null",
    "PP_FIRST": "null",
    "PP_LAST": "null",
    "VPP": "1",
    "TOPK": "2",
    "RT": "false",
    "GA": "1",
}
"""What a run may tell, by the names that scripts and files give it."""


def kind(row: Public) -> str:
    """`none` where no training of a language model starts, `verdict`, `told`, or else the outcome."""
    results = _judged(row, {})
    if verdict(results) in _FIRM:
        return "verdict"
    if _none(results) or _OTHER.search(row.path) or _lacks_template(row):
        return "none"
    return "told" if verdict(_judged(row, _settings(row))) in _FIRM else verdict(results)


def _judged(row: Public, settings: Mapping[str, str]) -> tuple[Checked, ...]:
    """The first firm answer, by the hardware and the numbers of nodes that are tried; else the first one.

    A number of nodes that the framework refuses is no number that anybody would tell.
    """
    results: tuple[Checked, ...] = ()
    named = re.search(r"MI3\d\dX", row.path) if row.family == "primus" else None
    kinds = (named[0].lower(),) if named else _HARDWARE.get(row.family, ("h100-sxm-80g",))
    for hardware in ("ascend-950dt",) if "_A5_" in row.path else kinds:
        for nodes in _NODES:
            found = check_files(
                [str(row.file)], question_of({"hardware": hardware, "nodes": nodes}), Gates(), settings, root=row.root
            )
            results = results or found
            if verdict(found) in _FIRM and (nodes is None or verdict(found) != "refused"):
                return found
            if nodes is None and _none(found):
                break
    return results


def _lacks_template(row: Public) -> bool:
    names = _TEMPLATE.findall(row.file.read_text(encoding="utf-8", errors="replace"))
    return any(not row.file.with_name(name).exists() for name in names)


def _settings(row: Public) -> dict[str, str]:
    text = row.file.read_text(encoding="utf-8", errors="replace")
    sizes = _SIZE.findall(text)
    told = {**_TOLD, **({"MODEL_SIZE": sizes[0]} if sizes else {})}
    arguments = {number: told[name] for name, number in _ARGUMENT.findall(text) if name in told}
    return {**told, **arguments}


def _none(results: tuple[Checked, ...]) -> bool:
    named = (remark.message for result in results for remark in result.remarks if remark.rule == "unknown-model")
    text = " ".join([*(reason for result in results for reason in result.reasons), *named])
    part = any(remark.rule in _PARTS for result in results for remark in result.remarks)
    return part or _NONE.search(text) is not None or _OTHER.search(text) is not None


def share_lines() -> Iterator[str]:
    """The table, a line each."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in corpus():
        if row.family in CLAIMED:
            found = kind(row)
            counts[row.family][found] += 1
            if "--list" in sys.argv and found not in ("none", "verdict"):
                yield f"{row.family} {found} {row.path}"
    total = sum(counts.values(), Counter[str]())
    yield "| family | files | that train | with a verdict | share | and with what the run tells |"
    yield "|---|---|---|---|---|---|"
    for family, count in (*sorted(counts.items()), ("all", total)):
        trains = count.total() - count["none"]
        share, more = (
            f"{number / max(trains, 1):.0%}" for number in (count["verdict"], count["verdict"] + count["told"])
        )
        yield f"| {family} | {count.total()} | {trains} | {count['verdict']} | {share} | {more} |"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in share_lines())
