"""What the tables for people say, and when."""

import re
from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.pricing.estimate import Interval
from simulator.question.units import GIB
from simulator.show.report.estimate import estimate_table
from simulator.show.report.presentation import Presentation, Section, Style
from simulator.show.report.ranking import ranking_table
from simulator.show.report.text import probability_text
from tests.cli.running import run
from tests.report import samples

PLAIN = Presentation()
FULL = Presentation(verbosity=1)
"""What `-v` shows."""


def header(**layout: Any) -> str:
    ranking = samples.ranking(estimates=(samples.estimate(**layout),))
    return ranking_table(ranking, Presentation(verbosity=-1, style="markdown")).splitlines()[0]


@pytest.mark.parametrize(
    ("layout", "column"),
    [
        ({"expert_tensor_parallel": 2}, "ETP"),
        ({"zero_stage": 3}, "ZeRO"),
        ({"sequence_parallel": True}, "seq. parallel"),
        ({"offload": "optimizer"}, "offload"),
        ({"stage_layers": (17, 15)}, "layers by stage"),
    ],
)
def test_a_choice_has_a_column_only_when_it_says_something(layout: dict[str, Any], column: str) -> None:
    assert f" {column} " not in header()
    assert f" {column} " in header(**layout)


def test_an_even_cut_is_plain() -> None:
    assert header(stage_layers=(16, 16)) == header()


def test_quiet_shows_the_table_alone() -> None:
    lines = ranking_table(samples.ranking(), Presentation(verbosity=-1)).splitlines()
    assert lines[0].startswith("#")
    assert len(lines) == 5


def test_verbose_lists_assumptions() -> None:
    assert "Links carry one job." not in ranking_table(samples.ranking(), PLAIN)
    assert "Assumed: Links carry one job." in ranking_table(samples.ranking(), Presentation(verbosity=1))


def test_only_some_starved_layouts_are_shown_unless_verbose() -> None:
    ranking = samples.ranking(starved=samples.ranking().starved * 5)
    words = "Too near capacity, not recommended"
    assert words not in ranking_table(ranking, PLAIN)
    assert ranking_table(ranking, FULL).count(words) == 5


def test_what_is_over_capacity_is_not_called_spare() -> None:
    over = samples.estimate(verdict="starved", activations_gib=66.5)
    assert "0.50 GiB over" in ranking_table(samples.ranking(starved=(over,)), FULL)


def test_rules_and_remedies_are_shown_with_and_without_a_nearest_miss() -> None:
    broken = samples.refused().violations
    for ranking in (samples.hopeless(), replace(samples.hopeless(), nearest=None)):
        table = ranking_table(replace(ranking, reasons=broken), replace(PLAIN, style="markdown"))
        assert "| heads" in table
        assert "| tp 3 does not divide 32 heads" in table
        assert "| --tp 2 or 4" in table
        assert "| --recompute full" in table
        assert "No single change" not in table


def test_a_search_names_what_it_left_out() -> None:
    assert "Search defaults" not in ranking_table(samples.ranking(), PLAIN)
    shown = ranking_table(samples.ranking(), FULL)
    assert "Search defaults: --zero-stage 1, --offload none, --micro-batch-size 1,2,4,8, sequence parallelism" in shown
    assert "best of each TP/PP/CP/EP/ETP split (--variants lists all)." in shown
    assert "Not searched unless asked: other --zero-stage, --offload, other --micro-batch-size," in shown
    assert "--allow-tp-across-nodes" not in shown
    assert "(--variants" not in ranking_table(samples.ranking(), replace(FULL, variants=True))
    torch = samples.ranking(query={**samples.QUERY, "framework": "torch", "nodes": 2})
    shown = ranking_table(torch, FULL)
    assert "--zero-stage 3" in shown
    assert "TP within a node" in shown
    asked = {"zero_stage": (1,), "offload": ("none",), "micro_batch_size": (1,), "sequence_parallel": (True,)}
    narrowed = samples.ranking(query={**samples.QUERY, "space": asked})
    shown = ranking_table(narrowed, replace(FULL, variants=True))
    assert "Search defaults" not in shown
    assert "Not searched" not in shown


def test_device_counts_are_grouped() -> None:
    many = replace(samples.estimate(), devices=16_384)
    assert "tiny on 16,384 devices of box" in estimate_table(many, PLAIN)
    query = {**samples.QUERY, "nodes": 2048, "devices": 16_384}
    assert "on 2,048 nodes of box (16,384 devices)" in ranking_table(samples.ranking(query=query), PLAIN)


def test_nothing_fits_without_remedy_or_candidate() -> None:
    assert "No single change" in ranking_table(replace(samples.hopeless(), remedies=()), PLAIN)
    lost = replace(samples.hopeless(), remedies=(), nearest=None)
    assert "no layout keeps the rules" in ranking_table(lost, PLAIN)


def test_question_names_lora_and_works_without_nodes() -> None:
    query = {**samples.QUERY, "nodes": None, "devices": None, "lora_rank": 16}
    first = ranking_table(samples.ranking(query=query), PLAIN).splitlines()[0]
    assert (
        first
        == "tiny on box (8 devices): bf16, LoRA of rank 16, sequence 4096, global batch 64 = 262,144 tokens, megatron"
    )


def test_verdict_is_coloured_on_request_only() -> None:
    assert "\x1b[" not in ranking_table(samples.ranking(), PLAIN)
    coloured = ranking_table(samples.ranking(), Presentation(colour=True))
    assert "\x1b[32m" not in coloured
    coloured = ranking_table(samples.ranking(estimates=(samples.calibrated(),)), Presentation(colour=True))
    assert "\x1b[32m" in coloured


def test_training_run() -> None:
    run = Presentation(train_tokens=86_400 * 80_000, price_per_device_hour=0.5).run_of(samples.estimate())
    assert run is not None
    assert (run.days, run.device_hours, run.cost) == pytest.approx((1.0, 192.0, 96.0))
    assert PLAIN.run_of(samples.estimate()) is None
    unpriced = Presentation(train_tokens=1).run_of(samples.estimate())
    assert unpriced is not None
    assert unpriced.cost is None


def test_days_are_left_open_for_a_layout_without_speed() -> None:
    stopped = samples.estimate()
    stopped = replace(stopped, throughput=replace(stopped.throughput, tokens_per_second_per_device=0.0))
    table = ranking_table(samples.ranking(estimates=(stopped,)), Presentation(train_tokens=1, style="markdown"))
    assert next(line for line in table.splitlines() if re.match(r"\| +1 \|", line)).endswith("- |")


def test_estimate_shows_training_and_intervals() -> None:
    priced = samples.estimate()
    priced = replace(
        priced,
        lora_rank=8,
        memory=replace(priced.memory, interval_bytes=Interval(49 * GIB, 51 * GIB), fit_probability=0.99),
        throughput=replace(priced.throughput, interval_seconds=Interval(1.9, 2.1)),
    )
    shown = Presentation(train_tokens=10**11, price_per_device_hour=1.0)
    assert "(± 5 %)" in estimate_table(priced, shown)
    assert "days for 100B tokens, cost 2.78k (2.64k-2.92k)" in estimate_table(priced, shown)
    text = estimate_table(priced, replace(shown, verbosity=1))
    for said in (
        "LoRA of rank 8",
        "90 % interval of the need: 49.00 to 51.00 GiB; fits with 99.0 %",
        "step s, 90 % interval",
        "1.90 to 2.10",
        "days for 100B tokens",
        "device hours",
        "cost                              2.78k (2.64k-2.92k)",
    ):
        assert said in text


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_a_refused_layout_has_no_figures(style: Style) -> None:
    # What no run can have needs no memory and takes no time; its parts may be of no whole layer or micro batch.
    text = estimate_table(samples.refused(), replace(PLAIN, style=style))
    assert "tp 3 does not divide 32 heads" in text
    assert "refused: 1 rule broken" in text
    assert not re.search(r"GiB|tokens/s|step ms|MFU %", text)


def test_no_probability_is_shown_as_certain() -> None:
    shown = [probability_text(probability) for probability in (0.0, 1e-9, 0.5, 0.999, 0.9995, 1.0)]
    assert shown == ["< 0.1", "< 0.1", "50.0", "99.9", "> 99.9", "> 99.9"]


def test_an_estimate_without_calibration_has_no_column_for_its_probability() -> None:
    plain, calibrated = samples.estimate(), samples.calibrated()
    assert " fit % " not in ranking_table(samples.ranking(estimates=(plain,)), replace(PLAIN, style="markdown"))
    both = ranking_table(samples.ranking(estimates=(calibrated, plain)), replace(PLAIN, style="markdown"))
    assert " fit % " in both
    assert next(line for line in both.splitlines() if re.match(r"\| +2 \|", line)).split("|")[-2].strip() == "-"


def test_estimate_without_stages_or_parts_is_still_shown() -> None:
    priced = samples.estimate()
    bare = replace(
        priced,
        memory=replace(priced.memory, stages=(), outside_parts_bytes={}),
        throughput=replace(priced.throughput, parts_seconds={}),
    )
    text = estimate_table(bare, PLAIN)
    assert "Memory by stage" not in text
    assert "Time of one step" not in text
    assert "speed: " in text


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("devices", [1, 2**20])
def test_no_row_is_wider_than_the_terminal(width: int, devices: int) -> None:
    estimates = tuple(replace(samples.calibrated(), devices=devices) for _ in range(12))
    presentation = Presentation(width=width, train_tokens=10**13, price_per_device_hour=2.5, verbosity=-1)
    lines = ranking_table(samples.ranking(estimates=estimates), presentation).splitlines()
    assert max(map(len, lines)) <= width
    shown = " ".join(lines[0].split())
    assert all(name in shown for name in ("# TP PP", "mbs", "tokens/s"))
    every = ranking_table(samples.ranking(estimates=estimates), replace(presentation, width=None))
    assert (len(lines[0]) == len(every.splitlines()[0])) == (width == 200)


def test_columns_that_were_left_out_are_named() -> None:
    ranking = samples.ranking(estimates=(samples.calibrated(),))
    narrow = ranking_table(ranking, replace(FULL, width=80))
    assert "Too narrow for: " in narrow
    assert "tokens/s/device" in narrow.split("Too narrow for: ")[1].splitlines()[0]
    assert "Too narrow for: " not in ranking_table(ranking, Presentation(width=80, style="markdown"))


def test_a_part_of_the_layout_that_tells_rows_apart_is_never_left_out() -> None:
    estimates = (samples.calibrated(), samples.estimate(context_parallel=2, data_parallel=2, recompute="full"))
    shown = ranking_table(samples.ranking(estimates=estimates), Presentation(width=40, verbosity=-1))
    assert "CP" in shown
    assert "re-" in shown


def test_what_is_faster_and_risky_stands_apart() -> None:
    risky = replace(samples.calibrated(), memory=replace(samples.calibrated().memory, fit_probability=0.6))
    faster = replace(risky, throughput=samples.throughput(1.0))
    slower = replace(risky, throughput=samples.throughput(3.0))
    ranking = samples.ranking(risky=(faster, slower), query={**samples.QUERY, "min_fit_probability": 0.95})
    text = ranking_table(ranking, PLAIN)
    assert text.count("Risky, not recommended") == 1
    assert "fits with 60.0 %, 95.0 % is asked for" in text
    nothing = replace(ranking, estimates=(), starved=())
    assert "likely enough to fit" in ranking_table(nothing, PLAIN)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_row_of_an_estimate_or_an_explanation_is_longer_than_the_line(width: int) -> None:
    question = ("--model", "llama3.1-70b", "--nodes", "2", "--tp", "8", "--pp", "2")
    for command in ("estimate", "explain"):
        text = run(command, *question, env={"COLUMNS": str(width)}).stdout
        rows = [line for line in text.splitlines() if re.match(r" +\d+  ", line)]
        assert len(rows) >= 2
        assert max(map(len, rows)) <= width
    wide = run("estimate", *question, env={"COLUMNS": "200"}).stdout
    assert "Too narrow" not in wide
    narrow = run("estimate", *question, "-v", env={"COLUMNS": "80"}).stdout
    assert "Too narrow for: " in narrow
    assert "optimizer" in narrow.split("Too narrow")[0]


def test_a_price_keeps_its_cost_on_a_narrow_line() -> None:
    question = ("--model", "llama3.1-70b", "--nodes", "8", "--train-tokens", "300B", "--price-per-device-hour", "2")
    text = run("rank", *question, "-q", env={"COLUMNS": "80"}).stdout
    assert "days" in text
    assert "cost" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_section_keeps_to_the_width() -> None:
    """Sentences break, columns of words too, and of the numbers the last go first, or what `spare` says."""
    headers = ("name", "first", "second", "third", "about")
    rows = [["a", "1" * 9, "2" * 9, "3" * 9, "some words " * 6]]
    section = Section("Title", ("A sentence that is longer than the width.",), headers, rows, (0, 4), ("about",))
    for spare, gone in (({}, "second, third"), ({"first": 9}, "first, third")):
        text = Presentation(width=40).sections([replace(section, spare=spare)])
        assert max(map(len, text.splitlines())) <= 40
        assert f"Too narrow for: {gone}." in text
    assert "3" * 9 in PLAIN.sections([section])
    assert "3" * 9 in Presentation(style="markdown", width=40).sections([section])
