"""A framework's table says what its words set, and its code names what no row can say."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulator.frameworks import registry
from simulator.frameworks.flags import Flag, plain, table_file, table_names, table_of
from simulator.frameworks.take import type_of
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import BY_NAME
from simulator.question.specs.model import ModelSpec

READING = ("entry", "has", "text", "integer", "integers", "share", "switch", "any_switch")
"""Methods of `Arguments` that read a flag by its name."""
PARTLY = frozenset({"moe_alltoall_overlap_comm", "moe_permutation_async_comm", "reset_attention_mask"})
"""Flags whose memory is priced and whose time is not: they are read, and warned of."""
ELSEWHERE = frozenset({"lora_dim", "peft_type", "loss_type"})
ELSEWHERE |= {"freeze_vision_model", "freeze_vision_projection", "freeze_language_model"}
"""Keys of FlagScale's files that NeMo's reader takes, of `swift rlhf`, which the Trainer's takes, and of
Megatron-Bridge and what builds on it (`models.of_bridged_parts`)."""
TELLING = frozenset({"load", "merge_file", "lr_scheduler", "lr_scheduler_type", "max_steps", "task", "warmup_steps"})
"""Flags without effect that tell which vocabulary or network a run has, or contradict one another."""
OF_ANOTHER_FORM = frozenset({"freeze_vit"})
"""Flags that one form of launch reads (`swift sft`) and another has of Megatron, where it is refused."""


@dataclass(frozen=True)
class Family:
    """Tables that stand behind one another, and the folders whose code reads them."""

    tables: tuple[str, ...]
    folders: tuple[Path, ...]
    others: tuple[str, ...] = ()
    """Tables of the framework whose flags its keys stand for."""

    def flags(self) -> dict[str, Flag]:
        return dict(table_of(*self.tables))

    def trees(self) -> Iterator[ast.AST]:
        for folder in self.folders:
            for file in sorted(folder.glob("*.py")):
                yield ast.parse(file.read_text(encoding="utf-8"))

    def named(self) -> set[str]:
        """Every text of the code that may name a flag."""
        texts = {plain(text) for tree in self.trees() for text in _texts(tree)}
        return texts | {text.partition(".")[0] for text in texts}

    def read(self) -> set[str]:
        """What the code asks arguments for by name."""
        calls = (node for tree in self.trees() for node in ast.walk(tree) if isinstance(node, ast.Call))
        asked = (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in READING)
        texts = (text for call in asked for word in call.args for text in _texts(word))
        return {plain(text) for text in texts if re.fullmatch(r"[a-z][\w-]+", text)}


def _texts(tree: ast.AST) -> Iterator[str]:
    nodes = ast.walk(tree)
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def others_of(name: str) -> tuple[str, ...]:
    """Tables of the framework whose flags the keys of a framework's files stand for."""
    framework = registry.frameworks().get(name)
    words = [form.in_words_of for form in framework.files if form.in_words_of] if framework else []
    return tuple(table for word in words for table in registry.tables(word))


def families() -> dict[str, Family]:
    found = {name: registry.tables(name) for name, own in registry.frameworks().items() if own.extends in ("", name)}
    for name, framework in registry.frameworks().items():
        forms = (*(form.tables for form in framework.launches), *(form.tables for form in framework.files))
        found |= {f"{name}, {' '.join(tables)}": tables for tables in forms if tables}
    return {
        name: Family(tables, tuple(dict.fromkeys(table_file(table).parent for table in tables)), others_of(name))
        for name, tables in found.items()
    }


FAMILIES = families()


@pytest.mark.parametrize("table", table_names())
def test_what_a_row_sets_is_there_to_set(table: str) -> None:
    for flag in table_of(table).values():
        assert not flag.sets or flag.effect == "priced", flag.name
        for meaning in flag.meanings():
            owner = {"option": FrameworkProfile, "workload": Recipe}.get(meaning.kind)
            fields = {"layout": BY_NAME, "model": ModelSpec.field_types()}.get(meaning.kind)
            names = fields if owner is None else owner.__dataclass_fields__  # type: ignore[attr-defined]  # dataclasses
            assert names is not None
            assert meaning.name in names, (flag.name, meaning.target)
            assert type_of(meaning) in (bool, int, float, str), (flag.name, meaning.target)


@pytest.mark.parametrize("name", FAMILIES)
def test_other_names_are_of_flags_that_are_there(name: str) -> None:
    flags = FAMILIES[name].flags()
    others = flags | (table_of(*FAMILIES[name].others) if FAMILIES[name].others else {})
    for flag in flags.values():
        for other, _ in flag.aliases():
            assert others[other].effect == "priced", flag.name
            assert not list(others[other].aliases()), f"{flag.name}: another name of another name"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_priced_flag_says_what_it_sets_or_is_read_by_name(name: str) -> None:
    named = FAMILIES[name].named()
    unread = [flag.name for flag in FAMILIES[name].flags().values() if flag.effect == "priced" and not flag.sets]
    assert [flag for flag in unread if flag not in named | ELSEWHERE] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_code_reads_priced_flags_alone(name: str) -> None:
    flags = FAMILIES[name].flags()
    settings = {setting.key for setting in BY_NAME.values()}
    read = FAMILIES[name].read() - settings - PARTLY - TELLING - OF_ANOTHER_FORM
    assert sorted(flag for flag in read if flag in flags and flags[flag].effect != "priced") == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_name_in_two_tables_sets_the_same(name: str) -> None:
    first = FAMILIES[name].flags()
    for table in FAMILIES[name].tables:
        for flag in table_of(table).values():
            assert flag.sets in ("", first[flag.name].sets), flag.name


def test_every_table_is_of_a_framework() -> None:
    tables = {table for family in FAMILIES.values() for table in family.tables}
    tables |= {table for form in registry.log_forms().values() for table in form.tables}
    assert tables == set(table_names())
