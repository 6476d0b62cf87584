"""Lists of specs, and every number of one with its unit, source and status."""

import csv
import io
import json
from dataclasses import replace

import pytest

from simulator.question.frameworks.profile import switches
from simulator.question.frameworks.stacks import PROFILES
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.names import hardware_names, model_names, variants
from simulator.show.forms import ANSWERS
from simulator.show.report import listing
from simulator.show.report.listing import (
    ListingRow,
    SpecListing,
    frameworks_listing,
    hardware_listing,
    models_listing,
)
from simulator.show.report.presentation import Presentation


def test_one_record_for_each_model() -> None:
    records = models_listing().records
    assert [record["model"] for record in records] == [*model_names(), *variants()]
    tokens = {record["model"]: record["image_tokens"] for record in records}
    assert (tokens["llama3.1-8b"], tokens["qwen2.5-vl-7b"], tokens["internvl3-8b"]) == (None, 1369, 2560)
    assert all(isinstance(record["parameters_billions"], float) for record in records)


def test_one_record_for_each_kind_of_hardware() -> None:
    records = hardware_listing().records
    assert [record["hardware"] for record in records] == list(hardware_names())
    by_name = {record["hardware"]: record for record in records}
    assert by_name["a100-sxm-80g"]["fp8_tflops"] is None


@pytest.mark.parametrize("name", hardware_names())
def test_every_number_of_hardware_has_source_and_status(name: str) -> None:
    facts = hardware_listing(name).records
    assert {"memory_capacity", "memory_bandwidth", "network.latency"} <= {fact["key"] for fact in facts}
    for fact in facts:
        assert all(fact[column] for column in ("value", "unit", "source", "status"))


@pytest.mark.parametrize("name", model_names())
def test_every_number_of_a_model_has_source_and_status(name: str) -> None:
    facts = models_listing(name).records
    assert facts[-1]["key"] == "active_parameters"
    for fact in facts:
        assert all(fact[column] for column in ("value", "source", "status"))


def test_a_model_without_provenance_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(load_model("llama3.1-8b"), provenance=None, published=None)
    monkeypatch.setattr(listing, "load_model", lambda _: spec)
    assert {fact["status"] for fact in models_listing("mine.yaml").records} == {"given by the file", "derived"}


def test_every_switch_is_listed_and_shown() -> None:
    names = [spec.name for spec in switches()]
    assert [record["switch"] for record in frameworks_listing().records] == names
    for profile in PROFILES:
        facts = frameworks_listing(profile).records
        assert [fact["switch"] for fact in facts] == names
        assert all(fact[column] for fact in facts for column in ("value", "allowed", "meaning"))


def test_notes_tell_what_the_sources_are(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_model("llama3.1-8b")
    for sources, note, lines in (
        ({"sheet": "a data sheet"}, "A note.", ["A note.", "sheet: a data sheet"]),
        ({}, "", []),
    ):
        changed = replace(spec, sources=sources, note=note)
        monkeypatch.setattr(listing, "load_model", lambda _, changed=changed: changed)
        assert list(models_listing("mine.yaml").notes) == lines


def shown(form: str, *records: ListingRow) -> str:
    return ANSWERS["listing"].text(SpecListing(records=records), form, Presentation())


def test_formats_of_a_listing() -> None:
    records: list[ListingRow] = [{"key": "a", "value": 1.5, "note": ""}, {"key": "b|c", "value": None, "note": ""}]
    assert json.loads(shown("json", *records)) == records
    assert [json.loads(line) for line in shown("jsonl", *records).splitlines()] == records
    assert [row["value"] for row in csv.DictReader(io.StringIO(shown("csv", *records)))] == ["1.5", ""]
    assert shown("table", *records) == "key  value\n---  -----\na     1.50\nb|c      -\n"
    assert "b\\|c" in shown("markdown", *records)


def test_long_sentences_are_broken_on_a_terminal_only() -> None:
    record: ListingRow = {"key": "a", "note": "word " * 40}
    assert max(map(len, shown("table", record).splitlines())) < 60
    assert "word " * 39 in shown("markdown", record)


@pytest.mark.parametrize("form", ANSWERS["listing"].formats)
def test_a_listing_of_nothing(form: str) -> None:
    assert shown(form).strip() in ("", "[]") or "0 records." in shown(form)
