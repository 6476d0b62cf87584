"""JSON keeps its schema and adds up; CSV and JSON lines hold the same estimates."""

import csv
import io
import json
import math
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.question.vocabulary import OFFLOADS, PRECISIONS, RECOMPUTE_METHODS, RECOMPUTE_MODES, Precision
from simulator.show.report.as_json import (
    dumps,
    estimate_object,
    mib,
    plain,
    ranking_object,
    ranking_text,
    schema,
    significant,
)
from simulator.show.report.formats import ESTIMATE_REPORTERS, RANKING_REPORTERS
from simulator.show.report.listing import LISTING_REPORTERS
from simulator.show.report.presentation import Presentation
from tests.report import samples

PLAIN = Presentation()
RUN = Presentation(train_tokens=10**11, price_per_device_hour=2.5)


def check(value: object, part: str) -> None:
    found = schema()
    jsonschema.Draft202012Validator({**found, "anyOf": [{"$ref": f"#/$defs/{part}"}]}).validate(value)


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
    check(json.loads(ESTIMATE_REPORTERS["json"](estimate, presentation)), "estimate")


@pytest.mark.parametrize(
    "ranking", [samples.ranking(), samples.hopeless(), samples.ranking(reasons=samples.refused().violations)]
)
def test_a_ranking_keeps_the_schema(ranking: Any) -> None:
    check(json.loads(RANKING_REPORTERS["json"](ranking, RUN)), "ranking")


def test_the_schema_refuses_what_is_missing() -> None:
    found = estimate_object(samples.estimate(), PLAIN)
    del found["layout"]["tp"]
    with pytest.raises(jsonschema.ValidationError):
        check(found, "estimate")


def test_the_schema_knows_every_word_of_a_layout() -> None:
    words = schema()["$defs"]["layout"]["properties"]
    assert words["recompute"]["enum"] == list(RECOMPUTE_MODES)
    assert words["recompute_method"]["enum"] == list(RECOMPUTE_METHODS)
    assert words["offload"]["enum"] == list(OFFLOADS)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_answer_of_every_precision_is_valid(precision: Precision) -> None:
    assert schema()["$defs"]["estimate"]["properties"]["precision"]["enum"] == list(PRECISIONS)
    check(estimate_object(replace(samples.estimate(), precision=precision), PLAIN), "estimate")


def test_a_ranking_as_text_is_the_ranking() -> None:
    for ranking in (samples.ranking(), samples.ranking(estimates=()), samples.hopeless()):
        assert ranking_text(ranking, PLAIN) == dumps(ranking_object(ranking, PLAIN))


def test_every_key_is_in_the_schema() -> None:
    definitions = schema()["$defs"]
    found = estimate_object(with_intervals(), RUN)
    assert set(found) == set(definitions["estimate"]["properties"])
    for part in ("layout", "memory", "throughput"):
        assert set(found[part]) == set(definitions[part]["properties"])
    assert set(ranking_object(samples.ranking(), RUN)) == set(definitions["ranking"]["properties"])


def test_intervals_have_their_keys() -> None:
    found = estimate_object(with_intervals(), PLAIN)
    assert set(found["memory"]["interval"]) == {"low_mib", "high_mib"}
    assert set(found["throughput"]["interval"]) == {"low", "high"}


def test_an_unknown_cut_is_told_as_the_stages_are() -> None:
    assert estimate_object(samples.estimate(), PLAIN)["layout"]["stage_layers"] == [16, 16]
    assert estimate_object(samples.estimate(stage_layers=(20, 12)), PLAIN)["layout"]["stage_layers"] == [20, 12]


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
    lines = RANKING_REPORTERS["jsonl"](samples.ranking(), PLAIN).splitlines()
    assert [json.loads(line) for line in lines] == ranking_object(samples.ranking(), PLAIN)["estimates"]
    assert RANKING_REPORTERS["jsonl"](samples.hopeless(), PLAIN) == ""
    assert json.loads(ESTIMATE_REPORTERS["jsonl"](samples.estimate(), PLAIN))["model"] == "tiny"


def test_csv_rows_are_the_estimates() -> None:
    rows = list(csv.DictReader(io.StringIO(RANKING_REPORTERS["csv"](samples.ranking(), RUN))))
    assert [row["rank"] for row in rows] == ["1", "2"]
    assert [float(row["step_time_s"]) for row in rows] == [2.0, 2.5]
    assert rows[0]["device_mib"] == "51200.0"
    assert rows[0]["fits"] == "true"
    assert float(rows[0]["training_days"]) > 0
    [refused] = csv.DictReader(io.StringIO(ESTIMATE_REPORTERS["csv"](samples.refused(), PLAIN)))
    assert refused["violations"] == "heads"


def test_csv_has_intervals_and_what_the_numbers_rest_on() -> None:
    [row] = csv.DictReader(io.StringIO(ESTIMATE_REPORTERS["csv"](samples.calibrated(), PLAIN)))
    assert [float(row[f"device_{end}_mib"]) for end in ("low", "high")] == [49 * 1024, 51 * 1024]
    assert [float(row[f"step_time_{end}_s"]) for end in ("low", "high")] == [1.9, 2.1]
    assert (row["fit_probability"], row["calibration"], row["status"]) == ("0.9876", "boxes (runs)", "interpolated")
    [row] = csv.DictReader(io.StringIO(ESTIMATE_REPORTERS["csv"](samples.estimate(), PLAIN)))
    assert (row["device_low_mib"], row["step_time_high_s"]) == ("", "")
    assert row["notes"] == "Links carry one job."


def test_csv_of_nothing_has_a_header() -> None:
    assert RANKING_REPORTERS["csv"](samples.hopeless(), PLAIN) == "rank,model,hardware,devices,precision,verdict\n"


def test_every_format_is_registered_for_every_answer() -> None:
    assert set(ESTIMATE_REPORTERS) == set(RANKING_REPORTERS) == set(LISTING_REPORTERS)
