"""The user's own launch scripts, unmodified, as recipes."""

from pathlib import Path

import pytest

from simulator import check
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from tests.recipes.seeds import about, read_script_of, rules, scripts

ERNIE = {"seq_length": 8192, "framework": "paddle", "dialect": "paddle-shell", "precision": "bf16"}
PAI = {"seq_length": 8192, "global_batch_size": 1024, "framework": "megatron", "dialect": "megatron-shell"}


def holds(recipe: Recipe, **expected: object) -> None:
    assert {name: getattr(recipe, name) for name in expected} == expected


def affected(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    return {unknown.name: unknown.affects for unknown in recipe.unknowns if unknown.affects}


def line_of(number: str, which: int, text: str) -> int:
    lines = scripts(number)[which].splitlines()
    return 1 + next(i for i, line in enumerate(lines) if text in line)


def test_000_mixed_devices(tmp_path: Path) -> None:
    recipe = read_script_of("000", 0, tmp_path)
    holds(recipe, **ERNIE, model="ernie-4.5-21b-a3b", lora_rank=32, nodes=2, devices_per_node=8)
    holds(
        recipe,
        gradient_accumulation_steps=2,
        global_batch_size=None,
        options={
            "flash_attention": "true",
            "fused_rms_norm": "true",
            "release_grads": "true",
            "vocabulary_parallel_loss": "false",
        },
        unknowns=(),
    )
    assert recipe.layout == Layout(
        tensor_parallel=8,
        pipeline_parallel=2,
        expert_parallel=8,
        micro_batch_size=1,
        sequence_parallel=True,
        zero_stage=0,
    )
    assert recipe.places["tp"].line == line_of("000", 0, "--tensor_parallel_degree 8")
    assert recipe.places["model"].line == line_of("000", 0, 'model_path="')
    assert recipe.places["devices_per_node"].line == line_of("000", 0, "--nproc_per_node 8")
    assert rules(recipe) == {"warmup-exceeds-steps", "inactive-flag", "repeated-flag"}
    assert about(recipe, "repeated-flag") == ["lr_scheduler and lr_scheduler_type are two names of one setting"]
    assert about(recipe, "inactive-flag") == ["recompute_granularity full has no effect: recompute is off"]


def test_001_lora_on_one_machine(tmp_path: Path) -> None:
    recipe = read_script_of("001", 0, tmp_path)
    holds(recipe, **ERNIE, model="ernie-4.5-21b-a3b", lora_rank=32, nodes=1, devices_per_node=16, unknowns=())
    switches = {"flash_attention": "true", "fused_rms_norm": "false"}
    switches |= {"release_grads": "true", "vocabulary_parallel_loss": "false"}
    holds(recipe, options=switches, gradient_accumulation_steps=2)
    assert recipe.layout == Layout(
        tensor_parallel=4,
        pipeline_parallel=4,
        expert_parallel=4,
        sequence_parallel=True,
        zero_stage=0,
        recompute="full",
    )
    assert about(recipe, "model-guessed") == ["model 'ERNIE-4.5-21B-A3B-Paddl' is read as ernie-4.5-21b-a3b"]
    assert about(recipe, "warmup-exceeds-steps") == ["warmup_steps 2000 is more than max_steps 500"]


def test_002_full_training_fits_as_the_document_says(tmp_path: Path) -> None:
    """48.5 of 51.6 GiB are parameters, gradients and optimizer state, which are counted, not estimated."""
    file = tmp_path / "train.sh"
    file.write_text(scripts("002")[0], encoding="utf-8")
    (case,) = check(str(file), hardware="ascend-910b-64g").results
    assert case.outcome == "fits"
    assert case.estimate
    assert case.estimate.memory.state_share > 0.9


def test_002_full_training(tmp_path: Path) -> None:
    recipe = read_script_of("002", 0, tmp_path)
    holds(recipe, **ERNIE, model="ernie-4.5-300b-a47b", lora_rank=None, nodes=8, devices_per_node=16, unknowns=())
    holds(recipe, gradient_accumulation_steps=8)
    assert recipe.options == {
        "gradient_dtype": "fp32",
        "flash_attention": "true",
        "fused_rms_norm": "false",
        "release_grads": "true",
    }
    assert recipe.layout == Layout(
        tensor_parallel=8,
        pipeline_parallel=16,
        expert_parallel=8,
        sequence_parallel=True,
        zero_stage=0,
        recompute="full",
        offload="optimizer",
    )
    assert recipe.places["nodes"].line == line_of("002", 0, "nnodes=8")
    repeated = about(recipe, "repeated-flag")
    assert [text.split()[0] for text in repeated] == [
        "--weight_decay",
        "--use_sparse_head_and_loss_fn",
        "--moe_multimodal_dispatch_use_allgather",
    ]
    assert "'0.01' on line 67, then '0.1' on line 79" in repeated[0]
    assert "the sparse one is taken" in about(recipe, "contradiction")[0]


def test_002_lora(tmp_path: Path) -> None:
    recipe = read_script_of("002", 1, tmp_path)
    holds(recipe, **ERNIE, model="ernie-4.5-300b-a47b", lora_rank=32, nodes=1, devices_per_node=16, unknowns=())
    assert recipe.layout == Layout(
        tensor_parallel=8,
        pipeline_parallel=2,
        expert_parallel=8,
        sequence_parallel=True,
        zero_stage=0,
        recompute="full",
        offload="optimizer",
    )
    assert [text.split()[0] for text in about(recipe, "repeated-flag")] == [
        "lr_scheduler",
        "--use_sparse_head_and_loss_fn",
        "--offload_optim",
    ]
    assert "contradiction" in rules(recipe)


def test_004_the_older_script(tmp_path: Path) -> None:
    recipe = read_script_of("004", 0, tmp_path)
    holds(recipe, framework="megatron", model="llama-2-7b", seq_length=4096, global_batch_size=1024, precision="bf16")
    holds(recipe, nodes=None, devices_per_node=None, model_fields={"vocab_size": 151808})
    assert recipe.layout == Layout(tensor_parallel=2, zero_stage=1)
    assert affected(recipe) == {"TQ_GPU_NUM": ("devices_per_node",), "WORLD_SIZE": ("nodes",)}
    assert recipe.options["expandable_segments"] == "false"
    assert recipe.options["tp_comm_overlap"] == "false"
    assert rules(recipe) == {"vocabulary-assumed", "no-sequence-parallel", "repeated-flag"}


@pytest.mark.parametrize(
    ("which", "model", "precision", "virtual", "layout"),
    [
        (2, "llama3.1-8b", "bf16", None, Layout()),
        (3, "llama3.1-8b", "fp8", 4, Layout(pipeline_parallel=2, virtual_stages=4, recompute="selective")),
        (5, "qwen2.5-14b", "fp8", 3, Layout(pipeline_parallel=4, virtual_stages=4)),
        (
            6,
            "llama3.1-70b",
            "fp8",
            10,
            Layout(tensor_parallel=2, pipeline_parallel=2, virtual_stages=4, sequence_parallel=True),
        ),
        (
            7,
            "qwen2.5-72b",
            "fp8",
            2,
            Layout(
                tensor_parallel=4,
                pipeline_parallel=8,
                context_parallel=2,
                virtual_stages=5,
                sequence_parallel=True,
                recompute="selective",
            ),
        ),
    ],
)
def test_004_z2000_scripts(
    which: int, model: str, precision: str, *, virtual: int | None, layout: Layout, tmp_path: Path
) -> None:
    recipe = read_script_of("004", which, tmp_path, WORLD_SIZE="4", TQ_GPU_NUM="8")
    holds(recipe, **PAI, model=model, precision=precision, virtual_stage_layers=virtual, layout=layout)
    holds(recipe, model_fields={}, nodes=4, devices_per_node=8)
    assert affected(recipe) == {}
    assert recipe.options == {
        "expandable_segments": "true",
        "fused_cross_entropy": "false",
        "attention_dropout": "false",
        "hidden_dropout": "false",
        "warm_up_whole_batch": "true",
        "overlap_grad_reduce": "true",
        "overlap_param_gather": "true",
        "tp_comm_overlap": str(layout.tensor_parallel > 1).lower(),
    }
    assert rules(recipe) <= {"assumed-unset", "not-modelled"}
    assert {text.partition(":")[0] for text in about(recipe, "not-modelled")} <= {"--extra-vocab-size"}


def test_004_a_script_without_settings_names_the_cluster(tmp_path: Path) -> None:
    recipe = read_script_of("004", 2, tmp_path)
    assert recipe.layout == Layout()
    assert affected(recipe) == {"TQ_GPU_NUM": ("devices_per_node",), "WORLD_SIZE": ("nodes",)}
    assert {"OUTPUT_DIR", "$(pwd)"} <= {unknown.name for unknown in recipe.unknowns}
    assert recipe.places["tp"].line == line_of("004", 2, "TP=1")
    assert about(recipe, "assumed-unset") == ["taken as not set: $MP_VP"]
    with_stages = read_script_of("004", 2, tmp_path, MP_VP="4")
    assert with_stages.virtual_stage_layers == 4


@pytest.mark.parametrize("which", [1, 4])
def test_004_parameters_are_named(which: int, tmp_path: Path) -> None:
    recipe = read_script_of("004", which, tmp_path)
    holds(recipe, layout=None, model=None, seq_length=None, global_batch_size=None, nodes=None, precision=None)
    needed = affected(recipe)
    assert needed["1"] == ("devices_per_node", "nodes")
    assert needed["3"] == ("micro_batch_size",)
    assert needed["4"] == ("global_batch_size",)
    assert needed["7"] == ("seq_length",)
    assert needed["9"] == ("precision",)
    assert {"num_hidden_layers", "hidden_size", "num_key_value_heads"} <= set(needed["2"])
    assert needed["10"] == ("sequence_parallel", "tp")
    assert "pp" in needed["11"]
    assert needed["12"] == ("cp",)
    assert needed["13"] == ("sequence_parallel",)
    assert {"recompute", "offload"} <= set(needed["17"])
    places = {unknown.name: unknown.place.line for unknown in recipe.unknowns}
    assert places["10"] == line_of("004", which, "TP=${10}")
    assert "exit-path" in rules(recipe)


@pytest.mark.parametrize(("which", "size", "model"), [(1, "70B", "llama3.1-70b"), (4, "14B", "qwen2.5-14b")])
def test_004_parameters_given_by_number(which: int, size: str, model: str, tmp_path: Path) -> None:
    words = (
        f"dlc {size} 1 1024 1e-5 1e-6 8192 8192 fp8 4 8 2 true true true false full false 1000 d d none 9 9 out".split()
    )
    settings = {f"p{number}": word for number, word in enumerate(words, start=1)}
    recipe = read_script_of(
        "004", which, tmp_path, **settings, WORLD_SIZE="8", KUBERNETES_CONTAINER_RESOURCE_GPU="8", MP_AC_LAYERS="2"
    )
    holds(recipe, **PAI, model=model, precision="fp8", nodes=8, devices_per_node=8)
    assert recipe.layout is not None
    assert recipe.layout.tensor_parallel == 4
    assert recipe.layout.context_parallel == 2
    assert (recipe.layout.recompute, recipe.layout.recompute_layers) == ("full", 2)
    assert affected(recipe) == {}


def test_004_parameters_given_by_variable(tmp_path: Path) -> None:
    recipe = read_script_of("004", 1, tmp_path, TP="2", PP="2", CP="1", SEQ_LEN="8192", NNODES="4")
    holds(recipe, seq_length=8192, nodes=4, layout=None)
    assert {"10", "11", "12", "7"}.isdisjoint(affected(recipe))
