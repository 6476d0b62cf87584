"""Random questions, each asked in every way that there is: `python -m tests.answers.agreement --questions 1300`.

The answers of a question have to agree: parts add up to their sums, an estimate is that of the ranking, the command
line's JSON is that of the API, the program says the verdict that the figures give, and hardware of which one part is
twice as good makes nothing slower or larger. `checked` yields a line for each that does not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import simulator
from simulator.api import scenario_of
from simulator.errors import InputError, UnsupportedError
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.documents import plain, validated
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.names import hardware_names, model_names
from simulator.search.build import bare_estimate
from simulator.show.report.as_json import json_object
from simulator.show.report.presentation import Presentation
from tests.cli.running import run

SEED = 26
MOST = 4
"""Layouts of a ranking that are priced again."""
_SLACK = 1.0 + 1e-9
_PARTS = ("peak_flops", "memory_bandwidth", "network", "device_links", "host_bandwidth")


def question(rng: random.Random) -> dict[str, Any]:
    """A question of `simulator.rank`; most are lawful."""
    framework = rng.choice(("megatron", "megatron", "megatron", "torch", "paddle"))
    asked: dict[str, Any] = {
        "model": rng.choice(model_names()),
        "hardware": rng.choice(hardware_names()),
        "nodes": rng.choice((1, 1, 2, 2, 4, 8, 16, 64)),
        "seq_length": rng.choice((2048, 4096, 8192, 32768)),
        "global_batch_size": rng.choice((64, 128, 256, 1024)),
        "framework": framework,
    }
    more: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("precision", ("bf16", "fp16", "fp8", "fp32")),
        ("lora_rank", (8, 64)),
        ("num_layers", (4, 8)),
        ("calibration", ("none",)),
    )
    return asked | {name: rng.choice(values) for name, values in more if rng.random() < 0.2}


def layout(rng: random.Random) -> dict[str, Any]:
    """What the layouts of a search are held to."""
    sizes = {"tp": (1, 2, 4, 8), "pp": (1, 2, 4), "recompute": ("none", "full"), "zero_stage": (0, 1, 3)}
    return {name: rng.choice(values) for name, values in sizes.items() if rng.random() < 0.25}


def checked(asked: dict[str, Any], held: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each check, with what is wrong or nothing."""
    try:
        ranking = simulator.rank(**asked, **held, top=MOST)
    except (InputError, UnsupportedError) as error:
        result = run("rank", *words(asked | held), "--format", "json")
        said = str(error) if result.exit_code in (2, 3) else f"exit code {result.exit_code}: {error}"
        yield "refused alike", "" if said == str(error) else said
        return
    result = run("rank", *words(asked | held), "--top", str(MOST), "--format", "json")
    spoken = json.loads(result.stdout)
    yield "exit code of a ranking", "" if result.exit_code == 0 else str(result.exit_code)
    yield "layouts of a ranking", "" if len(spoken["estimates"]) == len(ranking.estimates) else result.stdout[:80]
    for number, estimate in enumerate(ranking.estimates):
        found = json_object("estimate", estimate, Presentation())
        plain = json.loads(json.dumps(found))
        for each in (plain, spoken["estimates"][number]):
            del each["question"]  # said by arguments, and by options
        yield "ranking in JSON", _difference(plain, spoken["estimates"][number])
        # A recommendation is closed; a stack that nobody named would be open.
        closed: dict[str, Any] = {"options": estimate.options or None, "stack": asked.get("stack") or estimate.stack}
        again = simulator.estimate(**asked | closed, layout=estimate.layout)
        same = json_object(
            "estimate",
            replace(
                again,
                assumed=(),
                provenance=estimate.provenance,
                options=estimate.options,
                question=estimate.question,
            ),
            Presentation(),
        )
        yield (
            "estimate of the ranking",
            _difference(
                json.loads(json.dumps(same)),
                json.loads(json.dumps(json_object("estimate", replace(estimate, assumed=()), Presentation()))),
            ),
        )
        yield from _sums(estimate)
        yield from _better(asked, estimate)


def _sums(estimate: Any) -> Iterator[tuple[str, str]]:
    """The parts of a step and of a stage's memory, and what follows from them."""
    throughput, memory = estimate.throughput, estimate.memory
    for stage in memory.stages:
        parts = math.fsum(stage.parts_bytes.values())
        yield "parts of memory", "" if math.isclose(parts, stage.device_bytes, rel_tol=1e-9) else f"{parts}"
    tokens = throughput.tokens_per_second_per_device * estimate.devices * throughput.step_seconds
    asked = estimate.seq_length * estimate.global_batch_size
    yield "tokens per second", "" if math.isclose(tokens, asked, rel_tol=1e-9) else f"{tokens} of {asked}"
    yield "verdict", "" if memory.fits == (memory.device_bytes <= memory.capacity_bytes) else estimate.verdict


def _better(asked: dict[str, Any], estimate: Any) -> Iterator[tuple[str, str]]:
    """Twice a rate, and the memory."""
    scenario = scenario_of(**asked | {"options": estimate.options or None})
    before = bare_estimate(scenario, estimate.layout)
    for part in _PARTS:
        other = bare_estimate(replace(scenario, hardware=doubled(scenario.hardware.name, part)), estimate.layout)
        slower = other.throughput.step_seconds / before.throughput.step_seconds
        yield f"twice the {part}", "" if slower <= _SLACK else f"{slower - 1:.2%} slower"
        grown = other.memory.device_bytes - before.memory.device_bytes
        yield f"memory with twice the {part}", "" if not grown else f"{grown} bytes"


@cache
def doubled(name: str, part: str) -> HardwareSpec:
    """Hardware with one part twice as fast."""
    values: dict[str, Any] = plain(load_hardware(name))
    if part in values:
        _double(values[part])
    return validated(name, HardwareSpec, values)


def _double(value: Any) -> None:
    """Double every rate in a part of a spec."""
    if isinstance(value, list | tuple):
        for item in value:
            _double(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "value" and isinstance(item, str) and item.endswith("/s"):
                number, _, unit = item.partition(" ")
                value[key] = f"{float(number) * 2:.12g} {unit}"
            else:
                _double(item)


def words(asked: dict[str, Any]) -> list[str]:
    """A question as options of the command line."""
    return [word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _difference(left: Any, right: Any, where: str = "") -> str:
    """The first place where two values of JSON differ; empty for none."""
    if isinstance(left, dict) and isinstance(right, dict):
        names = dict.fromkeys((*left, *right))
        found = (_difference(left.get(name), right.get(name), f"{where}.{name}") for name in names)
        return next(filter(None, found), "")
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        found = (_difference(a, b, f"{where}[{n}]") for n, (a, b) in enumerate(zip(left, right, strict=True)))
        return next(filter(None, found), "")
    return "" if left == right else f"{where}: {left} or {right}"


def questions(seed: int, count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """So many questions with what their layouts are held to."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")  # noqa: S311  not for secrets
        yield question(rng), layout(rng)


def main() -> int:
    """Ask, and print what does not hold and how many checks did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    counts: Counter[tuple[str, bool]] = Counter()
    for asked, held in questions(options.seed, options.questions):
        for name, wrong in checked(asked, held):
            counts[name, not wrong] += 1
            if wrong:
                sys.stdout.write(f"{name}: {wrong}: {shlex.join(words(asked | held))}\n")
                sys.stdout.flush()
    for name in sorted({name for name, _ in counts}):
        sys.stdout.write(f"{name}: {counts[name, True]} hold, {counts[name, False]} do not\n")
    return int(any(not holds for _, holds in counts))


if __name__ == "__main__":
    sys.exit(main())
