"""The Python API: two questions, their defaults, and their refusals."""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import InputError, Layout, Space, UnsupportedError
from simulator.api import scenario_of
from simulator.question.question import Question
from simulator.question.scenario.inputs import BY_INPUT
from simulator.question.scenario.layout import BY_NAME
from simulator.question.specs.catalogue import spec_text
from simulator.question.specs.vision import Images
from simulator.question.vocabulary import OFFLOADS
from simulator.search.build import estimate_layout
from simulator.search.space import Ranking
from tests.cli.running import run
from tests.scenario.cases import complete_layout


def test_public_names_are_there() -> None:
    for name in simulator.__all__:
        assert getattr(simulator, name) is not None
    assert set(simulator.__all__) <= set(dir(simulator))
    with pytest.raises(AttributeError, match="has no attribute 'guess'"):
        _ = simulator.guess


def test_three_lines_answer() -> None:
    ranking = simulator.rank(model="llama3.1-70b", nodes=8)
    best = ranking.estimates[0]
    assert best.memory.fits


def test_defaults_are_named_with_their_values() -> None:
    ranking = simulator.rank(model="llama3.1-8b", nodes=2, seq_length=4096)
    assert ranking.query["hardware"] == "z2000"
    assert ranking.query["nodes"] == 2
    assert ranking.query["devices"] == 16
    assert ranking.query["seq_length"] == 4096
    assert ranking.query["global_batch_size"] == 1024
    assert ranking.query["precision"] == "bf16"
    assert ranking.query["framework"] == "megatron"
    assert ranking.query["num_layers"] == 32
    assert {"hardware", "global_batch_size", "precision", "framework"} <= set(ranking.defaults)
    assert not {"nodes", "seq_length", "model"} & set(ranking.defaults)


@pytest.mark.parametrize(
    ("asked", "given", "says"),
    [
        (simulator.rank, {"modle": "llama3.1-8b"}, "rank() got an unexpected keyword argument 'modle', did you mean"),
        (simulator.estimate, {"model": "llama3.1-8b", "tensor_paralel": 2}, "mean 'tensor_parallel'?"),
        (scenario_of, {"nodes": 1}, "scenario_of(): missing a required"),
    ],
)
def test_a_wrong_name_is_said_of_the_function_that_was_asked(
    asked: Callable[..., Any], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        asked(**given)


def test_a_narrowed_space_is_part_of_the_query() -> None:
    ranking = simulator.rank(model="llama3.1-8b", nodes=2, space=Space(tensor_parallel=(2,)))
    assert ranking.query["space"] == {"tensor_parallel": (2,)}
    assert {found.layout.tensor_parallel for found in ranking.estimates} == {2}


def test_an_estimate_fills_in_the_layout() -> None:
    found = simulator.estimate(model="llama3.1-8b", tensor_parallel=1)
    assert found.layout == Layout(data_parallel=8, stage_layers=(32,))
    unsaid = simulator.estimate(model="llama3.1-8b")
    assert unsaid.layout == simulator.rank(model="llama3.1-8b", top=1).estimates[0].layout
    assert unsaid.provenance.cautions[0].startswith("no layout was said")
    cut = simulator.estimate(model="llama3.1-8b", layout=Layout(pipeline_parallel=8))
    assert cut.layout.stage_layers == (4,) * 8
    own = Layout(pipeline_parallel=2, data_parallel=4, stage_layers=(20, 12))
    assert simulator.estimate(model="llama3.1-8b", layout=own).layout == own


def test_the_best_of_a_ranking_is_priced_like_a_single_layout() -> None:
    ranking = simulator.rank(model="llama3.1-8b", nodes=4, top=3)
    scenario = scenario_of(model="llama3.1-8b", nodes=4)
    for found in ranking.estimates:
        assert found == simulator.estimate(model="llama3.1-8b", nodes=4, layout=found.layout)
        plain = estimate_layout(scenario, found.layout)
        assert found.memory.stages == plain.memory.stages
        assert found.throughput.parts_seconds == plain.throughput.parts_seconds


def test_a_calibration_is_used_unless_told_otherwise() -> None:
    calibrated = simulator.estimate(model="llama3.1-8b")
    assert calibrated.provenance.calibration != "priors"
    assert calibrated.memory.interval_bytes is not None
    assert calibrated.throughput.interval_seconds is not None
    priors = simulator.estimate(model="llama3.1-8b", calibration="none")
    assert priors.provenance.calibration == "priors"
    assert priors.provenance.status == "never"
    assert priors.memory.interval_bytes is None
    assert priors.throughput.interval_seconds is None
    assert priors.throughput.step_seconds != calibrated.throughput.step_seconds


def test_top_and_variants() -> None:
    def ranked(**fields: Any) -> Ranking:
        return simulator.rank(model="llama3.1-8b", nodes=4, **fields)

    assert [len(ranked(top=n).estimates) for n in (1, 5)] == [1, 5]
    with pytest.raises(InputError, match="top 0"):
        ranked(top=0)
    ten, variants = ranked(), ranked(variants=True)
    assert len(ten.estimates) == len(variants.estimates) == 10
    assert ten.estimates[0] == variants.estimates[0]
    assert variants.estimates[-1].throughput.step_seconds <= ten.estimates[-1].throughput.step_seconds


def test_the_same_question_has_the_same_answer() -> None:
    one, two = (simulator.rank(model="mixtral-8x7b-v0.1", nodes=4) for _ in range(2))
    timeless = [replace(x, counts=replace(x.counts, elapsed_seconds=0.0)) for x in (one, two)]
    assert timeless[0] == timeless[1]
    assert one.counts.elapsed_seconds > 0


@pytest.mark.parametrize(
    ("question", "answered"),
    [
        ({"hardware": "z2000"}, True),
        ({"hardware": "h20", "nodes": 2}, True),
        ({"hardware": "a100-sxm-80g"}, False),
        ({"hardware": "ascend-910b-64g"}, False),
        ({"hardware": "z2000", "precision": "fp8"}, False),
        ({"hardware": "z2000", "precision": "fp16"}, True),
    ],
)
def test_what_fp8_would_give_where_the_device_has_it(question: dict[str, Any], answered: bool) -> None:
    ranking = simulator.rank(model="llama3.1-8b", **question)
    assert (ranking.fp8 is not None) == answered
    if ranking.fp8 is not None:
        assert ranking.fp8.precision == "fp8"
        best = simulator.rank(model="llama3.1-8b", **(question | {"precision": "fp8"})).estimates[0]
        assert ranking.fp8 == best


def test_nothing_fits_and_what_would() -> None:
    ranking = simulator.rank(model="llama3.1-405b", nodes=1)
    assert ranking.estimates == ()
    assert ranking.counts.feasible == 0
    assert ranking.nearest is not None
    assert ranking.nearest.verdict == "does_not_fit"
    assert ranking.nearest.memory.headroom_bytes < 0
    changes = [remedy.change for remedy in ranking.remedies]
    enough = next(int(change.removeprefix("--nodes ")) for change in changes if change.startswith("--nodes"))
    for remedy in ranking.remedies:
        assert remedy.estimate.verdict == "fits"
    # One node less does not do.
    assert simulator.rank(model="llama3.1-405b", nodes=enough - 1).estimates == ()
    assert simulator.rank(model="llama3.1-405b", nodes=enough).counts.feasible > 0


def test_fields_of_a_layout_are_completed() -> None:
    """Three lines do: data parallel fills the devices, sequence parallelism and the ZeRO stage are the usual ones."""
    found = simulator.estimate(model="llama3.1-8b", nodes=1, tensor_parallel=2, framework="torch")
    assert found.violations == ()
    assert (found.layout.data_parallel, found.layout.sequence_parallel, found.layout.zero_stage) == (4, True, 3)
    with pytest.raises(InputError, match="not both"):
        simulator.estimate(model="llama3.1-8b", layout=Layout(data_parallel=8), tensor_parallel=2)


def test_a_switch_without_effect_is_named() -> None:
    found = simulator.estimate(model="llama3.1-8b", options={"mtp": "true", "flash_attention": "false"})
    assert found.provenance.without_effect == ("--option mtp=true has no effect on this model and layout",)


def test_nothing_keeps_the_rules_says_why() -> None:
    ranking = simulator.rank(model="llama3.1-8b", nodes=1, space=Space(stage_layers=(16, 15)))
    assert ranking.estimates == ()
    assert "31 layers" in next(reason.message for reason in ranking.reasons if reason.rule == "layers")
    with pytest.raises(InputError, match="divisor of 8 devices"):
        simulator.rank(model="llama3.1-8b", nodes=1, space=Space(tensor_parallel=(3,)))


def test_a_remedy_may_be_a_freer_choice() -> None:
    space = Space(tensor_parallel=(1,), pipeline_parallel=(1,))
    ranking = simulator.rank(model="llama3.1-70b", nodes=8, space=space)
    assert ranking.counts.feasible == 0
    changes = {remedy.change for remedy in ranking.remedies}
    assert "free choice of tensor_parallel" in changes


def test_what_a_remedy_costs_is_what_it_gives() -> None:
    ranking = simulator.rank(model="qwen2.5-72b", hardware="z2000", nodes=2, space=Space(recompute=("full",)))
    offers = {remedy.change: remedy.estimate for remedy in ranking.remedies}
    if ranking.counts.feasible:
        assert offers == {}
        return
    for change, found in offers.items():
        if change.startswith("--offload"):
            word = next(kind for kind in OFFLOADS if kind == change.split()[1])
            again = simulator.rank(model="qwen2.5-72b", nodes=2, space=Space(recompute=("full",), offload=(word,)))
            assert again.estimates[0] == found


def test_a_model_is_cut_to_a_number_of_layers() -> None:
    found = simulator.estimate(model="llama3.1-70b", num_layers=4, layout=Layout(data_parallel=8))
    assert found.layout.stage_layers == (4,)
    whole = simulator.estimate(model="llama3.1-70b", layout=Layout(data_parallel=8))
    assert found.throughput.model_flops_per_token < whole.throughput.model_flops_per_token / 8


@pytest.mark.parametrize(
    ("question", "error", "expected"),
    [
        ({"nodes": 1, "devices": 8}, InputError, "give nodes or devices, not both"),
        ({"nodes": 0}, InputError, "nodes 0"),
        ({"hardware": "h1000"}, InputError, "unknown hardware 'h1000'"),
        ({"model": "llama3.1-80b"}, InputError, "unknown model 'llama3.1-80b', did you mean 'llama3.1-8"),
        (
            {"framework": "paddel"},
            InputError,
            "framework 'paddel', did you mean 'paddle'?; allowed are megatron, paddle, torch",
        ),
        ({"options": {"mtp": True}}, InputError, "option mtp: its value is text, as after --option"),
        ({"options": {"mtpp": "1"}}, InputError, "--option mtpp: unknown switch, did you mean 'mtp'?"),
        ({"images": 3}, InputError, "images '3': write NUMBERxWIDTHxHEIGHT"),
        ({"nodes": "auto"}, InputError, "nodes 'auto': only a ranking searches them; write a whole number"),
        ({"nodes": "auto", "tp": 8}, InputError, "nodes 'auto': only a ranking searches them"),
        ({"survive": "x%", "lengths": "max=4k"}, InputError, "survive 'x%': must be a number from 0 to 1"),
        ({"num_layers": 0}, InputError, "num_layers 0"),
        ({"precision": "fp5"}, InputError, "precision 'fp5'"),
        ({"hardware": "ascend-910c", "precision": "fp8"}, UnsupportedError, "hardware 'ascend-910c' has no fp8 peak"),
        (
            {"layout": Layout(pipeline_parallel=64)},
            InputError,
            "pipeline_parallel 64 is more than the 32 layers of llama3.1-8b",
        ),
    ],
)
def test_refusals_are_one_line(question: dict[str, Any], error: type[Exception], expected: str) -> None:
    with pytest.raises(error) as caught:
        simulator.estimate(**({"model": "llama3.1-8b"} | question))
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_remedies_of_a_part_of_a_node() -> None:
    assert simulator.rank(model="llama3.1-405b", devices=6).nearest is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"tensor_parallel": 0},
        {"tensor_parallel": -1},
        {"micro_batch_size": 0},
        {"virtual_stages": 0},
        {"pipeline_parallel": 0},
        {"recompute": "bogus"},
        {"recompute": "full", "recompute_layers": 0},
        {"pipeline_parallel": 2, "data_parallel": 4, "stage_layers": (32,)},
        {"stage_layers": (0,)},
    ],
)
def test_a_layout_of_nonsense_is_an_input_error(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        simulator.estimate(model="llama3.1-8b", layout=Layout(**({"data_parallel": 8} | fields)))


@pytest.mark.parametrize(
    "fields",
    [
        {"tensor_parallel": (0,)},
        {"micro_batch_size": (0,)},
        {"recompute": ("x",)},
        {"virtual_stages": (0,)},
        {"recompute": ("none",), "recompute_layer_list": (1, 2)},
    ],
)
def test_a_space_of_nonsense_is_an_input_error(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        simulator.rank(model="llama3.1-8b", space=Space(**fields))


def test_a_layout_is_given_by_short_names_too() -> None:
    short = simulator.estimate(model="llama3.1-8b", nodes=2, tp=2, pp=2, micro_batch_size=2)
    assert short == simulator.estimate(
        model="llama3.1-8b", nodes=2, tensor_parallel=2, pipeline_parallel=2, micro_batch_size=2
    )
    assert simulator.estimate(model="llama3.1-8b", pp=2, layers_per_virtual_stage=4).layout.virtual_stages == 4
    with pytest.raises(InputError, match="tensor_parallel and tp are the same"):
        simulator.estimate(model="llama3.1-8b", tensor_parallel=2, tp=2)


def test_replicas_say_how_many_devices_there_are() -> None:
    found = simulator.estimate(model="llama3.1-8b", tp=2, dp=8)
    assert (found.devices, found.verdict) == (16, "fits")
    assert simulator.estimate(model="llama3.1-8b", nodes=1, tp=2, dp=8).verdict == "refused"


def test_details_of_full_recompute_imply_it() -> None:
    found = simulator.estimate(model="llama3.1-8b", recompute_method="block", recompute_layers=2).layout
    assert (found.recompute, found.recompute_method, found.recompute_layers) == ("full", "block", 2)
    listed = simulator.estimate(model="llama3.1-8b", recompute_layer_list=(1, 2)).layout
    assert (listed.recompute, listed.recompute_method) == ("full", "list")
    with pytest.raises(InputError, match="recompute_layers needs recompute full"):
        simulator.estimate(model="llama3.1-8b", recompute="selective", recompute_layers=2)


def test_inputs_of_a_question_are_its_keywords() -> None:
    assert next(iter(inspect.signature(scenario_of).parameters)) == "model"
    assert set(inspect.signature(scenario_of).parameters) == set(BY_INPUT)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (simulator.rank, {"model", "hardware", "seq_length", "stack", "space", "top"}),
        (simulator.estimate, {"model", "nodes", "layout", "tensor_parallel", "tp", "recompute", "precision"}),
        (simulator.plan, {"model", "offers", "availability", "seq_length", "framework", "calibration"}),
    ],
)
def test_a_signature_names_every_keyword(function: Callable[..., object], names: set[str]) -> None:
    parameters = inspect.signature(function).parameters
    assert names <= set(parameters)
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())
    assert parameters["model"].default is inspect.Parameter.empty
    assert parameters["seq_length"].default == 8192
    assert parameters["seq_length"].annotation == "int | str"
    heads = [line.split(":")[0] for line in (inspect.getdoc(function) or "").split("\n")]
    assert set(parameters) & {*BY_INPUT, *BY_NAME} <= {word for head in heads for word in head.split(", ")}


def test_a_scenario_carries_its_calibration() -> None:
    scenario = scenario_of(model="llama3.1-8b")
    layout = complete_layout(scenario, tp=2)
    assert estimate_layout(scenario, layout).memory.interval_bytes is not None
    assert estimate_layout(replace(scenario, calibration=None), layout).memory.interval_bytes is None
    assert replace(scenario, calibration=None) == scenario


def test_a_ranking_takes_fields_of_a_layout() -> None:
    asked: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h20", "nodes": 2}
    held = simulator.rank(**asked, tp=4, pipeline_parallel=(1, 2), top=5)
    spaced = simulator.rank(**asked, space=Space(tensor_parallel=(4,), pipeline_parallel=(1, 2)), top=5)
    assert [one.layout for one in held.estimates] == [one.layout for one in spaced.estimates]
    assert {one.layout.tensor_parallel for one in held.estimates} == {4}
    with pytest.raises(InputError, match="a space or fields of a layout, not both"):
        simulator.rank(**asked, tp=4, space=Space())
    with pytest.raises(TypeError, match="did you mean"):
        simulator.rank(**asked, tensor_paralel=4)  # type: ignore[call-arg]  # as a user may write
    assert "tp" in inspect.signature(simulator.rank).parameters


class _Config:
    """What a configuration of transformers gives of itself."""

    def to_dict(self) -> dict[str, Any]:
        return CONFIG


CONFIG: dict[str, Any] = {
    "_name_or_path": "acme/tiny-qwen",
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
}


@pytest.mark.parametrize("model", [CONFIG, _Config()])
def test_a_model_may_be_a_configuration(model: Any) -> None:
    found = simulator.estimate(model=model, hardware="h20", devices=2, tp=2)
    assert found.model == "tiny-qwen"
    assert simulator.rank(model=model, hardware="h20", devices=2).query["model"] == "tiny-qwen"
    with pytest.raises(InputError, match="model_type: is missing"):
        simulator.estimate(model={"hidden_size": 4}, hardware="h20")
    with pytest.raises(InputError, match="a name, a path, or a Hugging Face configuration"):
        simulator.estimate(model=7, hardware="h20")  # type: ignore[arg-type]  # as a user may write


def test_estimates_are_compared() -> None:
    found = simulator.rank(model="llama3.1-8b", hardware="h20", nodes=2, top=2)
    first, second = found.estimates[:2]
    compared = simulator.compare(first, second)
    assert (compared.first.layout, compared.second.layout) == (first.layout, second.layout)
    own = simulator.estimate(model="llama3.1-8b", hardware="h20", tp=2, options={"gradient_dtype": "bf16"})
    assert [differing.name for differing in simulator.compare(own, first).inputs][:1] == ["devices"]
    assert simulator.compare(own, own).inputs == ()
    bare = replace(own, question=Question())
    with pytest.raises(InputError, match="give its arguments"):
        simulator.compare(bare, first)
    with pytest.raises(InputError, match="not int"):
        simulator.compare(1, first)  # type: ignore[arg-type]  # as a user may write


def test_paths_and_units_are_taken_as_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(spec_text("model", "gpt2-xl"), "utf-8")
    assert simulator.load_model(file).num_hidden_layers == 48
    priced = simulator.estimate(model=file, hardware="h100", devices=8, seq_length="1k", global_batch_size="64")
    assert (priced.seq_length, priced.global_batch_size) == (1024, 64)
    with pytest.raises(InputError, match="seq_length: count '8q'"):
        simulator.estimate(model="gpt2-xl", seq_length="8q")


def test_shares_and_whole_floats_are_taken_as_on_the_command_line() -> None:
    question: dict[str, Any] = {"model": "qwen3-8b", "hardware": "h100-sxm-80g", "lengths": "p50=1k,max=8k"}
    first, second = (simulator.estimate(**question, tp=8, survive=survive) for survive in ("99%", 0.99))
    assert (first.memory, first.lengths) == (second.memory, second.lengths)
    searched: dict[str, Any] = {"model": "qwen3-8b", "hardware": "h100-sxm-80g", "nodes": "auto", "deadline_days": 30}
    assert (
        simulator.rank(**searched, train_tokens=1e11).fewest == simulator.rank(**searched, train_tokens="100B").fewest
    )
    with pytest.raises(InputError, match=r"train_tokens 1\.5: must be a whole number"):
        simulator.rank(**searched, train_tokens=1.5)


def test_images_are_read_as_people_write_them() -> None:
    assert Images.read("4X1024X768") == Images.read("4×1024×768") == Images.read("4x1024x768")


def test_a_sequence_is_no_longer_than_the_models_positions() -> None:
    assert simulator.estimate(model="gpt2-xl").seq_length == 1024
    assert simulator.estimate(model="llama3.1-8b").seq_length == 8192
    for ask in (simulator.estimate, simulator.rank):
        with pytest.raises(InputError, match="gpt2-xl has 1024 learned positions"):
            ask(model="gpt2-xl", seq_length=2048)
    beyond = simulator.estimate(model="llama-2-7b", seq_length=32768, tensor_parallel=8)
    assert beyond.provenance.cautions == (
        "llama-2-7b was trained for sequences of up to 4,096 tokens; 32,768 are priced",
    )
    assert not simulator.estimate(model="llama-2-7b", seq_length=4096, tp=1).provenance.cautions


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One answer of each public class."""
    folder = tmp_path_factory.mktemp("answers")
    question: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "nodes": 1}
    estimate, recipe = simulator.estimate(**question, tp=2), folder / "train.sh"
    recipe.write_text(simulator.emit(estimate, force=True), encoding="utf-8")
    offers: list[Any] = ["h100:1,2@2.5", simulator.Offer(hardware="a100", nodes=(2,), price_per_device_hour=1.5)]
    failing = simulator.Availability(restart_minutes=5)
    return {
        "Estimate": estimate,
        "searched": simulator.estimate(**question),
        "Ranking": simulator.rank(**question, top=2),
        "Explanation": simulator.explain(estimate),
        "Comparison": simulator.compare(estimate, {**question, "tp": 4}),
        "Plan": simulator.plan(
            model="llama3.1-8b", train_tokens="1B", offers=offers, deadline_days=3, availability=failing
        ),
        "Checks": simulator.check(recipe, hardware="h200", settings={"NNODES": "2"}, fail_on=["does_not_fit"]),
        "Sweep": simulator.sweep({"model": "llama3.2-1b", "nodes": [1, 2]}, output=folder / "rows.csv", workers=1),
    }


def test_every_answer_comes_back_from_its_json_to_the_byte(answers: dict[str, Any]) -> None:
    for answer in answers.values():
        read = simulator.from_json(answer.to_json())
        assert type(read) is type(answer)
        assert read.to_json() == answer.to_json()
        if isinstance(answer, simulator.Sweep | simulator.Checks):
            assert read.rows() == answer.rows()


def test_what_no_longer_holds_is_refused_in_a_line(tmp_path: Path, answers: dict[str, Any]) -> None:
    recipe = tmp_path / "train.sh"
    recipe.write_text(simulator.emit(answers["Estimate"], force=True), encoding="utf-8")
    checks = simulator.check(recipe, hardware="h200", settings={"NNODES": "2"}).to_json()
    plan = json.loads(answers["Plan"].to_json())
    recipe.write_text("echo\n", encoding="utf-8")
    plan["choices"][0]["training"]["days"] = 1.0
    wrong = [checks, json.dumps(plan)]
    for name, key in (
        ("Plan", "offers"),
        ("Plan", "question"),
        ("Checks", "gates"),
        ("Sweep", "outcomes"),
        ("Ranking", "query"),
    ):
        value = json.loads(answers[name].to_json())
        wrong += [json.dumps({**value, key: 3}), json.dumps({**value, key: None} | {"question": {"inputs": 1}})]
    for text in (*wrong, "{}", "[]", "3", "", "{", '{"choices": [], "offers": []}', '{"results": [], "gates": {}}'):
        with pytest.raises(simulator.SimulateError) as error:
            simulator.from_json(text)
        assert "\n" not in str(error.value)


def test_every_answer_is_json_and_is_asked_again() -> None:
    question: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "tensor_parallel": 2}
    estimate = simulator.estimate(**question, optimizer="adamw", stack="default")
    answers: list[Any] = [
        estimate,
        simulator.rank(**question, top=2),
        simulator.explain(estimate),
        simulator.compare(estimate, estimate),
        simulator.plan(model="llama3.1-8b", train_tokens=10**9, offers=["h100:1"]),
    ]
    for answer in answers:
        assert json.loads(answer.to_json())["schema_version"] == "2"
    again = simulator.from_json(estimate.to_json())
    assert isinstance(again, simulator.Estimate)
    assert (again.memory, again.throughput, again.layout) == (estimate.memory, estimate.throughput, estimate.layout)
    second = simulator.from_json(answers[1].to_json(), rank=2)
    assert isinstance(answers[1], simulator.Ranking)
    assert isinstance(second, simulator.Estimate)
    assert second.layout == answers[1].estimates[1].layout
    with pytest.raises(InputError, match="JSON"):
        simulator.from_json("{}")


def test_python_and_the_command_line_emit_the_same_without_a_layout() -> None:
    """Each format gets the fastest layout that it has words for."""
    for target in ("nemo", "accelerate"):
        written = simulator.emit(model="llama3.1-8b", hardware="h100-sxm-80g", target=target)
        asked = ("emit", "--model", "llama3.1-8b", "--hardware", "h100-sxm-80g", "--framework", target)
        assert run(*asked).stdout == written


LOOSE: Any = simulator
"""The package as a program without types calls it."""


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: LOOSE.estimate(model="llama3.2-1b", hardware=True),
            "hardware 'True': must be a name or a path, not bool",
        ),
        (lambda: LOOSE.estimate(model="llama3.2-1b", options=["a"]), "options .*: must be a mapping, not list"),
        (lambda: LOOSE.estimate(model="llama3.2-1b", calibration=1), "calibration '1': must be a name or a path"),
        (
            lambda: LOOSE.estimate(model="llama3.2-1b", stage_layers=["x", 1]),
            "stage_layers 'x': must be a list of whole",
        ),
        (lambda: LOOSE.estimate(model="llama3.2-1b", optimizer=1.5), "optimizer '1.5': must be a word"),
        (lambda: LOOSE.estimate(model="llama3.2-1b", layout={}), "layout '{}': must be a Layout"),
        (
            lambda: LOOSE.rank(model="llama3.2-1b", space=LOOSE.Space(tensor_parallel=2)),
            "tensor_parallel '2': must be a list",
        ),
        (lambda: LOOSE.rank(model="llama3.2-1b", progress=1), "progress '1': must be a function"),
        (lambda: LOOSE.plan(model="x", train_tokens=1, offers=[None]), "offers 'None': must be a list of offers"),
        (lambda: LOOSE.plan(model="x", train_tokens=1, offers=["h20:1"], budget="1k"), "budget '1k': must be a number"),
        (lambda: LOOSE.check(b"x"), "files .*: must be a path, not bytes"),
        (lambda: LOOSE.from_json(b"{}"), "text .*: must be the JSON of an answer"),
        (lambda: LOOSE.load_model(None), "model 'None': must be a name or a path"),
        (lambda: LOOSE.Offer(hardware="h20", nodes=1), "nodes '1': must be a list of whole numbers"),
        (lambda: LOOSE.sweep({"model": "llama3.2-1b"}, output=1), "output '1': must be a path"),
    ],
)
def test_a_value_of_another_type_is_refused_in_words(call: Any, says: str) -> None:
    with pytest.raises(simulator.InputError, match=f"^(offer h20: )?{says}"):
        call()
