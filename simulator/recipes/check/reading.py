"""Facts of a recipe before it is priced: devices, missing settings, verdicts that hold for any value of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from simulator.answers.cases import Blocked, Case, case_of
from simulator.errors import SimulateError
from simulator.evidence.cluster import cluster
from simulator.question.origin import OPTION, Input, Remark
from simulator.question.question import Question
from simulator.question.recipe import Recipe
from simulator.recipes.check.repository import OwnWords
from simulator.recipes.check.verdict import Checked, text_of
from simulator.recipes.readers.trainers import OwnTrainer
from simulator.recipes.shell.launch import argument_names
from simulator.records import Record, field, replace

SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 1 << 15, 1 << 18
"""Bounds of language models' vocabularies, Llama's 32,000 entries to Gemma's 262,144; both divide well."""
_STAGES: Final = ("z0", "z1", "z2", "z3")  # presets of DeepSpeed's configuration without offload, by name
_WIDE: Final = {"gradient_dtype": "fp32"}  # the most that a configuration's `grad_accum_dtype` asks for


def of_any_vocabulary(question: Question, judge: Callable[[Case], Checked]) -> Checked | None:
    """Return the verdict where only the vocabulary is missing and both bounds have the same one; else None."""
    if question.by_user("vocab_size"):
        return None
    cases: list[Case] = []
    for size in (SMALLEST_VOCABULARY, LARGEST_VOCABULARY):
        fields = {"vocab_size": Input(size, OPTION)}
        case = case_of(Question(model_fields=fields).over(question))
        if isinstance(case, Blocked):
            return None
        cases.append(case)
    large = judge(cases[1])
    small = large if large.passed and large.outcome == "fits" else judge(cases[0])  # fewer entries need less
    if (small.outcome, small.passed) != (large.outcome, large.passed):
        return None
    size, chosen = (LARGEST_VOCABULARY, large) if large.passed else (SMALLEST_VOCABULARY, small)
    message = (
        f"the vocabulary is missing: {size:,} entries are priced; the verdict is the same from "
        f"{SMALLEST_VOCABULARY:,} to {LARGEST_VOCABULARY:,}"
    )
    others = (remark for remark in chosen.remarks if remark.rule != "no-vocabulary")
    assumed = Remark("vocabulary-assumed", "note", message, fix="--model-field vocab_size=N")
    return replace(chosen, remarks=(*others, assumed))


def of_any_stage(
    recipe: Recipe, options: Question, reread: Reread, judge: Callable[[Recipe, Question], Checked]
) -> Checked | None:
    """Return the verdict where only DeepSpeed's configuration is missing and every ZeRO stage passes; else None.

    The file may also offload, which lowers the need of a device, so that failures without it are not final.
    """
    missing = [unknown for unknown in recipe.unknowns if unknown.affects]
    affected = {option for unknown in missing for option in unknown.affects}
    if len({unknown.name for unknown in missing}) != 1 or affected != {"zero_stage"}:
        return None
    judged: list[Checked] = []
    for stage in _STAGES:
        other = reread({missing[0].name: stage}, options)
        for switches in ({}, _WIDE) if stage == _STAGES[0] else ({},):
            wider = options.with_switches({**switches, **options.options}, OPTION)
            if other is None or not (verdict := judge(other, wider)).passed:
                return None
            judged.append(verdict)
    message = (
        "DeepSpeed's configuration is not at hand: memory and speed are those without ZeRO, and it passes with every "
        "stage and with fp32 gradients"
    )
    assumed = Remark("zero-stage-assumed", "warning", message, missing[0].place, f"--set {missing[0].name}=PATH")
    return replace(judged[0], remarks=(*judged[0].remarks, assumed))


_NUMBER = re.compile(r"[0-9]{1,3}")  # positional parameters that `--set` takes


def arguments_line(recipe: Recipe, missing: Iterable[Remark]) -> Remark | None:
    """Return a note with the options for all missing positional parameters, by the script's names; else None."""
    said = {remark.message.split()[0].removeprefix("$") for remark in missing if remark.rule == "unknown-value"}
    numbers = sorted(int(name) for name in said if _NUMBER.fullmatch(name))
    if not numbers:
        return None
    names = argument_names(text_of(recipe.file))
    subject = "an argument that decides" if len(numbers) == 1 else "arguments that decide"
    fix = " ".join(f"--set {number}={names.get(number, 'VALUE').upper()}" for number in numbers)
    message = f"the script is started with {subject} it"
    return Remark(rule="positional-parameters", severity="note", message=message, fix=fix)


_LISTED: Final = r"nvidia-smi\s+(?:-L|--list-gpus|--query-gpu=\w+ --format=csv,noheader)\s*\|\s*wc -l"
_TORCH: Final = r"python3?\s+-c\s+[\"']import torch; ?print\(torch\.cuda\.device_count\(\)\);?[\"']"
_ON_A_NODE: Final = re.compile(rf"(?:\$\(|`)\s*(?:{_TORCH}|{_LISTED})\s*[)`]")
"""Commands that print the number of devices of the node, as the text of an unknown value."""
_IN_ALL: Final = re.compile(rf"\$\(\s*ds_ssh\s+{_LISTED}\s*\)")
"""The same on every node, after two lines that `ds_ssh` prints and scripts subtract."""
_LINES_BEFORE: Final = 2
COUNTED: Final = "devices-counted"
"""Rule of the remark on a command that is assumed to count the hardware's devices."""
HOSTS: Final = "hosts-assumed"
"""Rule of the remark on a launcher whose file of hosts is missing."""
_COUNTS_MACHINES: Final = re.compile(r"(?i)\w*(?:node|world|slurm|gpus?|devices|nproc|npu|replica|ranks|hosts)\w*")
"""Names of variables that may hold a number of machines."""
_PROBE: Final = "3"
"""A value that shows whether a variable is a number of machines itself; few scripts have three of anything."""
_FACTORS: Final = (2, 4, 8, 16, 32, 64, 128)
_MOST_TRIED: Final = 14


def counts(recipes: Iterable[Recipe], devices: int, nodes: int) -> dict[str, str]:
    """Return the output of the recipes' commands that count devices, of a node or of all nodes.

    `devices` are those of one node of the hardware, `nodes` the number of nodes asked about.
    """
    names = sorted({unknown.name for recipe in recipes for unknown in recipe.unknowns if unknown.affects})
    each = {name: str(devices) for name in names if _ON_A_NODE.fullmatch(name)}
    return each | {name: str(devices * nodes + _LINES_BEFORE) for name in names if _IN_ALL.fullmatch(name)}


class Unstated(Record):
    """The numbers of machines that a recipe does not state."""

    nodes: bool
    devices_per_node: bool
    counted: bool = False
    """Whether a command counts them at run time."""
    variable: str = ""
    """Variable whose default is used; empty without one."""

    def __bool__(self) -> bool:
        """Return whether any number is unstated."""
        return self.nodes or self.devices_per_node


Reread = Callable[[Mapping[str, str], Question], Recipe | None]
"""Reads the same launch with other settings, on other machines; None where the file then has no such launch."""


def unstated(recipe: Recipe, options: Question, reread: Reread) -> Unstated:
    """Return which numbers of machines neither recipe nor user state."""
    if options.is_sized:
        return Unstated(nodes=False, devices_per_node=False)
    sized = recipe.layout is not None and "dp" in recipe.places and recipe.nodes is None
    counted = [remark.message for remark in recipe.remarks if remark.rule == COUNTED]
    hosts = any(remark.rule == HOSTS for remark in recipe.remarks) or any("ds_ssh" in command for command in counted)
    missing = Unstated(
        nodes=(recipe.nodes is None and not sized) or hosts,
        devices_per_node=(recipe.devices_per_node is None and not sized)
        or any(not command.startswith("$") for command in counted),
        counted=bool(counted),
    )
    return missing if missing.nodes else _defaulted(recipe, options, missing, reread)


def _defaulted(recipe: Recipe, options: Question, missing: Unstated, reread: Reread) -> Unstated:
    """Return `missing` with the numbers that defaults of environment variables decide, nodes first."""
    unset = (remark.message for remark in recipe.remarks if remark.rule == "assumed-unset")
    for name in filter(_COUNTS_MACHINES.fullmatch, re.findall(r"\$(\w+)", " ".join(unset))):
        other = reread({name: "3"}, options)
        if other is None:
            continue
        if other.nodes != recipe.nodes:
            missing = replace(missing, nodes=True, variable=name)
        if other.devices_per_node != recipe.devices_per_node:
            missing = replace(missing, devices_per_node=True, variable=missing.variable or name)
    return missing


def launched_devices(recipe: Recipe, options: Question) -> int:
    """Return the devices that a recipe starts on; by default one node and all of its devices."""
    spec = cluster(options.value("hardware"), None, None, options.stated("calibration")).hardware
    return (recipe.nodes or 1) * (recipe.devices_per_node or spec.devices_per_node)


def other_machines(
    recipe: Recipe, options: Question, missing: Unstated, devices: int
) -> Iterator[tuple[str, Question]]:
    """Yield machines other than `devices`, as option text and options: more nodes, fewer devices, fewer nodes."""
    spec = cluster(options.value("hardware"), None, None, options.stated("calibration")).hardware
    per_node = recipe.devices_per_node or spec.devices_per_node
    nodes = max(devices // per_node, 1)
    if missing.nodes:
        more = (nodes * factor for factor in _FACTORS)
        yield from ((f"--nodes {count}", options.changed(OPTION, nodes=count)) for count in more)
    if missing.devices_per_node:
        fewer = (devices // 2**power for power in range(1, devices.bit_length()) if devices % 2**power == 0)
        yield from ((f"--devices {count}", options.changed(OPTION, devices=count)) for count in fewer)
    if missing.nodes:
        below = [count for count in range(nodes - 1, 0, -1) if nodes % count == 0][:_MOST_TRIED]
        yield from ((f"--nodes {count}", options.changed(OPTION, nodes=count)) for count in below)


def nodes_remark(elsewhere: str, failure: str, missing: Unstated) -> Remark:
    """Return the remark on a recipe that fails on the assumed machines but may pass on others."""
    unknown = "how many nodes run it" if missing.nodes else "how many devices of a node run it"
    source = (
        f"takes {unknown} from ${missing.variable}, which is not set" if missing.variable else f"does not say {unknown}"
    )
    tells = "--nodes N" if missing.nodes else "--devices N"
    return Remark(
        rule="unknown-nodes",
        severity="error",
        message=f"the recipe {source}: {failure}; {elsewhere}",
        fix=tells if not missing.variable else f"{tells}, or --set {missing.variable}=N",
    )


NOTHING: Mapping[str, str] = MappingProxyType({})


class Reading(Record, kw_only=True):
    """How recipe files are read."""

    options: Question
    """The user's options, which replace what files say."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Values for what files leave to the run (`--set NAME=VALUE`)."""
    environment: Mapping[str, str] | None = None
    """Variables that scripts may see; None for none."""
    root: Path | None = None
    """Folder that reading must stay in; None for the repository of each file."""
    trainers: Mapping[str, OwnTrainer] = field(default_factory=dict)
    """The repository's own trainers, by pattern."""

    def with_words(self, words: OwnWords, root: Path) -> Reading:
        """Return the reading of a file of which its repository says some words; the user's own beat them."""
        options, settings = self.options.over(words.question), {**words.settings, **self.settings}
        return replace(self, root=root, options=options, settings=settings, trainers=words.trainers)

    def recipes(
        self, file: str, more: Mapping[str, str] = NOTHING, machines: Question | None = None
    ) -> tuple[Recipe, ...]:
        """Return the launches of a file on `machines`, by default the user's; the settings override `more`."""
        machines, known = machines or self.options, {**more, **self.settings}
        recipes = self._read(file, known)
        spec = cluster(machines.value("hardware"), None, None, machines.stated("calibration")).hardware
        devices = min(machines.stated("devices") or spec.devices_per_node, spec.devices_per_node)
        nodes = machines.stated("nodes") or 1
        counted = counts(recipes, devices, nodes)
        numbers = dict.fromkeys(self._numbers(file, recipes, known), str(nodes))
        if not (counted or numbers):
            return recipes
        read = self._read(file, {**known, **counted, **numbers})
        if numbers and machines.stated("nodes") is None and len(read) == len(recipes):
            read = tuple(replace(recipe, nodes=before.nodes) for recipe, before in zip(read, recipes, strict=True))
        values = counted | {f"${name}": text for name, text in numbers.items()}
        taken = (f"{name[:80]} is taken to be {text}" for name, text in values.items())
        remarks = [Remark(COUNTED, "note", message, fix="--hardware NAME --nodes N") for message in taken]
        return tuple(replace(recipe, remarks=(*recipe.remarks, *remarks)) for recipe in read)

    def _read(self, file: str, settings: Mapping[str, str]) -> tuple[Recipe, ...]:
        from simulator.recipes.readers.read import read_recipe  # noqa: PLC0415  brings a parser

        return read_recipe(file, settings, self.environment, self.root, self.trainers)

    def _numbers(self, file: str, recipes: Sequence[Recipe], known: Mapping[str, str]) -> Iterator[str]:
        """Yield the unset variables that are the number of nodes."""
        every = (unknown for recipe in recipes for unknown in recipe.unknowns if "nodes" in unknown.affects)
        for name in sorted({unknown.name for unknown in every if _COUNTS_MACHINES.fullmatch(unknown.name)} - {*known}):
            with suppress(SimulateError):
                others = self._read(file, {**known, name: _PROBE})
                if any(str(other.nodes) == _PROBE for other in others):
                    yield name

    def launches(self, file: str) -> Iterator[tuple[Recipe, Reread]]:
        """Yield each launch of a file with a function that reads it again. Raises as a reader does."""
        recipes = self.recipes(file)
        for number, recipe in enumerate(recipes):
            yield recipe, partial(self._again, file, number, len(recipes))

    def _again(self, file: str, number: int, count: int, more: Mapping[str, str], machines: Question) -> Recipe | None:
        """Return one launch of a file read with other values; None where the file then has more or fewer launches."""
        with suppress(SimulateError):
            recipes = self.recipes(file, more, machines)
            return recipes[number] if len(recipes) == count else None
        return None
