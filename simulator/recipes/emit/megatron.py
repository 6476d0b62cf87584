"""A launch script of Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from simulator.cost.derived import pricing_of
from simulator.cost.operations.extents import inner_context
from simulator.errors import UnsupportedError
from simulator.question.scenario.layout import model_chunks
from simulator.recipes.check.case import Case
from simulator.recipes.emit.recompute import megatron_recompute
from simulator.recipes.emit.words import Head, even_cut, flag, refuse_switches, shell

_EXPRESSIBLE = (
    "tp_comm_overlap",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_p2p",
    "fused_cross_entropy",
    "expandable_segments",
    "flash_attention",
    "gradient_dtype",
    "optimizer_dtype",
    "offload_fraction",
    "cp_communication",
    "cp_inner_degree",
    "fused_rotary",
    "fp8_recipe",
    "fp8_param_gather",
    "sharding_replicas",
    "mtp",
    "expert_dispatch",
    "overlap_expert_exchange",
    "splits_last_backward",
)
_DATA = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model $TOKENIZER --data-path $DATA_PATH --split 99,1,0"


def megatron_script(case: Case, head: Head) -> str:
    """The script. Raises UnsupportedError for what Megatron-LM has no flag for."""
    refuse_switches(case, _EXPRESSIBLE, "Megatron-LM")
    if case.scenario.lora_rank is not None:
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
        f"DATA_ARGS=${{DATA_ARGS:-{_DATA}}}",
        "TRAIN_ITERS=${TRAIN_ITERS:-1000}",
        "LOG_INTERVAL=${LOG_INTERVAL:-100}",
        "EVAL_ITERS=${EVAL_ITERS:-100}",
        "EXTRA_ARGS=${EXTRA_ARGS:-}",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
    ]
    if case.scenario.framework.expandable_segments:
        lines.append("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    arguments = [
        "--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK",
        "--master_addr $MASTER_ADDR --master_port $MASTER_PORT",
        "$MEGATRON_PATH/pretrain_gpt.py",
        *_model(case),
        *_experts(case),
        *_workload(case),
        *_layout(case),
        *_switches(case),
        "$DATA_ARGS",
        "--train-iters $TRAIN_ITERS --lr 1e-5 --min-lr 1e-6 --lr-decay-style cosine --clip-grad 1.0",
        "--log-throughput --log-interval $LOG_INTERVAL --eval-iters $EVAL_ITERS",
        "$EXTRA_ARGS",
    ]
    return shell(lines, "torchrun", arguments, head)


def _model(case: Case) -> Iterator[str]:
    model, layout = case.scenario.model, case.layout
    yield flag("num-layers", model.num_hidden_layers)
    yield flag("hidden-size", model.hidden_size)
    yield flag("ffn-hidden-size", model.intermediate_size)
    yield flag("num-attention-heads", model.num_attention_heads)
    if model.attention == "mla":
        yield "--multi-latent-attention"
        for name, size in (
            ("q-lora-rank", model.q_lora_rank),
            ("kv-lora-rank", model.kv_lora_rank),
            ("qk-head-dim", model.qk_nope_head_dim),
            ("qk-pos-emb-head-dim", model.qk_rope_head_dim),
            ("v-head-dim", model.v_head_dim),
        ):
            if size is not None:
                yield flag(name, size)
    else:
        yield f"--group-query-attention {flag('num-query-groups', model.num_key_value_heads)}"
        yield flag("kv-channels", model.head_dim)
    if model.vocab_size % layout.tensor_parallel:
        raise UnsupportedError(
            f"vocabulary {model.vocab_size}: Megatron-LM pads it to a multiple of --tp {layout.tensor_parallel}; "
            "price the padded one (--model-field vocab_size=N)"
        )
    yield f"{flag('vocab-size', model.vocab_size)} --make-vocab-size-divisible-by 1"
    yield flag("max-position-embeddings", max(model.max_position_embeddings or 0, case.scenario.seq_length))
    yield "--normalization RMSNorm --swiglu --disable-bias-linear --position-embedding-type rope"
    if not model.tie_word_embeddings:
        yield "--untie-embeddings-and-output-weights"
    if model.attention_bias:
        yield "--add-qkv-bias"
    if model.qk_norm:
        yield "--qk-layernorm"
    if case.scenario.framework.mtp and model.num_nextn_predict_layers:
        yield flag("mtp-num-layers", model.num_nextn_predict_layers)


def _experts(case: Case) -> Iterator[str]:
    model, layout = case.scenario.model, case.layout
    if not model.is_moe:
        return
    yield f"{flag('num-experts', model.num_experts)} {flag('moe-router-topk', model.num_experts_per_tok)}"
    yield flag("moe-ffn-hidden-size", model.moe_intermediate_size)
    if model.num_shared_experts:
        yield flag("moe-shared-expert-intermediate-size", model.num_shared_experts * model.moe_intermediate_size)
    if model.first_k_dense_replace:
        rest = model.num_hidden_layers - model.first_k_dense_replace
        yield flag("moe-layer-freq", f"'([0]*{model.first_k_dense_replace}+[1]*{rest})'")
    if model.n_group:
        yield f"{flag('moe-router-num-groups', model.n_group)} {flag('moe-router-group-topk', model.topk_group)}"
    if model.router_bias:
        yield "--moe-router-enable-expert-bias --moe-router-score-function sigmoid"
    yield from _dispatch(case)
    yield f"{flag('expert-model-parallel-size', layout.expert_parallel)}"
    yield f"{flag('expert-tensor-parallel-size', layout.expert_tensor_parallel)}"


def _dispatch(case: Case) -> Iterator[str]:
    profile = case.scenario.framework
    dispatch = profile.expert_dispatch
    match dispatch:
        case "alltoall" | "allgather":
            yield f"--moe-token-dispatcher-type {dispatch} --moe-grouped-gemm"
        case "deepep" | "hybridep":
            yield f"--moe-token-dispatcher-type flex {flag('moe-flex-dispatcher-backend', dispatch)} --moe-grouped-gemm"
        case _:
            assert_never(dispatch)
    if profile.overlap_expert_exchange:
        yield "--overlap-moe-expert-parallel-comm"


def _workload(case: Case) -> Iterator[str]:
    scenario, layout = case.scenario, case.layout
    yield flag("seq-length", scenario.seq_length)
    yield f"{flag('micro-batch-size', layout.micro_batch_size)} {flag('global-batch-size', scenario.global_batch_size)}"
    # Without a word for the precision Megatron-LM trains in fp32.
    match scenario.precision:
        case "bf16" | "fp16":
            yield f"--{scenario.precision}"
        case "fp8":
            profile = case.scenario.framework
            gather = " --fp8-param-gather" if profile.fp8_param_gather else ""
            yield f"--bf16 --fp8-format hybrid --fp8-recipe {profile.fp8_recipe}{gather}"
        case "fp32":
            pass
        case _:
            assert_never(scenario.precision)
    yield "--transformer-impl transformer_engine"
    # Megatron-LM drops a tenth of both unless told otherwise, and keeps what it dropped for the backward pass.
    yield "--attention-dropout 0.0 --hidden-dropout 0.0"


def _layout(case: Case) -> Iterator[str]:
    layout = case.layout
    yield flag("tensor-model-parallel-size", layout.tensor_parallel)
    yield flag("pipeline-model-parallel-size", layout.pipeline_parallel)
    yield flag("context-parallel-size", layout.context_parallel)
    if layout.sequence_parallel:
        yield "--sequence-parallel"
    if layout.zero_stage > 1:
        raise UnsupportedError(f"--zero-stage {layout.zero_stage}: the distributed optimizer of Megatron-LM is stage 1")
    if layout.zero_stage:
        yield "--use-distributed-optimizer"
    yield from _scheduled(case)
    yield from megatron_recompute(case)
    yield from _offload(case)


def _scheduled(case: Case) -> Iterator[str]:
    """The order of passes. Raises UnsupportedError for one that it has none for."""
    name = case.layout.schedule
    match name:
        case "1f1b":
            yield from _stages(case)
        case "dualpipev":
            if not even_cut(case) or case.scenario.framework.stack != "mindspeed-llm":
                raise UnsupportedError(
                    "--schedule dualpipev: MindSpeed has it (--stack mindspeed-llm), in equal chunks"
                )
            if case.scenario.framework.overlap_grad_reduce or case.layout.context_parallel > 1:
                raise UnsupportedError(
                    "--schedule dualpipev: MindSpeed has it without overlapped gradients and context parallelism "
                    "(--option overlap_grad_reduce=false --cp 1)"
                )
            yield "--use-mcore-models --use-flash-attn --use-fused-swiglu --use-fused-rmsnorm"
            yield "--use-fused-rotary-pos-emb --schedules-method dualpipev"
            if case.scenario.framework.splits_last_backward:
                yield "--dualpipev-dw-detach"
        case "zb_h1" | "zb_v" | "dualpipe":
            raise UnsupportedError(f"--schedule {name}: Megatron-LM has 1F1B and the interleaved schedule")
        case _:
            assert_never(name)


def _stages(case: Case) -> Iterator[str]:
    layout = case.layout
    cut, chunks = layout.stage_layers, layout.virtual_stages
    if layout.chunk_layers or (chunks > 1 and not even_cut(case)):
        held = model_chunks(cut, chunks, layout.chunk_layers)
        yield _described_cut(case, [held[rank][chunk][1] for chunk in range(chunks) for rank in range(len(cut))])
        return
    if chunks > 1:
        yield flag("num-layers-per-virtual-pipeline-stage", cut[0] // chunks)
    if even_cut(case):
        return
    middle = set(cut[1:-1])
    if len(middle) > 1:
        yield _described_cut(case, list(cut))
        return
    share = next(iter(middle), None)
    if cut[0] != share:
        yield flag("decoder-first-pipeline-num-layers", cut[0])
    if cut[-1] != share:
        yield flag("decoder-last-pipeline-num-layers", cut[-1])


def _described_cut(case: Case, sizes: list[int]) -> str:
    """Layers of every chunk. Since Megatron-core 0.13: E embedding, t layer, m prediction module, L loss, | between."""
    mtp = case.scenario.model.num_nextn_predict_layers if case.scenario.framework.mtp else 0
    chunks = ["t" * layers for layers in sizes]
    text = "|".join(["E" + chunks[0], *chunks[1:-1], f"{chunks[-1]}{'m' * (mtp or 0)}L"])
    return flag("pipeline-model-parallel-layout", f"'{text}'")


def _offload(case: Case) -> Iterator[str]:
    offload = case.layout.offload
    match offload:
        case "none":
            pass
        case "optimizer":
            raise UnsupportedError(
                "--offload optimizer: Megatron-LM moves the state by tensor (--offload optimizer_tensorwise)"
            )
        case "optimizer_tensorwise":
            fraction = case.scenario.framework.offload_fraction
            yield f"--optimizer-cpu-offload --optimizer-offload-fraction {fraction} --use-precision-aware-optimizer"
        case "activations":
            yield f"--cpu-offloading {flag('cpu-offloading-num-layers', case.scenario.model.num_hidden_layers - 1)}"
        case _:
            assert_never(offload)


def _switches(case: Case) -> Iterator[str]:
    yield from _overlaps(case)
    yield from _types(case)
    profile = case.scenario.framework
    if profile.fused_cross_entropy:
        yield "--cross-entropy-loss-fusion"
    if not profile.flash_attention:
        yield "--attention-backend unfused"
    if not profile.fused_rotary:
        yield "--no-rope-fusion"
    if profile.sharding_replicas > 1 and case.layout.zero_stage:
        yield flag("num-distributed-optimizer-instances", profile.sharding_replicas)
    if case.layout.context_parallel > 1:
        yield from _context(case)


def _context(case: Case) -> Iterator[str]:
    profile, layout = case.scenario.framework, case.layout
    match profile.cp_communication:
        case "ring":
            return
        case "all_gather":
            yield "--cp-comm-type all_gather"
        case "all_to_all":
            yield "--cp-comm-type a2a"
        case "all_to_all_ring":
            inner = int(inner_context(pricing_of(case.scenario, layout))[0])
            sizes = f"{inner} {layout.context_parallel // inner}"
            yield f"--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes {sizes}"
        case kind:
            raise UnsupportedError(f"--option cp_communication={kind}: Megatron-LM has no such exchange")


def _overlaps(case: Case) -> Iterator[str]:
    profile, layout = case.scenario.framework, case.layout
    if profile.tp_comm_overlap and layout.tensor_parallel > 1:
        if not layout.sequence_parallel:
            raise UnsupportedError(
                "--no-sequence-parallel: Megatron-LM overlaps tensor-parallel collectives only with it "
                "(--option tp_comm_overlap=false)"
            )
        yield "--tp-comm-overlap"
    if profile.overlap_grad_reduce:
        yield "--overlap-grad-reduce"
    if profile.overlap_param_gather and layout.zero_stage and profile.overlap_grad_reduce:
        yield "--overlap-param-gather"
    if not profile.overlap_p2p:
        yield "--no-overlap-p2p-communication"


def _types(case: Case) -> Iterator[str]:
    profile = case.scenario.framework
    if profile.gradient_dtype == "bf16" and case.scenario.precision != "fp32":
        yield "--grad-reduce-in-bf16"
    elif case.scenario.precision == "fp16":
        yield "--accumulate-allreduce-grads-in-fp32"
    if (moments := profile.optimizer_dtype) != "fp32":
        extra = "" if case.layout.offload == "optimizer_tensorwise" else "--use-precision-aware-optimizer "
        yield f"{extra}--exp-avg-dtype {moments} --exp-avg-sq-dtype {moments}"


def megatron_words(case: Case) -> Iterator[str]:
    """The flags that say how a case is laid out. Raises UnsupportedError for what there is none for."""
    yield from _experts(case)
    yield from _workload(case)
    yield from _layout(case)
