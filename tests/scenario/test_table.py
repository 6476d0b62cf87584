"""The table of layout fields: what derives from it says the same."""

import dataclasses
from typing import get_type_hints

import pytest

from simulator.evidence.measurements.rows import MeasuredRow
from simulator.question.scenario.inputs import InputSetting
from simulator.question.scenario.layout import (
    COLUMNS,
    FIELDS,
    SETTINGS,
    Layout,
    layout_object,
    layout_of_object,
    sizes_text,
)

LAYOUT = Layout(
    tensor_parallel=2, pipeline_parallel=2, data_parallel=3, recompute="full", stage_layers=(3, 5), zero_stage=2
)


def test_names_and_keys_tell_the_fields_apart() -> None:
    names = [name for setting in SETTINGS for name in {setting.name, setting.key}]
    assert len(set(names)) == len(names)


def test_a_layout_as_plain_values_and_back() -> None:
    plain = layout_object(LAYOUT)
    assert list(plain)[:8] == ["tp", "pp", "cp", "ep", "etp", "dp", "vpp", "micro_batch_size"]
    assert plain["stage_layers"] == [3, 5]
    assert layout_of_object(plain) == LAYOUT


def test_sizes_in_a_text() -> None:
    assert sizes_text(LAYOUT, "tp", "pp", "vpp", "micro_batch_size") == "tp2 pp2 vp1 mbs1"


@pytest.mark.parametrize("field", COLUMNS, ids=lambda field: field.name)
def test_values_survive_a_column(field: InputSetting) -> None:
    sets = (*((word,) for word in field.choices), field.choices[1:4], field.choices)
    values = (sets if field.kind == "words" else field.choices) or (
        (True, False) if field.kind == "flag" else (1, 7, 2**20)
    )
    assert [field.decoded(field.encoded(value)) for value in values] == list(values)


def test_measured_rows_have_a_column_for_each_field() -> None:
    # Replicas follow from the devices; no table lists recomputed layers.
    columns = {field.name for field in dataclasses.fields(MeasuredRow)}
    assert {field.name for field in FIELDS} - columns == {"data_parallel", "recompute_layer_list"}
    kinds = get_type_hints(MeasuredRow)
    for field in FIELDS:
        if field.kind == "word":
            assert set(field.named_choices) <= set(str(kinds[field.name]).replace("'", " ").split())
