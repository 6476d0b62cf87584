"""Writer of launch scripts of Megatron-LM and MindSpeed-LLM: the rows of their tables, reversed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, assert_never

from simulator.cost.derived import pricing_of
from simulator.cost.operations.sums import inner_context
from simulator.errors import UnsupportedError
from simulator.frameworks.flags import table_of
from simulator.frameworks.megatron.special import CAPTURED_SWITCHES, captured_words
from simulator.frameworks.write import Head, WordPair, Writing, flags, shell
from simulator.question.frameworks.stacks import framework
from simulator.question.scenario.layout import Layout, model_chunks
from simulator.question.scenario.scenario import Scenario

_NAMED: Final = (
    *("expandable_segments", "flash_attention", "optimizer_dtype", "cp_communication", "cp_inner_degree"),
    *("fp8_recipe", "fp4_recipe", "expert_dispatch", "splits_last_backward", "optimizer"),
)  # switches without a row that are written here
_OF_LATER_CORES: Final = (*CAPTURED_SWITCHES, "offloaded_modules")
"""Switches that MindSpeed-LLM's core has no flags for."""
_MINDSPEED: Final = "mindspeed-llm"
_MINDSPEED_WORDS: Final = ("use_mcore_models", "use_fused_rmsnorm", "use_fused_swiglu", "no_masked_softmax_fusion")
"""Switches of its examples for models of Megatron's core: examples/mcore/qwen3/pretrain_qwen3_8b_4K_ptd_A3.sh, 2.2."""
_MINDSPEED_SWITCHES: Final = ("repeat_kv", "delayed_weight_gradients", "communicator_buffer_mib")
"""Switches without a row that are written for it here."""
_PLAIN: Final = (("normalization", "RMSNorm"), ("swiglu", ""), ("disable_bias_linear", ""))
_DATA: Final = "--tokenizer-type {} $TOKENIZER --data-path $DATA_PATH --split 99,1,0"
_TOKENIZER: Final = {False: "HuggingFaceTokenizer --tokenizer-model", True: "PretrainedFromHF --tokenizer-name-or-path"}
"""Kind of tokenizer and the flag of its path, by whether the trainer is MindSpeed-LLM."""


def megatron_script(scenario: Scenario, layout: Layout, head: Head) -> str:
    """Return the script. Raises UnsupportedError for settings that Megatron-LM has no flag for."""
    case = Writing(scenario, layout, table_of("megatron"))
    if scenario.lora_rank is not None:
        raise UnsupportedError("--lora-rank: pretrain_gpt.py of Megatron-LM trains no adapters")
    lines = [
        f"NNODES={head.nodes}",
        f"GPUS_PER_NODE={head.devices_per_node}",
        "MASTER_ADDR=${MASTER_ADDR:-localhost}",
        "MASTER_PORT=${MASTER_PORT:-6000}",
        "NODE_RANK=${NODE_RANK:-0}",
        "MEGATRON_PATH=${MEGATRON_PATH:-.}",
        "DATA_PATH=${DATA_PATH:-data/corpus_text_document}",
        "TOKENIZER=${TOKENIZER:-data/tokenizer}",
        f"DATA_ARGS=${{DATA_ARGS:-{_DATA.format(_TOKENIZER[_is_mindspeed(case)])}}}",
        "TRAIN_ITERS=${TRAIN_ITERS:-1000}",
        "LOG_INTERVAL=${LOG_INTERVAL:-100}",
        "EVAL_ITERS=${EVAL_ITERS:-100}",
        "EXTRA_ARGS=${EXTRA_ARGS:-}",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
    ]
    if scenario.framework.expandable_segments:
        part = "NPU" if scenario.hardware.vendor == "Huawei" else "CUDA"
        lines.append(f"export PYTORCH_{part}_ALLOC_CONF=expandable_segments:True")
        if scenario.framework.cuda_graphs not in ("none", "full_iteration"):
            lines.append("export NCCL_GRAPH_REGISTER=0")
    if scenario.framework.communicator_buffer_mib:
        lines.append(f"export HCCL_BUFFSIZE={scenario.framework.communicator_buffer_mib}")
    if scenario.framework.offloaded_modules:
        lines.append("export NVTE_CPU_OFFLOAD_V1=1")
    parts = megatron_parts(scenario, layout)
    arguments = [
        "--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK",
        "--master_addr $MASTER_ADDR --master_port $MASTER_PORT",
        "$MEGATRON_PATH/pretrain_gpt.py",
        *(line for words in parts for line in flags(words)),
        "$DATA_ARGS",
        "--train-iters $TRAIN_ITERS --lr 1e-5 --min-lr 1e-6 --lr-decay-style cosine --clip-grad 1.0",
        "--log-throughput --log-interval $LOG_INTERVAL --eval-iters $EVAL_ITERS",
        "$EXTRA_ARGS",
    ]
    return shell(lines, "torchrun", arguments, head)


def megatron_parts(scenario: Scenario, layout: Layout) -> tuple[Iterator[WordPair], ...]:
    """Return the flags of model, experts, workload, layout, MindSpeed and switches. Raises UnsupportedError."""
    case = Writing(scenario, layout, table_of("megatron"))
    more = (*_MINDSPEED_SWITCHES, *_own_switches()) if _is_mindspeed(case) else _OF_LATER_CORES
    case.refuse_switches((*_NAMED, *more), "Megatron-LM")
    return _model(case), _experts(case), _workload(case), _layout(case), _mindspeed(case), _switches(case)


def megatron_words(scenario: Scenario, layout: Layout) -> Iterator[WordPair]:
    """Yield the flags of a layout. Raises UnsupportedError for settings without one."""
    case = Writing(scenario, layout, table_of("megatron"))
    yield from _experts(case)
    yield from _workload(case)
    yield from _layout(case)


def _is_mindspeed(case: Writing) -> bool:
    return case.scenario.framework.stack.startswith(_MINDSPEED)


def _mindspeed(case: Writing) -> Iterator[WordPair]:
    """Yield the switches of MindSpeed-LLM on Megatron's core 0.12, the first with --attention-backend."""
    if not _is_mindspeed(case):
        return
    for switch in _MINDSPEED_WORDS:
        yield switch, ""
    if case.scenario.framework.flash_attention:
        yield "use_flash_attn", ""
        yield "attention_backend", "flash"
    profile = case.scenario.framework
    if profile.fused_rotary:
        yield "use_fused_rotary_pos_emb", ""
    if profile.delayed_weight_gradients and case.layout.pipeline_parallel > 1:
        yield "moe_fb_overlap", ""
    own, usual = Writing(case.scenario, case.layout, table_of("mindspeed")), framework(profile.name, {}, profile.stack)
    for name in _own_switches():
        if getattr(profile, name) != getattr(usual, name):
            yield from own.word(f"option.{name}", getattr(profile, name))


def _own_switches() -> list[str]:
    """Return the switches that rows of MindSpeed's table alone set, but for those that are written by name."""
    targets = table_of("mindspeed").meanings.keys() - table_of("megatron").meanings.keys()
    names = sorted(target.removeprefix("option.") for target in targets if target.startswith("option."))
    return [name for name in names if name not in _NAMED]


def _model(case: Writing) -> Iterator[WordPair]:
    model, tensor = case.scenario.model, case.layout.tensor_parallel
    yield from case.sizes("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    if model.attention == "mla":
        yield "multi_latent_attention", ""
        yield from case.sizes("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    else:
        yield "group_query_attention", ""
        yield from case.sizes("num_key_value_heads", "head_dim")
    if model.vocab_size % tensor:
        raise UnsupportedError(
            f"vocabulary {model.vocab_size}: Megatron-LM pads it to a multiple of --tp {tensor}; "
            "price the padded one (--model-field vocab_size=N)"
        )
    yield "vocab_size", str(model.vocab_size)
    yield "make_vocab_size_divisible_by", "1"
    yield "max_position_embeddings", str(max(model.max_position_embeddings or 0, case.scenario.seq_length))
    yield from _PLAIN
    yield "position_embedding_type", "rope"
    for field in ("tie_word_embeddings", "qk_norm"):
        yield from case.word(f"model.{field}", getattr(model, field))
    if model.attention_bias:
        yield "add_qkv_bias", ""
    if case.scenario.framework.mtp:
        yield from case.sizes("num_nextn_predict_layers")


def _experts(case: Writing) -> Iterator[WordPair]:
    model = case.scenario.model
    if not model.is_moe:
        return
    yield "num_experts", str(model.num_experts)
    yield from case.sizes("num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group")
    if model.num_shared_experts:
        yield "moe_shared_expert_intermediate_size", str(model.num_shared_experts * model.moe_intermediate_size)
    if model.first_k_dense_replace:
        rest = model.num_hidden_layers - model.first_k_dense_replace
        yield "moe_layer_freq", f"'([0]*{model.first_k_dense_replace}+[1]*{rest})'"
    if model.router_bias:
        yield "moe_router_enable_expert_bias", ""
        yield "moe_router_score_function", "sigmoid"
    dispatch = case.scenario.framework.expert_dispatch
    match dispatch:
        case "alltoall" | "allgather":
            yield "moe_token_dispatcher_type", dispatch
        case "deepep" | "hybridep":
            yield "moe_token_dispatcher_type", "flex"
            yield "moe_flex_dispatcher_backend", dispatch
        case _:
            assert_never(dispatch)
    yield "moe_grouped_gemm", ""
    yield from case.degrees("expert_parallel", "expert_tensor_parallel")


def _workload(case: Writing) -> Iterator[WordPair]:
    scenario = case.scenario
    yield "seq_length", str(scenario.seq_length)
    yield from case.degrees("micro_batch_size")
    yield "global_batch_size", str(scenario.global_batch_size)
    # Megatron-LM's default precision is fp32.
    match scenario.precision:
        case "bf16" | "fp16":
            yield scenario.precision, ""
        case "fp8":
            yield "bf16", ""
            yield "fp8_format", "hybrid"
            yield "fp8_recipe", scenario.framework.fp8_recipe
        case "fp4":
            yield "bf16", ""
            yield "fp4_format", "e2m1"
            # Its words are nvfp4 and custom (d98e8a6, megatron/core/transformer/transformer_config.py).
            if scenario.framework.fp4_recipe != "nvfp4":
                raise UnsupportedError("--option fp4_recipe=mxfp4: Megatron-LM has no setting for it")
            yield "fp4_recipe", scenario.framework.fp4_recipe
        case "fp32":
            pass
        case _:
            assert_never(scenario.precision)
    if not _is_mindspeed(case):  # which has switches of its own for kernels
        yield "transformer_impl", "transformer_engine"


def _layout(case: Writing) -> Iterator[WordPair]:
    layout = case.layout
    yield from case.degrees("tensor_parallel", "pipeline_parallel", "context_parallel")
    if layout.sequence_parallel:
        yield "sequence_parallel", ""
    if layout.zero_stage > 1:
        raise UnsupportedError(f"--zero-stage {layout.zero_stage}: the distributed optimizer of Megatron-LM is stage 1")
    yield from case.degrees("zero_stage")
    yield from _scheduled(case)
    yield from _recompute(case)
    yield from _offload(case)


def _scheduled(case: Writing) -> Iterator[WordPair]:
    """Yield the flags of the schedule. Raises UnsupportedError for a schedule without one."""
    name, profile = case.layout.schedule, case.scenario.framework
    match name:
        case "1f1b":
            yield from _stages(case)
        case "dualpipev":
            if not case.cut_is_even or not _is_mindspeed(case):
                raise UnsupportedError(
                    "--schedule dualpipev: MindSpeed has it (--stack mindspeed-llm), in equal chunks"
                )
            if profile.overlap_grad_reduce or case.layout.context_parallel > 1:
                raise UnsupportedError(
                    "--schedule dualpipev: MindSpeed has it without overlapped gradients and context parallelism "
                    "(--option overlap_grad_reduce=false --cp 1)"
                )
            yield "schedules_method", "dualpipev"
            if profile.splits_last_backward:
                yield "dualpipev_dw_detach", ""
        case "zb_h1" | "zb_v" | "dualpipe":
            raise UnsupportedError(f"--schedule {name}: Megatron-LM has 1F1B and the interleaved schedule")
        case _:
            assert_never(name)


def _stages(case: Writing) -> Iterator[WordPair]:
    cut, chunks = case.layout.stage_layers, case.layout.virtual_stages
    if case.layout.chunk_layers or (chunks > 1 and not case.cut_is_even):
        per_rank = model_chunks(cut, chunks, case.layout.chunk_layers)
        yield _described_cut(case, [per_rank[rank][chunk][1] for chunk in range(chunks) for rank in range(len(cut))])
        return
    if chunks > 1:
        yield "num_layers_per_virtual_pipeline_stage", str(cut[0] // chunks)
    if case.cut_is_even:
        return
    middle = set(cut[1:-1])
    if len(middle) > 1:
        yield _described_cut(case, list(cut))
        return
    share = next(iter(middle), None)
    if cut[0] != share:
        yield "decoder_first_pipeline_num_layers", str(cut[0])
    if cut[-1] != share:
        yield "decoder_last_pipeline_num_layers", str(cut[-1])


def _described_cut(case: Writing, sizes: list[int]) -> WordPair:
    """Return the layers of every chunk as layout text (core 0.13): E embedding, t layer, m prediction, L loss."""
    mtp = case.scenario.model.num_nextn_predict_layers if case.scenario.framework.mtp else 0
    chunks = ["t" * layers for layers in sizes]
    text = "|".join(["E" + chunks[0], *chunks[1:-1], f"{chunks[-1]}{'m' * (mtp or 0)}L"])
    return "pipeline_model_parallel_layout", f"'{text}'"


def _recompute(case: Writing) -> Iterator[WordPair]:
    layout = case.layout
    mode, method = layout.recompute, layout.recompute_method
    match mode:
        case "none":
            pass
        case "selective":
            if layout.recompute_modules == ("core_attn",):
                yield "recompute_activations", ""
            else:
                yield "recompute_granularity", "selective"
                yield "recompute_modules", " ".join(layout.recompute_modules)
        case "full":
            if method == "list":
                raise UnsupportedError(
                    "--recompute-layer-list: Megatron-LM recomputes all or the first layers of a stage"
                )
            yield "recompute_granularity", "full"
            yield "recompute_method", method
            yield "recompute_num_layers", str(layout.recompute_layers)
        case _:
            raise UnsupportedError(f"--recompute {mode}: Megatron-LM recomputes modules or whole layers")


def _offload(case: Writing) -> Iterator[WordPair]:
    if modules := case.scenario.framework.offloaded_modules:
        yield "fine_grained_activation_offloading", ""
        yield "offload_modules", " ".join(modules)
    offload = case.layout.offload
    match offload:
        case "none":
            pass
        case "optimizer" | "optimizer_tensorwise":
            yield "optimizer_cpu_offload", ""
            yield "optimizer_offload_fraction", str(case.scenario.framework.offload_fraction)
            yield "use_precision_aware_optimizer", ""
        case "activations":
            yield "cpu_offloading", ""
            yield "cpu_offloading_num_layers", str(case.scenario.model.num_hidden_layers - 1)
        case _:
            assert_never(offload)


def _switches(case: Writing) -> Iterator[WordPair]:
    profile, layout = case.scenario.framework, case.layout
    if profile.tp_comm_overlap and layout.tensor_parallel > 1 and not layout.sequence_parallel:
        raise UnsupportedError(
            "--no-sequence-parallel: Megatron-LM overlaps tensor-parallel collectives only with it "
            "(--option tp_comm_overlap=false)"
        )
    works = {
        "tp_comm_overlap": layout.tensor_parallel > 1,
        "sharding_replicas": layout.zero_stage > 0,
        "overlap_param_gather": layout.zero_stage > 0 and profile.overlap_grad_reduce,
        "overlap_expert_exchange": case.scenario.model.is_moe,
    }
    written = ("offload_fraction", "mtp", "gradient_dtype", "fp8_param_gather")
    more = ("fused_rotary",) if _is_mindspeed(case) else ()
    yield from case.options(*written, *more, *(name for name, on in works.items() if not on))
    yield from captured_words(case)
    yield from _types(case)
    if layout.context_parallel > 1:
        yield from _context(case)


def _types(case: Writing) -> Iterator[WordPair]:
    profile = case.scenario.framework
    if not profile.flash_attention:
        yield "attention_backend", "unfused"
    if profile.fp8_param_gather and case.scenario.precision == "fp8":  # fp4 has a flag of its own
        yield "fp8_param_gather", ""
    if profile.gradient_dtype == "bf16" and case.scenario.precision != "fp32":
        yield "grad_reduce_in_bf16", ""
    elif case.scenario.precision == "fp16":
        yield "accumulate_allreduce_grads_in_fp32", ""
    if profile.optimizer != "adamw":
        yield "optimizer", profile.optimizer.removesuffix("_momentum")
    if (moments := profile.optimizer_dtype) != "fp32":
        if not case.layout.offload.startswith("optimizer"):
            yield "use_precision_aware_optimizer", ""
        yield "exp_avg_dtype", moments
        yield "exp_avg_sq_dtype", moments


def _context(case: Writing) -> Iterator[WordPair]:
    layout, kind, model = case.layout, case.scenario.framework.cp_communication, case.scenario.model
    grouped = model.attention != "mla" and model.num_key_value_heads < model.num_attention_heads
    if _is_mindspeed(case) and kind.startswith("all_to_all") and grouped and not case.scenario.framework.repeat_kv:
        raise UnsupportedError(
            f"--option cp_communication={kind}: MindSpeed-LLM up to v2.2 repeats key-value heads before it exchanges "
            "tokens for heads (--option repeat_kv=true)"
        )
    match kind:
        case "ring":
            return
        case "all_gather":
            yield "cp_comm_type", "all_gather"
        case "all_to_all":
            yield "cp_comm_type", "a2a"
        case "all_to_all_ring":
            inner = int(inner_context(pricing_of(case.scenario, layout))[0])
            yield "cp_comm_type", "a2a+p2p"
            yield "hierarchical_context_parallel_sizes", f"{inner} {layout.context_parallel // inner}"
        case _:
            raise UnsupportedError(f"--option cp_communication={kind}: Megatron-LM has no such exchange")
