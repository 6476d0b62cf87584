"""JSON keeps its schema and adds up; CSV and JSON lines hold the same estimates."""

import csv
import io
import json
import math
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.question.vocabulary import (
    OFFLOADS,
    PRECISIONS,
    RECOMPUTE_METHODS,
    RECOMPUTE_MODES,
    RECOMPUTE_MODULES,
    Precision,
)
from simulator.show.forms import ANSWERS
from simulator.show.report import schema as schemas
from simulator.show.report.as_json import json_object, plain
from simulator.show.report.presentation import Presentation
from simulator.show.report.schema import ROOTS, answer_model, key_rows
from simulator.show.report.text import dumps, mib, significant
from tests.check.recipes import EXAMPLES
from tests.cli.running import run
from tests.report import samples

PLAIN = Presentation()
RUN = Presentation(train_tokens=10**11, price_per_device_hour=2.5)


@cache
def schema() -> dict[str, Any]:
    return schemas.schema()


def check(value: object, part: str) -> None:
    jsonschema.Draft202012Validator({**schema(), "anyOf": [{"$ref": f"#/$defs/{part}"}]}).validate(value)


def with_intervals() -> Estimate:
    priced = samples.estimate()
    return replace(
        priced,
        memory=replace(priced.memory, interval_bytes=Interval(1.0, 2.0), fit_probability=0.5),
        throughput=replace(priced.throughput, interval_seconds=Interval(1.0, 2.0)),
    )


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("estimate", [samples.estimate(), samples.refused(), with_intervals()])
@pytest.mark.parametrize("presentation", [PLAIN, RUN])
def test_an_estimate_keeps_the_schema(estimate: Estimate, presentation: Presentation) -> None:
    check(json.loads(ANSWERS["estimate"].text(estimate, "json", presentation)), "estimate")


@pytest.mark.parametrize(
    "ranking", [samples.ranking(), samples.hopeless(), samples.ranking(reasons=samples.refused().violations)]
)
def test_a_ranking_keeps_the_schema(ranking: Any) -> None:
    check(json.loads(ANSWERS["ranking"].text(ranking, "json", RUN)), "ranking")


def test_the_schema_refuses_what_is_missing() -> None:
    found = json_object("estimate", samples.estimate(), PLAIN)
    del found["layout"]["tp"]
    with pytest.raises(jsonschema.ValidationError):
        check(found, "estimate")


def test_the_schema_knows_every_word_of_a_layout() -> None:
    words = schema()["$defs"]["estimate_layout"]["properties"]
    assert words["recompute"]["enum"] == list(RECOMPUTE_MODES)
    assert words["recompute_modules"]["items"]["enum"] == list(RECOMPUTE_MODULES)
    assert words["recompute_method"]["enum"] == list(RECOMPUTE_METHODS)
    assert words["offload"]["enum"] == list(OFFLOADS)


def test_every_key_says_what_it_is() -> None:
    silent = [
        f"{name}.{key}"
        for name, definition in schema()["$defs"].items()
        for key, value in definition["properties"].items()
        if not value["description"]
    ]
    assert not silent


@cache
def kinds() -> dict[str, set[str]]:
    """Types that JSON may have at every path of every answer; estimates inside others are one type."""
    found: dict[str, set[str]] = {}
    for name in ROOTS:
        _walk(name, name, found)
    return found


def _walk(name: str, path: str, found: dict[str, set[str]]) -> None:
    for key, value in schema()["$defs"][name]["properties"].items():
        _look(value, f"{path}{' ' if path in ROOTS else '.'}{key}", found)


def _look(value: dict[str, Any], path: str, found: dict[str, set[str]]) -> None:
    for arm in value.get("anyOf", [value]):
        name = arm.get("$ref", "").rpartition("/")[2]
        if name in ROOTS:
            found.setdefault(path, set()).add(name)
            continue
        words = arm.get("enum", [""])
        kind = "object" if name else arm.get("type", "number" if isinstance(words[0], int) else "string")
        found.setdefault(path, set()).add("number" if kind == "integer" else kind)
        if name:
            _walk(name, path, found)
        elif kind == "array":
            _look(arm["items"], f"{path}[]", found)


@pytest.mark.parametrize("answer", ROOTS)
def test_every_key_is_listed(answer: str) -> None:
    places = {path.removeprefix(f"{answer} ") for path in kinds() if path.startswith(f"{answer} ")}
    rows = key_rows(answer)
    assert {row["key"] for row in rows} == {place for place in places if not place.endswith("[]")}
    assert all(row["type"] and row["meaning"] for row in rows)


CONTRACT = [line.rpartition(" ")[::2] for line in (Path(__file__).parent / "contract.txt").read_text().splitlines()]


@pytest.mark.parametrize("answer", sorted(ROOTS.keys() & {path.split(" ")[0] for path, _ in CONTRACT}))
def test_no_key_is_gone_or_of_another_type(answer: str) -> None:
    for path, types in CONTRACT:
        if path.startswith(f"{answer} "):
            assert set(types.split(",")) <= kinds().get(path, set()), path


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_answer_of_every_precision_is_valid(precision: Precision) -> None:
    assert schema()["$defs"]["estimate"]["properties"]["precision"]["enum"] == list(PRECISIONS)
    check(json_object("estimate", replace(samples.estimate(), precision=precision), PLAIN), "estimate")


def test_a_ranking_as_text_is_the_ranking() -> None:
    for ranking in (samples.ranking(), samples.ranking(estimates=()), samples.hopeless()):
        text = ANSWERS["ranking"].text(ranking, "json", PLAIN)
        assert text == dumps(json_object("ranking", ranking, PLAIN)) + "\n"
        pieces = sum(1 for _ in ANSWERS["ranking"].write(ranking, "json", PLAIN))
        assert pieces == (len(ranking.estimates) + 2 if ranking.estimates else 1)


def test_every_key_is_in_the_schema() -> None:
    strict = schemas.schema()
    for definition in strict["$defs"].values():
        definition["additionalProperties"] = False
    for value, part in (
        (with_intervals(), "estimate"),
        (samples.ranking(), "ranking"),
        (samples.hopeless(), "ranking"),
    ):
        found = json_object(part, value, RUN)
        jsonschema.Draft202012Validator({**strict, "anyOf": [{"$ref": f"#/$defs/{part}"}]}).validate(found)


def test_intervals_have_their_keys() -> None:
    found = json_object("estimate", with_intervals(), PLAIN)
    assert set(found["memory"]["interval"]) == {"low_mib", "high_mib"}
    assert set(found["throughput"]["interval"]) == {"low", "high"}


@given(st.lists(st.floats(0, 1e15), min_size=1, max_size=12))
def test_rounded_parts_add_up(parts: list[float]) -> None:
    total = math.fsum(parts)
    assert math.fsum(map(mib, parts)) == pytest.approx(mib(total), abs=0.0005 * (len(parts) + 1), rel=1e-12)
    assert math.fsum(map(significant, parts)) == pytest.approx(significant(total), rel=1e-8)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"value": value})


def test_plain_values() -> None:
    assert plain({"a": (1, None, 2.5, True), 3: {"b": samples.CAPACITY_GIB}}) == {
        "a": [1, None, 2.5, True],
        "3": {"b": 80.0},
    }
    assert plain(frozenset()) == "frozenset()"


def test_json_lines_are_the_estimates() -> None:
    lines = ANSWERS["ranking"].text(samples.ranking(), "jsonl", PLAIN).splitlines()
    assert [json.loads(line) for line in lines] == json_object("ranking", samples.ranking(), PLAIN)["estimates"]
    assert ANSWERS["ranking"].text(samples.hopeless(), "jsonl", PLAIN) == ""
    assert json.loads(ANSWERS["estimate"].text(samples.estimate(), "jsonl", PLAIN))["model"] == "tiny"


def test_csv_rows_are_the_estimates() -> None:
    rows = list(csv.DictReader(io.StringIO(ANSWERS["ranking"].text(samples.ranking(), "csv", RUN))))
    assert [row["rank"] for row in rows] == ["1", "2"]
    assert [float(row["step_time_s"]) for row in rows] == [2.0, 2.5]
    assert rows[0]["device_mib"] == "51200.0"
    assert rows[0]["fits"] == "true"
    assert float(rows[0]["training_days"]) > 0
    [refused] = csv.DictReader(io.StringIO(ANSWERS["estimate"].text(samples.refused(), "csv", PLAIN)))
    assert refused["violations"] == "heads"


def test_csv_has_intervals_and_what_the_numbers_rest_on() -> None:
    [row] = csv.DictReader(io.StringIO(ANSWERS["estimate"].text(samples.calibrated(), "csv", PLAIN)))
    assert [float(row[f"device_{end}_mib"]) for end in ("low", "high")] == [49 * 1024, 51 * 1024]
    assert [float(row[f"step_time_{end}_s"]) for end in ("low", "high")] == [1.9, 2.1]
    assert (row["fit_probability"], row["calibration"], row["status"]) == ("0.9876", "boxes (runs)", "between")
    [row] = csv.DictReader(io.StringIO(ANSWERS["estimate"].text(samples.estimate(), "csv", PLAIN)))
    assert (row["device_low_mib"], row["step_time_high_s"]) == ("", "")
    assert row["notes"] == "Links carry one job."


def test_csv_of_nothing_has_a_header() -> None:
    assert (
        ANSWERS["ranking"].text(samples.hopeless(), "csv", PLAIN) == "rank,model,hardware,devices,precision,verdict\n"
    )


@pytest.mark.parametrize("name", ANSWERS)
def test_every_form_of_an_answer_has_its_writer(name: str) -> None:
    answer = ANSWERS[name]
    assert answer.formats[:2] == ("table", "json")
    assert set(answer.formats) == {"markdown", *answer.writers}
    for module, _, function in (writer.rpartition(".") for writer in answer.writers.values()):
        assert callable(getattr(import_module(f"simulator.show.{module}"), function))


def read_back(answer: str, text: str) -> None:
    """The model reads the text, and shows the same again."""
    model = answer_model(answer)
    assert model.model_validate_json(text).model_dump(mode="json", exclude_unset=True) == json.loads(text)


@pytest.mark.parametrize("estimate", [samples.estimate(), samples.refused(), samples.calibrated(), with_intervals()])
@pytest.mark.parametrize("presentation", [PLAIN, RUN])
def test_json_of_an_estimate_is_read_back(estimate: Estimate, presentation: Presentation) -> None:
    read_back("estimate", ANSWERS["estimate"].text(estimate, "json", presentation))


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("rank --model llama3.1-8b --nodes 1", "ranking"),
        ("rank --model llama3.1-70b --nodes 1", "ranking"),
        ("plan --model llama3.1-8b --train-tokens 1B --offer h20:1,2@1 --deadline-days 9 --availability", "plan"),
        ("explain --model llama3.1-70b --nodes 1 --tp 8", "explanation"),
        (f"check {EXAMPLES / 'llama3-8b-megatron.sh'} nowhere.sh --hardware h20 --nodes 1 --exit-zero", "verdicts"),
    ],
)
def test_json_of_a_command_is_read_back(command: str, answer: str) -> None:
    read_back(answer, run(*command.split(), "--format", "json").stdout)
