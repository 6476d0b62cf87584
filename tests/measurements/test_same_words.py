"""The script and the log of one run ask the same question, for every flag that both can say."""

from pathlib import Path
from typing import Any

import pytest

from simulator.answers.cases import Case, case_of_recipe
from simulator.evidence.measurements.question import question
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.frameworks import registry
from simulator.frameworks.flags import Flag, table_of
from simulator.question.frameworks.profile import switches
from simulator.question.question import question_of
from simulator.question.specs.documents import of_fields
from simulator.recipes.logs import read_log
from simulator.recipes.readers.read import read_recipe
from tests.measurements.test_wild_logs import dump, steps

HARDWARE = "h100-sxm-80g"
BASE: dict[str, object] = {
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "group_query_attention": True,
    "num_query_groups": 8,
    "swiglu": True,
    "untie_embeddings_and_output_weights": True,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "make_vocab_size_divisible_by": 128,
    "normalization": "RMSNorm",
    "disable_bias_linear": True,
    "position_embedding_type": "rope",
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "micro_batch_size": 2,
    "global_batch_size": 64,
    "seq_length": 4096,
    "bf16": True,
    "transformer_impl": "transformer_engine",
}
EXPERTS: dict[str, object] = {
    "num_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 4096,
    "moe_token_dispatcher_type": "alltoall",
}
LATENT: dict[str, object] = {"multi_latent_attention": True, "kv_lora_rank": 512, "q_lora_rank": 1536}
FULLY_SHARDED = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim"}
PIPED: dict[str, object] = {"pipeline_model_parallel_size": 4}
PARALLEL: dict[str, object] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
BESIDE: dict[str, dict[str, object]] = {
    "account_for_embedding_in_pipeline_split": {"num_layers": 31} | PIPED,
    "account_for_loss_in_pipeline_split": {"num_layers": 31} | PIPED,
    "context_parallel_size": {},
    "cp_comm_type": {"context_parallel_size": 2},
    "cpu_offloading_num_layers": {"cpu_offloading": True},
    "data_parallel_sharding_strategy": {"use_megatron_fsdp": True},
    "megatron_fsdp_grad_comm_dtype": FULLY_SHARDED,
    "megatron_fsdp_main_grads_dtype": FULLY_SHARDED,
    "megatron_fsdp_main_params_dtype": FULLY_SHARDED,
    "decoder_first_pipeline_num_layers": PIPED,
    "decoder_last_pipeline_num_layers": PIPED,
    "exp_avg_dtype": {"use_precision_aware_optimizer": True, "exp_avg_sq_dtype": "bf16"},
    "exp_avg_sq_dtype": {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16"},
    "expert_tensor_parallel_size": EXPERTS | PARALLEL,
    "offload_modules": {"fine_grained_activation_offloading": True},
    "fine_grained_activation_offloading": {"offload_modules": "core_attn"},
    "fp4_recipe": {"fp4_format": "e2m1"},
    "fp8_recipe": {"fp8_format": "hybrid"},
    "fp8_param_gather": {"fp8_format": "hybrid"},
    "cuda_graph_modules": {"cuda_graph_impl": "transformer_engine"},
    "cuda_graph_scope": {"cuda_graph_impl": "transformer_engine"},
    "moe_expert_rank_capacity_factor": EXPERTS,
    "moe_paged_stash_buffer_size_factor_cuda": EXPERTS | {"moe_paged_stash": True},
    "hierarchical_context_parallel_sizes": {"context_parallel_size": 4, "cp_comm_type": "a2a+p2p"},
    "main_grads_dtype": {"use_precision_aware_optimizer": True},
    "main_params_dtype": {"use_precision_aware_optimizer": True},
    "no_overlap_p2p_communication": PIPED | {"num_virtual_stages_per_pipeline_rank": 2},
    "num_layers_per_virtual_pipeline_stage": PIPED,
    "num_virtual_stages_per_pipeline_rank": PIPED,
    "pipeline_model_parallel_layout": PIPED,
    "num_distributed_optimizer_instances": {"use_distributed_optimizer": True},
    "optimizer_offload_fraction": {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True},
    "overlap_param_gather": {"overlap_grad_reduce": True, "use_distributed_optimizer": True},
    "recompute_method": {"recompute_granularity": "full", "recompute_num_layers": 2},
    "recompute_num_layers": {"recompute_granularity": "full", "recompute_method": "uniform"},
    "recompute_modules": {"recompute_granularity": "selective"},
    "tp_comm_overlap": PARALLEL,
    "sequence_parallel": {"tensor_model_parallel_size": 2},
    "no_async_tensor_model_parallel_allreduce": {"tensor_model_parallel_size": 2},
    "wgrad_deferral_limit": {"defer_embedding_wgrad_compute": True} | PIPED,
    "use_megatron_fsdp": {"data_parallel_sharding_strategy": "optim"},
    "use_custom_fsdp": {"data_parallel_sharding_strategy": "optim"},
    "virtual_pipeline_model_parallel_size": PIPED,
    "moe_flex_dispatcher_backend": EXPERTS | {"moe_token_dispatcher_type": "flex"},
    "moe_pad_expert_input_to_capacity": EXPERTS | {"moe_expert_capacity_factor": 1.5},
    "moe_router_group_topk": EXPERTS | {"moe_router_num_groups": 4},
    "moe_router_num_groups": EXPERTS | {"moe_router_group_topk": 2},
    "moe_shared_expert_gate": EXPERTS | {"moe_shared_expert_intermediate_size": 4096},
    "multi_latent_attention": LATENT,
    "moe_layer_recompute": EXPERTS,
}
"""What stands beside a flag for it to mean something."""
SAMPLES: dict[str, object] = {
    "attention_backend": "unfused",
    "attention_dropout": 0.1,
    "context_parallel_size": 2,
    "cross_entropy_fusion_impl": "te",
    "cp_comm_type": "a2a",
    "cpu_offloading_num_layers": 31,
    "cuda_graph_impl": "local",
    "cuda_graph_modules": "attn",
    "cuda_graph_scope": "attn",
    "data_parallel_sharding_strategy": "optim",
    "megatron_fsdp_grad_comm_dtype": "fp32",
    "megatron_fsdp_main_grads_dtype": "fp32",
    "megatron_fsdp_main_params_dtype": "fp32",
    "decoder_first_pipeline_num_layers": 5,
    "decoder_last_pipeline_num_layers": 5,
    "dsa_kernel_backend": "tilelang",
    "exp_avg_dtype": "bf16",
    "exp_avg_sq_dtype": "bf16",
    "expert_model_parallel_size": 2,
    "expert_tensor_parallel_size": 1,
    "offload_modules": "core_attn attn_proj",
    "fp4": "e2m1",
    "fp4_format": "e2m1",
    "fp4_recipe": "nvfp4",
    "fp8": "hybrid",
    "fp8_format": "hybrid",
    "fp8_recipe": "mxfp8",
    "global_batch_size": 128,
    "hidden_dropout": 0.1,
    "hierarchical_context_parallel_sizes": "2 2",
    "main_grads_dtype": "bf16",
    "main_params_dtype": "fp32",
    "micro_batch_size": 4,
    "batch_size": 4,
    "moe_expert_capacity_factor": 0.5,
    "moe_expert_rank_capacity_factor": 1.5,
    "moe_paged_stash_buffer_size_factor_cuda": 1.3,
    "moe_flex_dispatcher_backend": "hybridep",
    "moe_layer_freq": "([0]*1+[1]*31)",
    "moe_token_dispatcher_type": "allgather",
    "mtp_num_layers": 1,
    "num_distributed_optimizer_instances": 2,
    "num_layers_per_virtual_pipeline_stage": 4,
    "num_virtual_stages_per_pipeline_rank": 2,
    "virtual_pipeline_model_parallel_size": 2,
    "optimizer": "muon",
    "optimizer_offload_fraction": 0.5,
    "pipeline_model_parallel_layout": "Etttttttt|tttttttt|tttttttt|ttttttttL",
    "pipeline_model_parallel_size": 2,
    "recompute_granularity": "full",
    "recompute_method": "block",
    "recompute_modules": "moe_act layernorm",
    "recompute_num_layers": 4,
    "activations_checkpoint_method": "block",
    "activations_checkpoint_num_layers": 2,
    "seq_length": 2048,
    "tensor_model_parallel_size": 2,
    "model_parallel_size": 2,
    "transformer_impl": "local",
    "wgrad_deferral_limit": 2,
    "hidden_size": 2048,
    "num_layers": 16,
    "ffn_hidden_size": 8192,
    "num_attention_heads": 16,
    "num_query_groups": 4,
    "kv_channels": 64,
    "moe_router_topk": 4,
    "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 8192,
    "moe_router_group_topk": 2,
    "moe_router_num_groups": 4,
    "q_lora_rank": 1024,
    "kv_lora_rank": 256,
    "qk_head_dim": 64,
    "qk_pos_emb_head_dim": 32,
    "v_head_dim": 64,
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "num_experts": 4,
    "num_moe_experts": 4,
    "padded_vocab_size": 128512,
    "vocab_size": 100352,
    "max_position_embeddings": 4096,
    "make_vocab_size_divisible_by": 256,
    "experimental_attention_variant": "gated_delta_net",
    "linear_attention_type": "gated_delta_net",
    "rampup_batch_size": "16 16 1000",
    "step_batch_size_schedule": "0:64 1B:128",
}
ONE_SIDED = frozenset(
    {
        *("add_bias_linear", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
        *("tokenizer_model", "tokenizer_type", "spec", "encoder_seq_length", "no_add_bias_linear"),
        *("hybrid_attention_ratio", "hybrid_layer_pattern", "hybrid_mlp_ratio", "hybrid_override_pattern"),
        *("linear_attention_freq", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads"),
        *("linear_num_value_heads", "linear_value_head_dim", "mamba_head_dim", "mamba_num_groups"),
        *("mamba_num_heads", "mamba_state_dim", "moe_grouped_gemm", "use_mcore_models"),
        *("decoder_seq_length", "img_h", "img_w", "language_model_type", "packing_buffer_size", "patch_dim"),
        "vision_model_type",
    }
)
"""Names that only files have, what says nothing of a question alone, and parts of other models."""
FLAGS = [flag for flag in table_of("megatron").values() if flag.effect == "priced" and flag.name not in ONE_SIDED]
PRINTED = {"torch": {"fp32": "torch.float32", "bf16": "torch.bfloat16"}}
OPPOSITES = {
    name: flag.name
    for flag in table_of("megatron_dump", "megatron").values()
    for name, text in flag.aliases()
    if text == "!"
}
"""For a flag that switches off the variable that the program keeps it in."""


def said(flag: Flag) -> dict[str, object]:
    """The run's words: those of every run, what stands beside the flag, and the flag."""
    value: object = True if flag.kind == "switch" else SAMPLES[flag.name]
    moe = flag.name.startswith(("moe", "num_moe", "expert", "overlap_moe", "num_experts"))
    latent = flag.name in LATENT or flag.name in ("qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    beside = BESIDE.get(flag.name, EXPERTS if moe else LATENT if latent else {})
    words = BASE | beside | {flag.name: value}
    if "multi_latent_attention" in words:
        del words["group_query_attention"]
    if flag.name == "fp16":
        words.pop("bf16")
    for canonical, other in (("micro_batch_size", "batch_size"), ("tensor_model_parallel_size", "model_parallel_size")):
        if flag.name == other:
            words.pop(canonical, None)
    if flag.name == "num_moe_experts":
        words.pop("num_experts")
    return words


def hardware_of(words: dict[str, object]) -> str:
    """A device that has what the words ask for."""
    return "b300-sxm" if any(name.startswith("fp4") for name in words) else HARDWARE


def script(words: dict[str, object], folder: Path) -> Case:
    flags = " ".join(
        f"--{name.replace('_', '-')}" + ("" if x is True else f" {_quoted(x)}") for name, x in words.items()
    )
    file = folder / "run.sh"
    file.write_text(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {flags}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    case = case_of_recipe(recipe, question_of({"hardware": hardware_of(words)}))
    assert isinstance(case, Case), case
    return case


def _quoted(value: object) -> str:
    return f'"{value}"' if any(mark in str(value) for mark in "|()*[") else str(value)


def log(words: dict[str, object], folder: Path) -> MeasuredRow:
    printed = {"fp16": False, "bf16": False, **words, "world_size": 16}
    for name, value in words.items():
        if name in OPPOSITES:
            printed.pop(name)
            printed[OPPOSITES[name]] = False
        elif name.endswith("_dtype"):
            printed[name] = PRINTED["torch"].get(str(value), value)
        elif name in ("recompute_modules", "cp_comm_type"):
            printed[name] = str(value).split()
    file = folder / "train.log"
    batch = int(str(words.get("global_batch_size", 64)))
    file.write_text(dump(printed) + steps(25.0, 25.0, 25.0, batch=batch), encoding="utf-8")
    (row,) = read_log(file, hardware=hardware_of(words))
    return row


def shown_switches(profile: Any) -> dict[str, object]:
    """The switches of a profile that a log can show."""
    return {switch.name: getattr(profile, switch.name) for switch in switches() if switch.name != "expandable_segments"}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_the_log_and_the_script_of_one_run_ask_the_same(flag: Flag, tmp_path: Path) -> None:
    words = said(flag)
    case = script(words, tmp_path)
    row = log(words, tmp_path)
    scenario, layout = question(row)
    assert layout == case.layout
    assert shown_switches(scenario.framework) == shown_switches(case.scenario.framework)
    workload = ("seq_length", "global_batch_size", "precision", "lora_rank", "devices")
    assert {name: getattr(scenario, name) for name in workload} == {
        name: getattr(case.scenario, name) for name in workload
    }
    loose = ("architecture", "max_position_embeddings", "vocab_size")
    shapes = [
        of_fields(model, but=(*loose, "name", "aliases", "note", "sources", "provenance", "published"))
        for model in (scenario.model, case.scenario.model)
    ]
    assert shapes[0] == shapes[1]
    refused = [remark for remark in case.recipe.remarks if remark.severity == "error"]
    assert (row.status == "unpriced") == bool(refused)
    assert all(remark.message in row.evidence for remark in refused)


def test_every_flag_of_a_run_is_tried() -> None:
    names = {flag.name for flag in FLAGS if flag.kind != "switch"}
    assert names <= SAMPLES.keys()
    assert table_of(*registry.tables("megatron")).keys() >= ONE_SIDED


def row_of(more: dict[str, object], folder: Path) -> MeasuredRow:
    return log(BASE | more, folder)


@pytest.mark.parametrize(
    ("more", "status", "evidence"),
    [
        ({"deterministic_mode": True}, "consistent", "--deterministic-mode: slower kernels are not priced"),
        ({"deterministic_mode": False}, "consistent", ""),
        ({"window_size": "(1024, 0)"}, "consistent", "window_size: small copies"),
        ({"some_new_offload_depth": 3}, "unpriced", "some_new_offload_depth is not read"),
        ({"some_new_offload_depth": 0}, "consistent", ""),
        ({"recompute_granularity": "some"}, "unpriced", "recompute_granularity some: allowed are selective, full"),
        ({"optimizer": "soap"}, "unpriced", "optimizer soap is not priced; priced are adamw, sgd_momentum, lion, muon"),
        (
            {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"},
            "consistent",
            "optim_grads: room is left for all of its buffers",
        ),
        (
            {
                "use_megatron_fsdp": True,
                "data_parallel_sharding_strategy": "optim_grads",
                "pipeline_model_parallel_size": 2,
            },
            "unpriced",
            "with a pipeline or a model by name Megatron's FSDP",
        ),
    ],
)
def test_what_is_not_read_is_said(more: dict[str, object], status: str, evidence: str, tmp_path: Path) -> None:
    row = row_of(more, tmp_path)
    assert row.status == status
    assert evidence in row.evidence


def test_switches_of_a_log_are_those_of_a_script(tmp_path: Path) -> None:
    """What a log's own reading left out: types of the state, dropouts, fusions, the fraction that is offloaded."""
    row = row_of(
        {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": "torch.bfloat16",
            "exp_avg_sq_dtype": "torch.bfloat16",
            "main_grads_dtype": "torch.bfloat16",
            "attention_dropout": 0.1,
            "hidden_dropout": 0.1,
            "bias_swiglu_fusion": False,
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": 0.5,
        },
        tmp_path,
    )
    assert row.status == "consistent"
    assert row.offload == "optimizer_tensorwise"
    told = {"optimizer_dtype": "bf16", "gradient_dtype": "bf16", "attention_dropout": "true", "hidden_dropout": "true"}
    assert told.items() <= dict(row.options).items()
    assert dict(row.options)["fused_swiglu"] == "false"
    assert dict(row.options)["offload_fraction"] == "0.5"


PADDLE = {
    "model_name_or_path": "facebook/llama-13b",
    "max_seq_length": 4096,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 16,
    "bf16": True,
    "fp16_opt_level": "O2",
    "tensor_parallel_degree": 2,
    "use_flash_attention": True,
    "use_fused_rms_norm": True,
    "recompute": True,
}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"pipeline_parallel_degree": 2, "virtual_pp_degree": 2},
        {"sharding": "stage2", "sharding_parallel_degree": 4},
        {"sharding": "stage1 offload"},
        {"sep_parallel_degree": 2},
        {"sequence_parallel": True},
        {"recompute_granularity": "core_attn"},
        {"recompute_granularity": "full_attn"},
        {"pipeline_parallel_degree": 2, "pp_seg_method": "[0,19]"},
        {"offload_optim": True},
        {"tensorwise_offload_optimizer": True},
        {"amp_master_grad": True, "release_grads": True},
        {"use_fused_rms_norm": False, "use_flash_attention": False, "fuse_swiglu": True},
        {"use_fused_head_and_loss_fn": True, "loss_subbatch_sequence_length": 2048},
        {"fp16_opt_level": "O1"},
        {"bf16": False, "fp16": True},
        {"lora": True, "lora_rank": 16},
        {"pipeline_parallel_degree": 2, "pipeline_schedule_mode": "ZBV"},
        {"num_hidden_layers": 20},
    ],
    ids=lambda words: " ".join(words) or "base",
)
def test_a_log_of_paddle_asks_what_its_script_asks(words: dict[str, object], tmp_path: Path) -> None:
    told = PADDLE | words
    flags = " ".join(f"--{name} {_quoted(str(x).replace(', ', ' '))}" for name, x in told.items())
    file = tmp_path / "run.sh"
    line = f"python -m paddle.distributed.launch --nnodes 2 --nproc_per_node 8 run_pretrain.py {flags}\n"
    file.write_text(line, encoding="utf-8")
    (recipe,) = read_recipe(file)
    case = case_of_recipe(recipe, question_of({"hardware": HARDWARE}))
    assert isinstance(case, Case), case
    printed = {"fp16": False, "world_size": 16} | told
    settings = "".join(f"{name:30}: {value}\n" for name, value in printed.items())
    logged = "".join(f"loss: 9.9, global_step: {at}, interval_runtime: 16.9\n" for at in range(1, 6))
    file = tmp_path / "train.log"
    file.write_text(f"Training Configuration Arguments\n{settings}{logged}", encoding="utf-8")
    (row,) = read_log(file, hardware=HARDWARE)
    scenario, layout = question(row)
    assert layout == case.layout
    assert scenario.framework == case.scenario.framework
    assert scenario.model.shape() == case.scenario.model.shape()
    asked_for = ("seq_length", "global_batch_size", "precision", "lora_rank", "devices")
    assert [getattr(scenario, name) for name in asked_for] == [getattr(case.scenario, name) for name in asked_for]
    refused = [remark for remark in recipe.remarks if remark.severity == "error"]
    assert (row.status == "unpriced") == bool(refused)
