"""Writing that all frameworks share: values of a question as flags, by the rows of a framework's table reversed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks.flags import ANY_TEXT, Flag, FlagTable, Meaning
from simulator.question.frameworks.profile import switches
from simulator.question.frameworks.stacks import framework, library_options, profile_of, usual_with_adapters
from simulator.question.scenario.layout import FIELDS, Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_model
from simulator.records import Record

WordPair = tuple[str, str]
"""Name of a flag or key, as in its table, and its text; empty for a switch."""
_WIDTH: Final = 100  # columns of a line of flags


class Head(Record, kw_only=True):
    """Size of the cluster and comment lines at the top of the file."""

    nodes: int
    devices_per_node: int
    lines: tuple[str, ...]


class Writing(Record):
    """A question to be written in the words of one table."""

    scenario: Scenario
    layout: Layout
    table: FlagTable

    def word(self, target: str, value: Any) -> Iterator[WordPair]:
        """Yield the word that sets a target to a value, if one is needed. Raises UnsupportedError where none can."""
        pairs = self.table.meanings.get(target, ())
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if any(meaning.otherwise == text for _, meaning in pairs):
            return
        for flag, meaning in pairs:
            if (stated := _text_for(flag, meaning, text)) is not None:
                yield flag.name, stated
                return
        raise UnsupportedError(f"{target.partition('.')[2]} {text[:60]}: there is no word for it")

    def sizes(self, *fields: str) -> Iterator[WordPair]:
        """Yield the words for fields of the model that are not zero or empty."""
        for field in fields:
            value = getattr(self.scenario.model, field)
            if value:
                yield from self.word(f"model.{field}", value)

    def degrees(self, *fields: str) -> Iterator[WordPair]:
        """Yield the words for fields of the layout."""
        for field in fields:
            yield from self.word(f"layout.{field}", getattr(self.layout, field))

    def options(self, *without: str) -> Iterator[WordPair]:
        """Yield the words for switches in the table, except `without`, that differ from the framework's default."""
        profile = self.scenario.framework
        usual = profile_of(profile.name)
        for switch in switches():
            target, value = f"option.{switch.name}", getattr(profile, switch.name)
            pairs = self.table.meanings.get(target, ())
            stated = any(meaning.otherwise is not None for _, meaning in pairs)
            if pairs and switch.name not in without and (stated or value != getattr(usual, switch.name)):
                yield from self.word(target, value)

    def refuse_switches(self, named: Iterable[str], title: str) -> None:
        """Raise UnsupportedError for a non-default switch that has no row and is not among `named`."""
        profile, model = self.scenario.framework, self.scenario.model
        common = usual_with_adapters(profile.name, profile.stack, narrow=profile.quantised_base)
        own = library_options(profile.stack, model.architecture, model.activation, self.scenario.hardware.family)
        usual = framework(profile.name, {**own, **({} if self.scenario.lora_rank is None else common)}, profile.stack)
        known = {*named, *(target.removeprefix("option.") for target in self.table.meanings)}
        if "foreach_optimizer" in known and not (profile.foreach_optimizer or profile.step_temporaries):
            known.add("step_temporaries")  # the word of a fused kernel
        for switch in switches():
            value = getattr(profile, switch.name)
            if value != getattr(usual, switch.name) and switch.name not in known:
                raise UnsupportedError(f"--option {switch.name}={value}: {title} has no setting for it")

    def refuse_layout(self, named: Iterable[str], title: str) -> None:
        """Raise UnsupportedError for a non-default layout field that has no row and is not among `named`."""
        known = {*named, *(target.removeprefix("layout.") for target in self.table.meanings)}
        for setting in FIELDS:
            if setting.name not in known and (value := getattr(self.layout, setting.name)) != setting.default:
                raise UnsupportedError(f"{setting.label} {value}: {title} has no word for it")

    @property
    def cut_is_usual(self) -> bool:
        """Whether the layers are cut into stages as the framework does by default."""
        usual = default_cut(self.scenario.model.num_hidden_layers, self.layout.pipeline_parallel)
        return not self.layout.chunk_layers and self.layout.stage_layers == usual

    @property
    def cut_is_even(self) -> bool:
        """Whether every stage has the same number of layers."""
        return not self.layout.chunk_layers and len(set(self.layout.stage_layers)) == 1

    @property
    def accumulation(self) -> int:
        """Micro batches per replica and step."""
        return self.scenario.global_batch_size // (self.layout.micro_batch_size * self.layout.data_parallel)

    def shipped_name(self, title: str, *, layers: bool = False) -> str:
        """Return the shipped name of the model; with `layers` its number of layers may differ.

        Raises UnsupportedError where a recipe could not name the model.
        """
        model = self.scenario.model
        try:
            shipped = load_model(model.name)
        except InputError:
            shipped = None
        if shipped is not None and layers:
            shipped = shipped.with_layers(model.num_hidden_layers)
        if shipped is None or shipped.shape() != model.shape():
            raise UnsupportedError(f"model {model.name}: a recipe of {title} names a published model; this is none")
        return model.name


def _text_for(flag: Flag, meaning: Meaning, value: str) -> str | None:
    """Return the flag's text that sets this value; None where no text does."""
    values = meaning.values
    if flag.kind == "switch":
        return "" if value == values.get(ANY_TEXT, "true") else None
    if flag.kind == "optional" and values.get(ANY_TEXT) == value:
        return "true"
    passed = value if not values or values.get(ANY_TEXT) == ANY_TEXT else None
    return next((text for text, result in values.items() if result == value and text != ANY_TEXT), passed)


def flags(words: Iterable[WordPair], *, dashes: bool = True) -> list[str]:
    """Return words as lines of command line flags, several to a line."""
    shown = (f"--{name.replace('_', '-') if dashes else name} {text}".rstrip() for name, text in words)
    # Wrapping must not part a flag from its value: the blank between them is put back afterwards.
    joined = " ".join(flag.replace(" ", "\0") for flag in shown)
    lines = textwrap.wrap(joined, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def shell(lines: Iterable[str], command: str, arguments: Iterable[str], head: Head) -> str:
    """Return a launch script: comments, shell lines, and one command over several lines."""
    comments = [f"# {line}" for line in head.lines]
    call = " \\\n    ".join([command, *arguments])
    return "\n".join(["#!/bin/bash", *comments, "set -e", "", *lines, "", call]) + "\n"
