"""A plan: its arithmetic against hand calculations, its layouts against rankings, its words against its figures."""

import json
import math
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

import simulator
from simulator import InputError, UnsupportedError
from simulator.answers.plan import (
    BYTES_PER_PARAMETER,
    Availability,
    Choice,
    LimitCheck,
    Offer,
    Plan,
    goodput,
    limit_check,
    parse_offer,
)
from simulator.answers.run import run_of
from simulator.api import plan
from simulator.cost.pricing.estimate import Interval
from simulator.search.space import Space
from simulator.show.report.plan import plan_answer
from simulator.show.report.presentation import Column, fitting
from simulator.show.report.schema import schema
from tests.cli.running import refusal, run
from tests.report import samples

BOOKING = (
    *("plan", "--model", "llama3.1-70b", "--train-tokens", "300B", "--deadline-days", "30", "--budget", "230000"),
    *("--offer", "h100-sxm-80g:8,16@2.50", "--offer", "h800-sxm-80g:8:32@2.10"),
    *("--offer", "ascend-910b-64g-8:4:64@1.20"),
)
SMALL: dict[str, Any] = {"model": "llama3.1-8b", "train_tokens": 10**11, "global_batch_size": 256}


@pytest.mark.parametrize(
    ("text", "offer"),
    [
        ("h100-sxm-80g:8,16@2.50", ("h100-sxm-80g", (8, 16), 2.5)),
        ("h100-sxm-80g:16,8,8", ("h100-sxm-80g", (8, 16), None)),
        ("ascend-910b-64g-8:4:64@1.20", ("ascend-910b-64g-8", (4, 8, 16, 32, 64), 1.2)),
        ("h20:3:20@0", ("h20", (3, 6, 12, 20), 0.0)),
        ("h20:4:13:4", ("h20", (4, 8, 12), None)),
        ("./own.yaml:1@1", ("./own.yaml", (1,), 1.0)),
    ],
)
def test_an_offer_is_read(text: str, offer: tuple[str, tuple[int, ...], float | None]) -> None:
    read = parse_offer(text)
    assert (read.hardware, read.nodes, read.price_per_device_hour) == offer


@pytest.mark.parametrize(
    "text",
    ["", "h20", "h20:", "h20:0", "h20:8:4", "h20:1:8:0", "h20:8@", "h20:8@-1", "h20:8@x", ":8", "h20:1:9999999:1"],
)
def test_what_is_no_offer_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match="offer"):
        parse_offer(text)
    assert "offer" in refusal("plan", "--model", "llama3.1-8b", "--train-tokens", "1B", "--offer", text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--train-tokens", "1B", "--offer", "h20:1"), "--model"),
        (("--model", "llama3.1-8b", "--offer", "h20:1"), "--train-tokens"),
        (("--model", "llama3.1-8b", "--train-tokens", "1B"), "--offer"),
        (("--model", "llama3.1-8b", "--train-tokens", "1B", "--offer", "h21:1"), "did you mean 'h20'"),
        (("--model", "llama3.1-8b", "--train-tokens", "1B", "--offer", "h20:1", "--budget", "9"), "price"),
        (("--model", "llama3.1-8b", "--train-tokens", "1B", "--offer", "h20:1", "--deadline-days", "0"), "above 0"),
        (("--model", "llama3.1-8b", "--train-tokens", "1B", "--offer", "h20:1", "--precision", "fp7"), "fp8"),
        (
            ("--model", "llama3.1-8b", "--train-tokens", "1B", "--offer", "h20:1", "--min-fit-probability", "2"),
            "0 to 1",
        ),
    ],
)
def test_bad_input_is_answered_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal("plan", *arguments)


def test_the_run_is_tokens_over_speed() -> None:
    estimate = samples.calibrated()
    found = run_of(estimate, 10**12, 2.0, 0.5)
    seconds = 10**12 / (10_000.0 * 8) / 0.5
    assert found.days == pytest.approx(seconds / 86_400)
    assert found.cost == pytest.approx(seconds / 3600 * 8 * 2.0)
    assert found.days_interval is not None
    assert found.days_interval.high / found.days == pytest.approx(2.1 / 2.0)


def test_a_limit_inside_the_interval_is_kept_maybe() -> None:
    interval = Interval(10.0, 40.0)
    assert limit_check(20.0, interval, 41.0).answer == "yes"
    assert limit_check(20.0, interval, 9.0).answer == "no"
    middle = limit_check(20.0, interval, 20.0)
    assert middle.answer == "maybe"
    assert middle.probability == pytest.approx(0.5)
    assert limit_check(20.0, interval, 40.0).probability == pytest.approx(0.95)
    assert limit_check(20.0, interval, 10.0).probability == pytest.approx(0.05)
    assert (limit_check(20.0, None, 20.0).answer, limit_check(20.0, None, 19.0).answer) == ("yes", "no")


def test_goodput_is_the_renewal_of_its_parts() -> None:
    """Against a run simulated failure by failure, at their mean spacing."""
    availability = Availability(device_mtbf_hours=1e4, checkpoint_minutes=60.0, evaluation_share=0.05)
    found = goodput(availability, 1000, 7e10)
    write = 7e10 * BYTES_PER_PARAMETER / (availability.checkpoint_bandwidth_per_device * 1000)
    cycle = 3600.0 + write + 0.05 * 3600.0
    mean = 36_000.0
    lost = 600.0 + write + cycle / 2
    assert found.training == pytest.approx((mean - lost) / mean * 3600.0 / cycle)
    assert found.training + found.checkpoints + found.evaluation + found.failures == pytest.approx(1.0)
    assert found.failures_per_day == pytest.approx(2.4)


def test_the_default_interval_between_checkpoints_loses_least() -> None:
    best = goodput(Availability(evaluation_share=0.0), 4096, 4e11)
    for factor in (0.7, 1.4):
        other = Availability(evaluation_share=0.0, checkpoint_minutes=factor * best.interval_seconds / 60.0)
        assert goodput(other, 4096, 4e11).training < best.training


def test_more_devices_fail_more_often_until_nothing_gets_done() -> None:
    shares = [goodput(Availability(), devices, 4e11).training for devices in (256, 4096, 65_536)]
    assert shares == sorted(shares, reverse=True)
    with pytest.raises(UnsupportedError, match="makes no progress"):
        goodput(Availability(device_mtbf_hours=10.0), 4096, 4e11)


def test_the_defaults_agree_with_what_was_published() -> None:
    """Of a job on 16,384 devices: an interruption every three hours, and more than 90 % effective time."""
    found = goodput(Availability(evaluation_share=0.0), 16_384, 405e9)
    assert 24.0 / found.failures_per_day == pytest.approx(3.09, abs=0.01)
    assert found.training > 0.9


@pytest.mark.parametrize("field", ["device_mtbf_hours", "restart_minutes", "checkpoint_minutes", "evaluation_share"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "ten", True])
def test_impossible_availability_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        Availability(**{field: value})


@pytest.mark.full_answer
def test_a_choice_has_the_layout_that_a_ranking_recommends() -> None:
    found = simulator.plan(**SMALL, offers=["h20:1,2@1", "a100-sxm-80g:1@1"], precisions=("bf16", "fp8"))
    assert [(c.hardware, c.nodes, c.precision) for c in found.choices] == [
        *(("h20", nodes, precision) for nodes in (1, 2) for precision in ("bf16", "fp8")),
        *(("a100-sxm-80g", 1, precision) for precision in ("bf16", "fp8")),
    ]
    for choice in found.choices[:4]:
        ranking = simulator.rank(
            model="llama3.1-8b",
            hardware=choice.hardware,
            nodes=choice.nodes,
            precision=choice.precision,
            global_batch_size=256,
        )
        assert choice.estimate == ranking.estimates[0]
    assert found.choices[-1].estimate is None
    assert "has no fp8 peak" in str(found.choices[-1].reason)


def test_answers_follow_from_figures() -> None:
    found = plan(
        **SMALL,
        offers=["h20:1:16@1.5", Offer(hardware="z2000", nodes=(1, 4), price_per_device_hour=2.0)],
        deadline_days=20.0,
        budget=9_000.0,
        availability=Availability(),
    )
    assert len(found.choices) == 7
    for choice in found.choices:
        assert choice.run is not None
        assert choice.run.cost is not None
        assert choice.in_time is not None
        assert choice.run.days_interval is not None
        fast = choice.run.days_interval
        assert choice.in_time.answer == ("yes" if fast.high <= 20 else "no" if fast.low > 20 else "maybe")
        dominated = [
            other
            for other in found.choices
            if other.run is not None
            and other.run.cost is not None
            and other.run.days <= choice.run.days
            and other.run.cost <= choice.run.cost
            and other is not choice
        ]
        assert choice.pareto == (not dominated)
    for offer in range(2):
        in_time = [c.nodes for c in found.choices if c.offer == offer and c.run is not None and c.run.days <= 20]
        least = found.least_nodes(offer)
        assert (least.nodes if least else None) == min(in_time, default=None)
    best = found.best
    assert best is not None
    rank = ["yes", "maybe", "no"].index
    assert rank(best.verdict) == min(rank(c.verdict) for c in found.choices)


def test_availability_makes_a_run_longer() -> None:
    plain, real = (plan(**SMALL, offers=["h20:4"], availability=given).choices[0] for given in (None, Availability()))
    assert plain.run is not None
    assert real.run is not None
    assert real.goodput is not None
    assert real.run.days == pytest.approx(plain.run.days / real.goodput.training)


def test_what_cannot_be_trained_says_why() -> None:
    found = plan(model="llama3.1-405b", train_tokens=10**9, offers=["a100-sxm-40g:1@1"])
    assert found.best is None
    assert "nothing fits; the nearest needs" in str(found.choices[0].reason)
    shown = run("plan", "--model", "llama3.1-405b", "--train-tokens", "1B", "--offer", "a100-sxm-40g:1@1")
    assert shown.exit_code == 0
    assert "No offer has a layout that is likely enough to fit." in shown.stdout


def test_the_booking_question_is_answered_by_the_contract() -> None:
    found = json.loads(run(*BOOKING, "--format", "json").stdout)
    jsonschema.Draft202012Validator({**schema(), "anyOf": [{"$ref": "#/$defs/plan"}]}).validate(found)
    assert len(found["choices"]) == 10
    assert all(choice["training"]["days_interval"] for choice in found["choices"])
    assert {choice["offer"] for choice in found["choices"] if choice["pareto"]} <= {0, 1, 2}
    assert found["choices"][found["best"]]["verdict"] in ("yes", "maybe")


def test_every_format_is_written() -> None:
    arguments = ("plan", "--model", "llama3.2-1b", "--train-tokens", "1B", "--offer", "h20:1@2", "--availability")
    assert run(*arguments, "--format", "csv").stdout.startswith(
        "hardware,nodes,devices,precision,verdict,pareto,reason,days,"
    )
    assert "| offer" in run(*arguments, "--format", "markdown").stdout
    assert "Goodput: " in run(*arguments).stdout
    assert "\n\noffer" in run(*arguments, "-q").stdout


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_keeps_to_the_terminal(width: int) -> None:
    shown = run(*BOOKING, "--availability", "-q", env={"COLUMNS": str(width)}).stdout
    assert max(map(len, shown.splitlines())) <= width
    assert "days" in shown


def test_columns_go_by_how_little_they_matter() -> None:
    columns = [Column(header=name, cells=("x" * 10,), spare=spare) for name, spare in (("a", 0), ("b", 9), ("c", 5))]
    kept_columns, gone = fitting(columns, 25)
    assert [c.header for c in kept_columns] == ["a", "c"]
    assert [c.header for c in gone] == ["b"]
    assert fitting(columns, 3)[0] == columns[:1]


def choice(nodes: int, days: float, cost: float | None, **limits: LimitCheck) -> Choice:
    """A choice with a run of so many days and that cost."""
    estimate = samples.calibrated()
    run = replace(run_of(estimate, 10**12, None), days=days, cost=cost)
    told: dict[str, Any] = {"offer": 0, "hardware": "h20", "nodes": nodes, "devices": 8 * nodes, "precision": "bf16"}
    return Choice(**told | limits, estimate=estimate, reason="", run=run)


def booked(*choices: Choice) -> int:
    """Nodes of what is to be booked within 10 days for 100."""
    found = Plan(
        model="llama3.1-8b",
        train_tokens=10**12,
        deadline_days=10.0,
        budget=100.0,
        offers=(Offer(hardware="h20", nodes=(1, 2, 4), price_per_device_hour=1.0),),
        availability=None,
        min_fit_probability=0.95,
        choices=choices,
    )
    assert found.best is not None
    assert found.best == found.best_of(0)
    return found.best.nodes


def test_what_to_book_keeps_the_limits_then_is_likeliest_then_misses_by_least() -> None:
    yes, no = LimitCheck("yes", 0.99), LimitCheck("no", 0.01)
    cheap = choice(1, 11.0, 80.0, in_time=LimitCheck("maybe", 0.2), in_budget=yes)
    likely = choice(2, 8.0, 95.0, in_time=yes, in_budget=LimitCheck("maybe", 0.9))
    sure = choice(4, 9.0, 90.0, in_time=yes, in_budget=yes)
    assert booked(cheap, likely) == 2
    assert booked(cheap, likely, sure) == 4
    slow = choice(1, 90.0, 60.0, in_time=no, in_budget=yes)
    dear = choice(2, 5.0, 130.0, in_time=yes, in_budget=no)
    assert booked(slow, dear) == 2
    unpriced = choice(1, 5.0, None, in_time=yes, in_budget=LimitCheck("maybe", None))
    assert unpriced.verdict == "maybe"
    assert booked(unpriced, likely) == 2


def test_an_offer_without_a_price_may_be_in_budget() -> None:
    found = plan(**SMALL, offers=["h20:1@1", "h20:2"], budget=1e6)
    assert [c.in_budget.answer for c in found.choices if c.in_budget is not None] == ["yes", "maybe"]
    assert found.best == found.choices[0]


def test_the_command_of_what_to_book_prices_its_layout() -> None:
    text = run(*BOOKING, env={"COLUMNS": "80"}).stdout.replace(" \\\n", " ")
    [command] = [line.split("Part by part: ")[1] for line in text.splitlines() if "Part by part: " in line]
    found = json.loads(run(*command.split()[1:], "--format", "json").stdout)
    booked = json.loads(run(*BOOKING, "--format", "json").stdout)
    best = booked["choices"][booked["best"]]["estimate"]
    assert found["layout"] == best["layout"]
    assert found["throughput"]["step_time_s"] == pytest.approx(best["throughput"]["step_time_s"])


def test_every_offer_says_what_its_numbers_rest_on() -> None:
    text = run(*BOOKING, "-v", env={"COLUMNS": "400"}).stdout
    for hardware in ("h100-sxm-80g", "h800-sxm-80g", "ascend-910b-64g-8"):
        for word in ("Known: ", "Switches: "):
            assert any(hardware in line.partition(word)[0] for line in text.splitlines() if word in line)
    assert "Assumed: " in run(*BOOKING, "-v").stdout


@pytest.fixture(scope="module")
def beside_unmeasured() -> dict[float, simulator.Plan]:
    """An H100 offer beside one of a family that was never measured, at two of its prices."""
    return {
        price: simulator.plan(
            model="llama3.1-8b",
            train_tokens=10**11,
            offers=["h100-sxm-80g:4@2.50", f"mi355x:4@{price}"],
            space=Space(tensor_parallel=(1,), pipeline_parallel=(1, 2), context_parallel=(1,), recompute=("none",)),
        )
        for price in (0.5, 5.0)
    }


def test_what_was_never_measured_is_not_booked_over_what_was(beside_unmeasured: dict[float, simulator.Plan]) -> None:
    """Unless its whole range is better; the other one stands beside it."""
    cheap, near = beside_unmeasured[0.5], beside_unmeasured[5.0]
    for found in (cheap, near):
        assert found.first is not None
        assert found.first.hardware == "mi355x"
        assert found.best_measured is not None
        assert found.best_measured.hardware == "h100-sxm-80g"
    assert cheap.best == cheap.first
    assert near.best == near.best_measured
    costs = [choice.run.cost_interval for choice in near.choices if choice.run is not None]
    assert all(cost is not None for cost in costs)
    said = {price: "\n".join(plan_answer(found)) for price, found in beside_unmeasured.items()}
    assert "No run of mi355x was measured" in said[0.5]
    assert "Best that was measured: 4 nodes of h100-sxm-80g" in said[0.5]
    assert said[5.0].startswith("Book: 4 nodes of h100-sxm-80g")
    assert "Not booked: 4 nodes of mi355x" in said[5.0]


@pytest.mark.parametrize(("hardware", "judged"), [("h100-sxm-80g", True), ("bi150-64g", False)])
def test_what_is_booked_with_offload_says_what_the_host_needs(hardware: str, judged: bool) -> None:
    asked = ("plan", "--model", "llama3.1-8b", "--train-tokens", "100B", "--offer", f"{hardware}:2")
    shown = run(*asked, "--offload", "optimizer").stdout
    said = " ".join(shown.split())
    assert "Host memory: " in said
    assert ("host memory is not judged" in said) is not judged


def test_an_offer_may_count_devices() -> None:
    """A rack of NVL72 is 18 trays of four."""
    assert parse_offer("gb200-nvl72:72d,8@5").nodes == (8, 18)
    with pytest.raises(InputError, match="offer gb200-nvl72:70d: 70 devices are not whole nodes of 4"):
        parse_offer("gb200-nvl72:70d")


def test_a_plan_names_what_costs_as_much_and_is_far_sooner() -> None:
    asked: dict[str, Any] = {"model": "llama3.1-8b", "train_tokens": "1T", "stack": "default"}
    twice = simulator.plan(**asked, offers=["h100:4,8@2.5"])
    assert twice.best is not None
    assert twice.best.nodes == 4
    assert twice.sooner is not None
    assert twice.sooner.nodes == 8
    assert simulator.plan(**asked, offers=["h100:4@2.5"]).sooner is None
    said = list(plan_answer(twice))
    assert any(line.startswith("About the same cost, half the days: 8 nodes of h100-sxm-80g") for line in said)


def test_a_plan_names_what_is_as_cheap_within_what_is_known_and_the_surer_one() -> None:
    asked: dict[str, Any] = {
        "model": "gpt2",
        "train_tokens": "10B",
        "space": Space(tensor_parallel=(1,), pipeline_parallel=(1,), context_parallel=(1,), recompute=("none",)),
    }
    for h800, best, equal in ((2.4, "h800-sxm-80g", 1), (0.5, "h800-sxm-80g", 0), (9.0, "h100-sxm-80g", 0)):
        found = simulator.plan(**asked, offers=["h100:1@2.5", f"h800:1@{h800}"])
        assert found.best is not None
        assert found.best.hardware == best
        assert len(found.equal) == equal
        assert json.loads(found.to_json())["equal"] == [0] * equal
        lines = [line for line in plan_answer(found) if "As cheap within what is known" in line]
        assert len(lines) == equal
        if equal:
            surer, run = found.surer, found.best.run
            assert "1 node of h100-sxm-80g" in lines[0]
            assert run is not None
            assert run.cost_interval is not None
            other = found.equal[0].run
            assert other is not None
            assert other.cost_interval is not None
            assert (surer is not None) is (other.cost_interval.high < run.cost_interval.high)
            assert ("surer" in lines[0]) is (surer is not None)


@pytest.mark.full_answer
def test_without_a_precision_each_offer_has_its_devices_usual_one() -> None:
    asked: dict[str, Any] = {
        "model": "llama3.2-1b",
        "train_tokens": 10**9,
        "offers": ["v100-sxm-32g:1", "a100-sxm-80g:1"],
    }
    found = plan(**asked)
    assert [(choice.hardware, choice.precision) for choice in found.choices] == [
        ("v100-sxm-32g", "fp16"),
        ("a100-sxm-80g", "bf16"),
    ]
    assert all(choice.estimate is not None for choice in found.choices)
    assert simulator.from_json(found.to_json()) == found
    (said,) = plan(**asked | {"offers": ["v100-sxm-32g:1"], "precisions": ("bf16",)}).choices
    assert (said.estimate, said.precision) == (None, "bf16")
    assert said.reason is not None
    assert "bf16" in said.reason
