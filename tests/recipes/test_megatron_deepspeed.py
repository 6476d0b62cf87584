"""DeepSpeed's engine beside Megatron's flags: its configuration says how the state is sharded."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import InputError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.readers.read import read_recipe
from tests.recipes.seeds import rules

FLAGS = """--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048
 --micro-batch-size 1 --global-batch-size 64 --vocab-size 50257 --fp16 --checkpoint-activations
 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --deepspeed-activation-checkpointing"""


def read(folder: Path, config: str, flags: str = "", name: str = "ds.$JOB.json") -> Recipe:
    file = folder / "run.sh"
    script = f"""NAME={name}
cat <<EOT > $NAME
{config}
EOT
torchrun --nproc_per_node 8 pretrain_gpt.py {" ".join(FLAGS.split())} --deepspeed --deepspeed_config $NAME {flags}
"""
    file.write_text(script, encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


@pytest.mark.parametrize(
    ("config", "flags", "stage", "gradients"),
    [
        ('{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}', "", 1, "bf16"),
        ('{"zero_optimization": {"stage": 0}, "fp16": {"enabled": true}}', "--zero-stage 1", 0, "bf16"),
        ('{"zero_optimization": {"stage": 0}, "bf16": {"enabled": true}}', "--bf16", 1, "fp32"),
        ('{"zero_optimization": {"stage": 0}}', "--bf16", 0, "fp32"),
        ('{"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}', "--bf16", 1, "fp32"),
        ('{"fp16": {"enabled": true}}', "--zero-stage 1", 1, "bf16"),
    ],
)
def test_the_configuration_counts(config: str, flags: str, stage: int, gradients: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, config, flags)
    if "--bf16" in flags:
        recipe = read_without(tmp_path, "--fp16")
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.options["gradient_dtype"]) == (stage, gradients)
    # The engine sends parts, and its bf16 optimizer keeps both gradients.
    assert recipe.options["scattered_sends"] == "true"
    assert ("gradient_copies" in recipe.options) == (gradients == "fp32")
    # The stack has no fused attention of its own, and recomputes whole layers where it is told to.
    assert (recipe.options["flash_attention"], recipe.layout.recompute) == ("false", "full")
    assert check_recipe(recipe, question_of({"hardware": "a100-sxm-80g"}), Gates()).outcome == "fits"


def read_without(folder: Path, word: str) -> Recipe:
    file = folder / "run.sh"
    file.write_text(file.read_text(encoding="utf-8").replace(word, ""), encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


def test_stages_that_shard_more_are_bounds(tmp_path: Path) -> None:
    recipe = read(tmp_path, '{"zero_optimization": {"stage": 2}}')
    assert recipe.layout is not None
    assert recipe.layout.zero_stage == 1
    assert "device-bound" in rules(recipe)
    outcomes = [
        check_recipe(
            recipe,
            question_of({"hardware": "a100-sxm-80g", "micro_batch_size": size, "global_batch_size": 64 * size}),
            Gates(),
        ).outcome
        for size in (1, 256)
    ]
    assert outcomes == ["fits", "not_modelled"]


@pytest.mark.parametrize(("offload", "outcome"), [("cpu", "does_not_fit"), ("none", "not_modelled")])
def test_a_host_that_is_too_small_is_so_with_every_stage(offload: str, outcome: str, tmp_path: Path) -> None:
    config = f'{{"zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "{offload}"}}}}}}'
    recipe = read(tmp_path, config, "--num-layers 128 --hidden-size 25600 --num-attention-heads 160")
    assert check_recipe(recipe, question_of({"hardware": "h100-sxm-80g", "devices": 8}), Gates()).outcome == outcome


def test_the_optimizer_on_the_host(tmp_path: Path) -> None:
    config = '{"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}'
    for recipe in (read(tmp_path, config), read(tmp_path, '{"zero_optimization": {"stage": 1}}', "--cpu-optimizer")):
        assert recipe.layout is not None
        assert recipe.layout.offload == "optimizer_tensorwise"


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    flags = f"--deepspeed --deepspeed_config other.json {' '.join(FLAGS.split())}"
    file = tmp_path / "run.sh"
    for stage in ("", " --zero-stage 1"):  # the file may also compress
        file.write_text(f"deepspeed pretrain_gpt.py {flags}{stage}\n", encoding="utf-8")
        with pytest.raises(InputError, match=r"other\.json: no such file"):
            read_recipe(file)


def test_table_and_head_count_as_layers(tmp_path: Path) -> None:
    config = '{"zero_optimization": {"stage": 0}}'
    recipe = read(tmp_path, config, "--num-layers 22 --pp-partition-method 'type:transformer|embedding'")
    assert recipe.layout is not None
    found = check_recipe(recipe, question_of({"hardware": "a100-sxm-80g"}), Gates())
    assert found.case is not None
    assert found.case.layout.stage_layers == (11, 11)
    assert "not-modelled" in rules(read(tmp_path, config, "--pp-partition-method uniform"))
    # One part a rank: the first holds the table alone, the last the head.
    alone = "--num-layers 2 --pipeline-model-parallel-size 4 --pp-partition-method 'type:transformer|embedding'"
    found = check_recipe(read(tmp_path, config, alone), question_of({"hardware": "a100-sxm-80g"}), Gates())
    assert (found.outcome, found.case and found.case.layout.stage_layers) == ("fits", (0, 1, 1, 0))


@pytest.mark.parametrize("flag", ["--reset-progress", "--bitfit"])
def test_flags_of_bigsciences_branches(flag: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, '{"zero_optimization": {"stage": 1}}', flag)
    assert "unknown-flag" not in rules(recipe)
    assert ("upper-bound" in rules(recipe)) == (flag == "--bitfit")
    assert check_recipe(recipe, question_of({"hardware": "a100-sxm-80g"}), Gates()).outcome == "fits"


def test_flags_that_ascends_stack_has_too_do_not_make_it_that_stack(tmp_path: Path) -> None:
    stage = '{"zero_optimization": {"stage": 1}}'
    recipe = read(tmp_path, stage, "--embed-layernorm --pad-vocab-size-to 51200 --position-embedding-type alibi")
    assert recipe.stack is None
    assert "position_bias_tables" not in recipe.options


def test_one_row_a_head_of_position_bias_is_nothing(tmp_path: Path) -> None:
    recipe = read(tmp_path, '{"zero_optimization": {"stage": 1}}', "--position-embedding-type alibi --embed-layernorm")
    assert recipe.model_fields["learned_positions"] == 0
    assert recipe.model_fields["embedding_norm"] is True
    assert check_recipe(recipe, question_of({"hardware": "a100-sxm-80g"}), Gates()).outcome == "fits"


@pytest.mark.parametrize(("size", "exchange"), [(1, None), (2, "all_to_all")])
def test_sequences_split_by_ulysses(size: int, exchange: str | None, tmp_path: Path) -> None:
    recipe = read(tmp_path, '{"zero_optimization": {"stage": 1}}', f"--ds-sequence-parallel-size {size}")
    assert recipe.layout is not None
    assert (recipe.layout.context_parallel, recipe.options.get("cp_communication")) == (size, exchange)
    assert "not-modelled" not in rules(recipe)


def test_a_configuration_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}}', encoding="utf-8")
    launch = f"torchrun --nproc_per_node 8 pretrain_gpt.py {' '.join(FLAGS.split())} --deepspeed --zero-stage 1"
    for before, name, asked in (
        ("", "ds.json", []),
        ("jq . x > ds.json", "ds.json", ["ds.json"]),
        ("", "$NAME", ["NAME"]),
    ):
        file = tmp_path / "run.sh"
        file.write_text(f"{before}\n{launch} --deepspeed_config {name}\n", encoding="utf-8")
        (recipe,) = read_recipe(file)
        assert [unknown.name for unknown in recipe.unknowns if "zero_stage" in unknown.affects] == asked


@pytest.mark.parametrize(("experts", "is_dense"), [("1", True), ("8", False), ("$EXPERTS", False)])
def test_groups_of_experts_are_nothing_to_a_dense_model(experts: str, is_dense: bool, tmp_path: Path) -> None:
    more = f"--num-experts {experts} --moe-expert-parallel-size $SIZE"
    recipe = read(tmp_path, '{"zero_optimization": {"stage": 1}}', more)
    assert ("not-modelled" in rules(recipe)) != is_dense


@pytest.mark.parametrize(
    ("name", "template", "flags", "cause"),
    [
        ("template.json", '{"zero_optimization": {"stage": STAGE}}', "", ""),
        ("template.json", '{"zero_optimization": {"stage": STAGE}}', "--zero-stage 1", ""),
        ("template.json", "", "", "template.json"),
        ("template.json", "", "--zero-stage 1", "template.json"),
        ("$(find . -name a.json)", "", "--zero-stage 1", "$(find . -name a.json)"),
    ],
)
def test_a_configuration_is_made_of_a_template(
    name: str, template: str, flags: str, cause: str, tmp_path: Path
) -> None:
    if template:
        (tmp_path / "template.json").write_text(template, encoding="utf-8")
    made = f"sed s/STAGE/1/ {name} > ds.json"
    launch = f"torchrun --nproc_per_node 8 pretrain_gpt.py {' '.join(FLAGS.split())} --deepspeed {flags}"
    file = tmp_path / "run.sh"
    file.write_text(f"{made}\n{launch} --deepspeed_config ds.json\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert [unknown.name for unknown in recipe.unknowns if "zero_stage" in unknown.affects] == [cause] * bool(cause)
    assert (None if recipe.layout is None else recipe.layout.zero_stage) == (None if cause else 1)


@pytest.mark.parametrize(("batch", "differs"), [("1", False), ("2", True)])
def test_a_micro_batch_that_differs_from_megatrons_is_not_priced(batch: str, differs: bool, tmp_path: Path) -> None:
    config = f'{{"train_micro_batch_size_per_gpu": {batch}, "zero_optimization": {{"stage": 1}}}}'
    assert ("not-modelled" in rules(read(tmp_path, config))) == differs


@pytest.mark.parametrize(("flags", "known"), [("--seq-length 2048", True), ("--batch-size 2", False)])
def test_a_flag_set_anew_under_another_name_on_some_paths(flags: str, known: bool, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    launch = f"torchrun --nproc_per_node 8 pretrain_gpt.py {' '.join(FLAGS.split())} $MORE"
    file.write_text(f'if [ $HOST = a ]; then MORE="{flags}"; fi\n{launch}\n', encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert (not any("micro_batch_size" in unknown.affects for unknown in recipe.unknowns)) == known
