"""Paddle command lines and configuration files as recipes."""

from pathlib import Path

import pytest

from simulator.answers.cases import Case, case_of_recipe
from simulator.answers.gates import Gates
from simulator.errors import InputError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.recipes.check.judge import check_files, check_recipe
from simulator.recipes.check.verdict import Checked
from simulator.recipes.readers.read import read_recipe
from simulator.search.build import bare_estimate
from tests.recipes.seeds import DATA, about, rules

BASE = """--model_name_or_path baidu/ERNIE-4.5-21B-A3B-Paddle --max_seq_len 4096 --per_device_train_batch_size 1
 --gradient_accumulation_steps 4 --bf16 --fp16_opt_level O2 --tensor_parallel_degree 2 --sequence_parallel 1
 --moe_group mp
 --pipeline_parallel_config disable_partial_send_recv"""
LLAMA = "facebook/llama-13b"
DENSE = BASE.replace("baidu/ERNIE-4.5-21B-A3B-Paddle", LLAMA).replace("--moe_group mp", "")


def read(flags: str, folder: Path, launcher: str = "--gpus 0,1,2,3") -> Recipe:
    file = folder / "run.sh"
    words = " ".join(flags.split())
    file.write_text(f"# nothing\npython -m paddle.distributed.launch {launcher} train.py {words}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


def test_base(tmp_path: Path) -> None:
    recipe = read(BASE, tmp_path)
    assert recipe.model == "ernie-4.5-21b-a3b"
    assert (recipe.framework, recipe.dialect, recipe.title) == ("paddle", "paddle-shell", "train.py")
    assert (recipe.seq_length, recipe.gradient_accumulation_steps, recipe.global_batch_size) == (4096, 4, None)
    assert (recipe.nodes, recipe.devices_per_node, recipe.precision) == (1, 4, "bf16")
    assert recipe.layout == Layout(tensor_parallel=2, expert_parallel=2, sequence_parallel=True, zero_stage=0)
    assert recipe.remarks == ()
    assert recipe.places["tp"].line == 2


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--pipeline_parallel_degree 4", "pipeline_parallel", 4),
        ("--pipeline_parallel_degree 4 --virtual_pp_degree 2", "virtual_stages", 2),
        ("--context_parallel_degree 2", "context_parallel", 2),
        ("--sep_parallel_degree 2", "context_parallel", 2),
        ("--sharding stage1", "zero_stage", 1),
        ("--sharding stage1 --sharding_parallel_degree 1", "zero_stage", 0),
        ("--sharding stage1 --sharding_parallel_degree -1", "zero_stage", 1),
        ("--sharding stage2 --sharding_parallel_degree 4", "zero_stage", 2),
        ("--sharding stage3", "zero_stage", 3),
        ("--recompute 1", "recompute", "full"),
        ("--recompute", "recompute", "full"),
        ("--recompute True --recompute_granularity core_attn", "recompute", "selective"),
        ("--recompute True --recompute_granularity full_attn", "recompute", "attention"),
        ("--recompute 0 --recompute_granularity full", "recompute", "none"),
        ("--recompute 1 --no_recompute_layers 0 1 2", "recompute_layer_list", tuple(range(3, 40))),
        ("--offload_optim", "offload", "optimizer"),
        ("--offload_optim 0", "offload", "none"),
        ("--sharding 'stage2 offload'", "offload", "optimizer"),
        ("--tensorwise_offload_optimizer 1", "offload", "optimizer_tensorwise"),
        ("--sequence_parallel 0", "sequence_parallel", False),
        ("--per_device_train_batch_size 3", "micro_batch_size", 3),
    ],
)
def test_layout(flags: str, field: str, value: object, tmp_path: Path) -> None:
    layout = read(f"{DENSE} {flags}", tmp_path).layout
    assert getattr(layout, field) == value


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("", {}),
        ("--amp_master_grad 1", {"gradient_dtype": "fp32"}),
        ("--amp_master_grad 0", {"gradient_dtype": "bf16"}),
        ("--use_lowprecision_moment 1", {"optimizer_dtype": "bf16"}),
        ("--fp16_opt_level O1", {"parameter_dtype": "fp32", "master_weights": "false", "gradient_dtype": "fp32"}),
        ("--fuse_rms_norm False --use_flash_attention 0", {"fused_rms_norm": "false", "flash_attention": "false"}),
        ("--use_fused_head_and_loss_fn", {"cross_entropy_chunk_tokens": "8192"}),
        ("--use_fused_head_and_loss_fn 1 --use_recompute_loss_fn 0", {}),
        ("--use_fused_head_and_loss_fn 1 --use_sparse_head_and_loss_fn 1", {}),
        ("--sharding_parallel_config enable_stage1_overlap", {"overlap_grad_reduce": "true"}),
        ("--sep_parallel_degree 2", {"cp_communication": "all_to_all"}),
        ("--tensor_parallel_output 0", {"vocabulary_parallel_loss": "false"}),
        ("--tensor_parallel_output true", {"vocabulary_parallel_loss": "true"}),
        ("--release_grads 1", {"release_grads": "true"}),
        ("--pipeline_parallel_config 'enable_release_grads'", {"release_grads": "true"}),
        ("--release_grads 1 --sharding stage2", {}),
        ("--sharding stage1 --sharding_parallel_degree 4", {"sharding_degree": "4"}),
        ("--sharding stage1 --sharding_parallel_degree -1", {}),
        ("--sharding_parallel_degree 4", {}),
    ],
)
def test_options(flags: str, options: dict[str, str], tmp_path: Path) -> None:
    # Keys of PaddleFormers, whose norms are one kernel unless told otherwise.
    assert read(f"{DENSE} {flags}", tmp_path).options == {"fused_rms_norm": "true"} | options


@pytest.mark.parametrize(
    ("flags", "frozen"),
    [
        ("--stage DPO", "true"),
        ("--stage KTO", "true"),
        ("--loss_type sigmoid", "true"),
        ("--stage DPO --pipeline_parallel_degree 2 --tensor_parallel_degree 1", "true"),
        ("--stage DPO --lora", None),
        ("--stage DPO --loss_type simpo", None),
        ("--stage DPO --reference_free true", None),
        ("--stage SFT --loss_type sigmoid", None),
    ],
)
def test_training_on_preferences_has_a_frozen_copy(flags: str, frozen: str | None, tmp_path: Path) -> None:
    recipe = read(f"{DENSE} {flags}", tmp_path)
    assert recipe.options.get("frozen_reference") == frozen
    assert all(remark.rule != "not-modelled" for remark in recipe.remarks)


@pytest.mark.parametrize(
    ("flags", "again"),
    [("--stage DPO", "true"), ("--stage KTO --lora", "true"), ("--stage DPO --loss_type simpo", None), ("", None)],
)
def test_a_reference_takes_a_forward_pass(flags: str, again: str | None, tmp_path: Path) -> None:
    assert read(f"{DENSE} {flags}", tmp_path).options.get("reference_forward") == again


def test_every_pipeline_rank_holds_the_frozen_copy_of_its_stage(tmp_path: Path) -> None:
    flags = f"{DENSE.replace('--tensor_parallel_degree 2', '')} --pipeline_parallel_degree 2 --sharding stage1"
    found = [
        check_recipe(
            read(f"{flags} --stage {stage}", tmp_path), question_of({"hardware": "a100-sxm-80g", "nodes": 1}), Gates()
        )
        for stage in ("SFT", "DPO")
    ]
    plain, frozen = (checked.estimate for checked in found)
    assert plain is not None
    assert frozen is not None
    for one, other in zip(plain.memory.stages, frozen.memory.stages, strict=True):
        weights, both = one.parts_bytes, other.parts_bytes
        assert both["parameters"] == pytest.approx(2.0 * weights["parameters"])
        assert both["gradients"] == weights["gradients"]
    # A forward pass is a third of both, the pipeline is filled once more, and the optimizer's step stays.
    assert 1.2 < frozen.throughput.step_seconds / plain.throughput.step_seconds < 1.5


def test_reward_models_have_a_score_in_place_of_logits(tmp_path: Path) -> None:
    recipe = read(f"{DENSE} --stage RM", tmp_path)
    assert recipe.options["score_head"] == "true"
    assert "frozen_reference" not in recipe.options


def test_a_shared_table_of_prediction_modules_trains_them(tmp_path: Path) -> None:
    recipe = read(f"{DENSE} --enable_mtp_magic_send true", tmp_path)
    assert recipe.options["mtp"] == "true"
    assert "not-modelled" not in rules(recipe)


@pytest.mark.parametrize("flags", ["--stage GRPO", "--stage PPO", "--stage VL-SFT"])
def test_other_training_is_refused(flags: str, tmp_path: Path) -> None:
    assert "not-modelled" in rules(read(f"{DENSE} {flags}", tmp_path))


def test_paddlenlp_has_norms_in_pieces(tmp_path: Path) -> None:
    flags = DENSE.replace("--max_seq_len", "--max_seq_length")
    assert "fused_rms_norm" not in read(flags, tmp_path).options


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", (1, 2)),
        ("--moe_group mp", (2, 1)),
        ("--moe_group dummy", (1, 1)),
        ("--expert_parallel_degree 4", (4, 1)),
    ],
)
def test_experts(flags: str, expected: tuple[int, int], tmp_path: Path) -> None:
    layout = read(BASE.replace("--moe_group mp", flags), tmp_path).layout
    assert layout is not None
    assert (layout.expert_parallel, layout.expert_tensor_parallel) == (expected if flags else (1, 1))


@pytest.mark.parametrize(
    ("flags", "rank"), [("", None), ("--lora", 8), ("--lora 1 --lora_rank 32", 32), ("--lora 0 --lora_rank 32", None)]
)
def test_lora(flags: str, rank: int | None, tmp_path: Path) -> None:
    assert read(f"{BASE} {flags}", tmp_path).lora_rank == rank


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ("--weight_decay 0.1 --weight_decay 0.2", "repeated-flag"),
        ("--lr_scheduler a --lr_scheduler_type a", "repeated-flag"),
        ("--recompute 0 --recompute_granularity full", "inactive-flag"),
        ("--use_sparse_head_and_loss_fn --use_fused_head_and_loss_fn", "contradiction"),
        ("--use_sparse_head_and_loss_fn", "upper-bound"),
        ("--sequence_parallel 0", "no-sequence-parallel"),
        ("--tensor_parallel_degree 1", "inactive-flag"),
        ("--stage DPO --pipeline_parallel_degree 2 --pipeline_parallel_config x", "partial-send-recv"),
        ("--max_steps 10 --warmup_steps 20", "warmup-exceeds-steps"),
        ("--sharding stage9", "unknown-value"),
        ("--fp16", "contradiction"),
        ("--optim muon", "not-modelled"),
        ("--recompute 1 --recompute_granularity full_attn --no_recompute_layers 1", "not-modelled"),
        ("--pipeline_parallel_degree 2 --pipeline_schedule_mode ZBH1", "not-modelled"),
        ("--pipeline_parallel_degree 2 --use_dualpipev 1", "not-modelled"),
        ("--recompute 1 --refined_recompute a", "not-modelled"),
        ("--weight_quantize_algo weight_only_int4", "not-modelled"),
        ("--recompute_granularty full", "unknown-flag"),
        ("--model_name_or_path somebody/else", "unknown-model"),
        ("--model_name_or_path ERNIE-4.5-21B-A3B-Paddl", "model-guessed"),
    ],
)
def test_remarks(flags: str, rule: str, tmp_path: Path) -> None:
    assert rule in rules(read(f"{BASE} {flags}", tmp_path))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("/workspace/ernie/ERNIE-4.5-Lite", "ernie-4.5-21b-a3b"),
        ("ERNIE-4.5-300B-A47B", "ernie-4.5-300b-a47b"),
        ("baidu/ERNIE-4.5-300B-A47B-Base-Paddle", "ernie-4.5-300b-a47b"),
        ("baidu/ERNIE-4.5-0.3B-PT/", "ernie-4.5-0.3b"),
        ("facebook/llama-13b", "llama-13b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("meta-llama/Llama-3.2-1B", "llama3.2-1b"),
        ("Qwen/Qwen2.5-14B-Instruct", "qwen2.5-14b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b-v0.1"),
        ("mistralai/Mistral-7B-Instruct", "mistral-7b-v0.1"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("somebody/else", None),
        ("Qwen/Qwen2-7B-Instruct", "qwen2.5-7b"),
        ("lmsys/vicuna-13b-v1.5", "llama-2-13b"),
        ("THUDM/chatglm3-6b", "chatglm2-6b"),
        ("codellama/CodeLlama-7b-Python-hf", "llama-2-7b"),
        ("model_configs/ERNIE-4p5-300B-A47B", "ernie-4.5-300b-a47b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct-AWQ", None),
        ("meta-llama/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16", None),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", None),
    ],
)
def test_model_names(name: str, model: str | None, tmp_path: Path) -> None:
    assert read(f"{BASE} --model_name_or_path {name}", tmp_path).model == model


def test_a_configuration_beside_the_recipe_is_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "llama-13b"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    assert read(f"{DENSE} --model_name_or_path ./llama-13b", tmp_path).model == str(tmp_path / "llama-13b")


def test_a_configuration_that_is_not_read_is_named(tmp_path: Path) -> None:
    unknown = read("--config $CFG", tmp_path).unknowns
    assert [cause.name for cause in unknown if "precision" in cause.affects] == ["CFG"]
    messages = [remark.message for remark in read("--config conf", tmp_path).remarks if remark.rule == "unknown-flag"]
    assert messages == ["conf: no JSON or YAML file, nor key=value"]
    assert "--config: no JSON or YAML file, nor key=value" in {
        each.message for each in read("--config", tmp_path).remarks
    }


@pytest.mark.parametrize(
    ("launcher", "nodes", "devices"),
    [
        ("--gpus 0,1,2,3 --nnodes 4", 4, 4),
        ("--npus 0,1 --ips 10.0.0.1,10.0.0.2", 2, 2),
        ("--devices 0,1,2,3 --nproc_per_node 2 --nnodes=2", 2, 2),
        ("--nnodes $N --gpus 0,1", None, 2),
        ("", 1, None),
    ],
)
def test_cluster(launcher: str, nodes: int | None, devices: int | None, tmp_path: Path) -> None:
    recipe = read(BASE, tmp_path, launcher)
    assert (recipe.nodes, recipe.devices_per_node) == (nodes, devices)


def test_llama_13b_on_64_devices() -> None:
    """Four machines of 16 BI-V150 devices, stages cut by hand, 18 of 40 layers recomputed."""
    (recipe,) = read_recipe(DATA / "llama-13b" / "run.sh")
    assert (recipe.model, recipe.precision, recipe.seq_length) == ("llama-13b", "fp16", 2048)
    assert (recipe.nodes, recipe.devices_per_node, recipe.gradient_accumulation_steps) == (4, 16, 128)
    layout = recipe.layout
    assert layout is not None
    assert (layout.tensor_parallel, layout.pipeline_parallel, layout.micro_batch_size, layout.zero_stage) == (
        1,
        8,
        2,
        1,
    )
    assert layout.stage_layers == (4, 5, 5, 5, 5, 5, 6, 5)
    assert (layout.recompute, layout.recompute_method, len(layout.recompute_layer_list)) == ("full", "list", 18)
    assert set(layout.recompute_layer_list).isdisjoint({0, 4, 5, 9, 10, *range(29, 40)})
    assert recipe.options == {"gradient_dtype": "fp32", "fused_rms_norm": "true", "flash_attention": "true"}
    place = recipe.places["stage_layers"]
    assert place.file.endswith("pretrain.json")
    assert "pp_seg_method" in Path(place.file).read_text(encoding="utf-8").splitlines()[place.line - 1]
    assert rules(recipe) == {"assumed-unset"}


def test_flags_count_over_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"max_seq_len": 16, "tensor_parallel_degree": 8}', encoding="utf-8")
    recipe = read(f"./c.json {BASE}", tmp_path)
    assert recipe.seq_length == 4096
    assert recipe.layout is not None
    assert recipe.layout.tensor_parallel == 2


@pytest.mark.parametrize("name", ["./missing.json", "/etc/missing.json", "~/x.yaml"])
def test_a_configuration_that_is_not_beside_the_recipe(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.sh:2: .*no such file beside the recipe"):
        read(f"'{name}' {BASE}", tmp_path)


def test_yaml() -> None:
    (recipe,) = read_recipe(DATA / "ernie-lora.yaml")
    assert (recipe.dialect, recipe.model, recipe.lora_rank) == ("paddle-yaml", "ernie-4.5-21b-a3b", 16)
    assert (recipe.nodes, recipe.devices_per_node) == (None, None)
    assert recipe.layout == Layout(
        tensor_parallel=4,
        pipeline_parallel=2,
        expert_parallel=4,
        sequence_parallel=True,
        zero_stage=1,
        recompute="full",
        offload="optimizer_tensorwise",
    )
    assert recipe.options == {
        "gradient_dtype": "fp32",
        "cross_entropy_chunk_tokens": "8192",
        "fused_rms_norm": "true",
    }
    assert recipe.places["tp"].line == 9
    assert recipe.remarks == ()


def test_the_command_line_tool(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text((DATA / "ernie-lora.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    file = tmp_path / "run.sh"
    text = "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\nerniekit train c.yaml lora_rank=4\n"
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert (recipe.lora_rank, recipe.nodes, recipe.devices_per_node) == (4, 1, 8)


def test_a_bad_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no_recompute_layers: .*list of whole numbers"):
        read(f"{DENSE} --recompute 1 --no_recompute_layers a b", tmp_path)
    (tmp_path / "c.json").write_text('{"pp_seg_method": [0, 4], "pipeline_parallel_degree": 8}', encoding="utf-8")
    with pytest.raises(InputError, match=r"c\.json:1: pp_seg_method: must list 8 first items"):
        read(f"./c.json {DENSE}", tmp_path)


def test_fix_and_place_of_a_repeated_flag(tmp_path: Path) -> None:
    (message,) = about(read(f"{BASE} --offload_optim 1 --offload_optim", tmp_path), "repeated-flag")
    assert message == "--offload_optim is given 2 times: '1' on line 2, then bare on line 2; the last one counts"


@pytest.mark.parametrize(
    ("flags", "option"),
    [
        ("--_attn_implementation eager", ("flash_attention", "false")),
        ("--attn_implementation flashmask", ("flash_attention", None)),
        ("--pp_release_grads 1", ("release_grads", "true")),
        ("--num_nextn_predict_layers 1", ("mtp", "true")),
        ("--num_nextn_predict_layers 0", ("mtp", None)),
    ],
)
def test_other_names_of_switches(flags: str, option: tuple[str, str | None], tmp_path: Path) -> None:
    assert read(f"{BASE} {flags}", tmp_path).options.get(option[0]) == option[1]


def test_a_recipe_may_set_shapes(tmp_path: Path) -> None:
    recipe = read(f"{BASE} --num_hidden_layers 4 --moe_num_experts 16 --moe_k 2", tmp_path)
    assert recipe.model_fields == {"num_hidden_layers": 4, "num_experts": 16, "num_experts_per_tok": 2}


def test_experts_of_mixtral_are_split_and_others_whole(tmp_path: Path) -> None:
    sizes = "--tensor_parallel_degree 4"
    mixtral = read(f"{DENSE.replace(LLAMA, 'mixtral-8x7b-v0.1')} {sizes}", tmp_path).layout
    deepseek = read(f"{DENSE.replace(LLAMA, 'deepseek-v2-lite')} {sizes}", tmp_path).layout
    assert mixtral is not None
    assert deepseek is not None
    assert (mixtral.expert_tensor_parallel, deepseek.expert_tensor_parallel) == (4, 1)


def test_experts_spread_over_ranks_that_nobody_counts(tmp_path: Path) -> None:
    recipe = read(f"{DENSE.replace(LLAMA, 'mixtral-8x7b-v0.1')} --use_expert_parallel 1", tmp_path)
    assert about(recipe, "not-modelled") == ["experts are spread over ranks; over how many is not said"]


def test_keys_in_sections(tmp_path: Path) -> None:
    file = tmp_path / "pretrain.yaml"
    file.write_text(
        "model_args:\n  model_name_or_path: llama-7b\n  max_seq_length: 4096\n"
        "trainer_args:\n  tensor_model_parallel_size: 8\n  per_device_train_batch_size: 2\n  bf16: true\n"
        "  sharding: stage1\n  pre_alloc_memory: 60\n"
    )
    (recipe,) = read_recipe(file)
    assert (recipe.dialect, recipe.model, recipe.seq_length) == ("paddle-yaml", "llama-7b", 4096)
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.micro_batch_size) == (8, 2)
    assert [remark.severity for remark in recipe.remarks if remark.rule == "not-modelled"] == ["warning"]


def test_names_that_argparse_completes(tmp_path: Path) -> None:
    recipe = read(f"{DENSE} --save_step 100 --per_device_eval_batch 2", tmp_path)
    assert rules(recipe).isdisjoint({"unknown-flag"})
    assert len(about(recipe, "abbreviated-flag")) == 2
    # What several flags start with is nobody's, and neither is a name that is longer.
    for flag in ("--recomp 1", "--sharding_para 2", "--sharding_parallel_degrees 1"):
        assert "unknown-flag" in rules(read(f"{DENSE} {flag}", tmp_path))


GLM = "THUDM/chatglm2-6b"


def whole_heads(model: str, tensor: int, folder: Path, *, asked: int | None = None) -> Checked:
    flags = " ".join(DENSE.replace(LLAMA, model).replace("--tensor_parallel_degree 2", "").split())
    file = folder / "run.sh"
    launch = f"python -m paddle.distributed.launch --nnodes 2 --devices 0,1,2,3,4,5,6,7 run_pretrain.py {flags}"
    file.write_text(f"{launch} --tensor_parallel_degree {tensor}\n")
    layout = {} if asked is None else {"tensor_parallel": asked}
    (found,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g", **layout}), Gates())
    return found


@pytest.mark.parametrize(
    ("model", "name", "shared", "tensor"),
    [(GLM, "ChatGLM2", 2, 4), (GLM, "ChatGLM2", 2, 8), ("google/gemma-2b", "Gemma", 1, 4)],
)
def test_key_value_heads_that_stay_whole_are_priced_on_every_rank(
    model: str, name: str, shared: int, tensor: int, tmp_path: Path
) -> None:
    found = whole_heads(model, tensor, tmp_path)
    assert found.outcome == "fits"
    (said,) = [remark.message for remark in found.remarks if remark.rule == "whole-key-values"]
    assert f"Paddle's {name} keeps them whole on every rank, {shared * tensor} in all" in said
    # A rank's part of what is priced is all that the model has.
    (recipe,) = read_recipe(tmp_path / "run.sh")
    case = case_of_recipe(recipe, question_of({"hardware": "h100-sxm-80g"}))
    assert isinstance(case, Case)
    assert case.scenario.model.num_key_value_heads / tensor == shared
    # A case like it starts from the model's own heads.
    again = case_of_recipe(recipe, question_of({"hardware": "h100-sxm-80g", "tensor_parallel": 2 * tensor}), case)
    assert isinstance(again, Case)
    assert again.scenario.model.num_key_value_heads == 2 * tensor * shared


def test_other_degrees_split_the_heads_that_the_model_has(tmp_path: Path) -> None:
    for tensor, whole in ((2, False), (8, True)):
        found = whole_heads("THUDM/chatglm2-6b", 4, tmp_path, asked=tensor)
        assert ("whole-key-values" in {remark.rule for remark in found.remarks}) == whole


GLM_TOO_LARGE = f"""python -m paddle.distributed.launch --nnodes 2 --devices 0,1,2,3,4,5,6,7 run_pretrain.py --bf16 \\
 --model_name_or_path {GLM} --max_seq_length 4096 --per_device_train_batch_size 4 --gradient_accumulation_steps 8 \\
 --fp16_opt_level O2 --sharding stage1"""


@pytest.mark.parametrize("tensor", [1, 4])
def test_changes_are_priced_with_the_heads_of_their_own_degree(tensor: int, tmp_path: Path) -> None:
    """Of 2 heads for all; what a change says is what its own question says."""
    file = tmp_path / "run.sh"
    file.write_text(f"{GLM_TOO_LARGE} --tensor_parallel_degree {tensor}\n")
    (found,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates())
    heads = set()
    for change in found.changes:
        assert change.case is not None
        heads.add(change.case.scenario.model.num_key_value_heads)
        alone = bare_estimate(change.case.scenario, change.case.layout)
        assert change.estimate.memory.device_bytes == alone.memory.device_bytes
        assert change.estimate.throughput.step_seconds == alone.throughput.step_seconds
    assert len(heads) > 1


def test_more_whole_heads_than_queries_are_not_modelled(tmp_path: Path) -> None:
    found = whole_heads("meta-llama/Meta-Llama-3-8B", 16, tmp_path)
    assert found.outcome == "not_modelled"
    assert "Paddle's LLaMA keeps key-value heads" in found.reasons[0]


def test_a_network_of_paddle_without_a_flash_kernel(tmp_path: Path) -> None:
    flags = f"{DENSE.replace(LLAMA, 'THUDM/chatglm2-6b')} --use_flash_attention 1"
    assert read(flags, tmp_path).options["flash_attention"] == "false"


@pytest.mark.parametrize(("more", "bound"), [("--lora 1 --recompute 1", True), ("--lora 1", False), ("", False)])
def test_quantized_weights_under_adapters_are_a_bound(more: str, bound: bool, tmp_path: Path) -> None:
    recipe = read(f"{DENSE} --weight_quantize_algo weight_only_int8 {more}", tmp_path)
    assert any("priced in 16 bits" in told for told in about(recipe, "upper-bound")) == bound
    assert any("not modelled" in told for told in about(recipe, "not-modelled")) != bound


def test_paddleformers_sums_gradients_in_fp32_by_default(tmp_path: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen3-8B\nfine_tuning: full\nbf16: true\nfp16_opt_level: O2\nmax_seq_len: 4096\n"
    for more, dtype in (
        ("tensor_model_parallel_size: 2\n", "fp32"),
        ("tensor_model_parallel_size: 2\namp_master_grad: false\n", "bf16"),
        ("tensor_parallel_degree: 2\n", None),
    ):
        (tmp_path / "c.yaml").write_text(text + more, encoding="utf-8")
        (recipe,) = read_recipe(str(tmp_path / "c.yaml"), {}, None, None)
        assert recipe.options.get("gradient_dtype") == dtype
