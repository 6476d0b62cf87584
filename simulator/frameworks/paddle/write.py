"""Writer of launch scripts of ERNIEKit and PaddleNLP; a setting without a flag is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from simulator.errors import UnsupportedError
from simulator.frameworks.flags import table_of
from simulator.frameworks.write import Head, WordPair, Writing, flags, shell
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_model

_BY_NAME = ("flash_attention", "fused_rms_norm", "fused_swiglu", "cp_communication")
"""Switches written in another flag than their row's, or written even at their default."""
_EXPRESSIBLE = ("overlap_grad_reduce", "overlap_param_gather", "cross_entropy_chunk_tokens", "sharding_degree")


def paddle_script(scenario: Scenario, layout: Layout, head: Head) -> str:
    """Return the script. Raises UnsupportedError for settings that the trainer has no flag for."""
    case = Writing(scenario, layout, table_of("paddlenlp", "paddleformers"))
    case.refuse_switches(_EXPRESSIBLE, "Paddle")
    name = case.shipped_name("Paddle", layers=True)
    ernie = case.scenario.model.architecture.startswith("ernie")
    lines = [
        "MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}",
        "MASTER_PORT=${MASTER_PORT:-8080}",
        "NODE_RANK=${NODE_RANK:-0}",
        "PADDLE_PATH=${PADDLE_PATH:-.}",
        f"MODEL_PATH=${{MODEL_PATH:-./{name}}}",
        "DATA_PATH=${DATA_PATH:-data}",
        "OUTPUT_PATH=${OUTPUT_PATH:-.}",
        "MAX_STEPS=${MAX_STEPS:-1000}",
        "LOGGING_STEPS=${LOGGING_STEPS:-10}",
        "EXTRA_ARGS=${EXTRA_ARGS:-}",
        "export FLAGS_dataloader_use_file_descriptor=False",
    ]
    devices = ",".join(map(str, range(head.devices_per_node)))
    script = "examples/post-training/sft/train.py" if ernie else "llm/run_pretrain.py"
    parts = (_workload(case, ernie=ernie), _layout(case), _recompute(case), _switches(case, ernie=ernie))
    arguments = [
        # One folder per node: all nodes use the same names for their logs.
        "--log_dir $OUTPUT_PATH/logs/$NODE_RANK",
        f"--devices {devices}",
        f"--master $MASTER_ADDR:$MASTER_PORT --nnodes {head.nodes} --nproc_per_node {head.devices_per_node}",
        f"$PADDLE_PATH/{script}",
        "--model_name_or_path $MODEL_PATH",
        *(line for words in parts for line in flags(words, dashes=False)),
        "--output_dir $OUTPUT_PATH/checkpoints --do_train --max_steps $MAX_STEPS --logging_steps $LOGGING_STEPS",
        "--learning_rate 1e-5",
        "--train_dataset_path $DATA_PATH" if ernie else "--input_dir $DATA_PATH",
        "$EXTRA_ARGS",
    ]
    return shell(lines, "python -m paddle.distributed.launch", arguments, head)


def _workload(case: Writing, *, ernie: bool) -> Iterator[WordPair]:
    scenario, layout = case.scenario, case.layout
    yield "max_seq_len" if ernie else "max_seq_length", str(scenario.seq_length)
    yield "per_device_train_batch_size", str(layout.micro_batch_size)
    yield "gradient_accumulation_steps", str(case.accumulation)
    match scenario.precision:
        case "bf16" | "fp16":
            yield scenario.precision, ""
            yield "fp16_opt_level", "O2"
        case "fp8" | "fp4" | "fp32":
            raise UnsupportedError(f"--precision {scenario.precision}: no flag of the trainer that is read says so")
        case _:
            assert_never(scenario.precision)
    if scenario.lora_rank is not None:
        yield "lora", ""
        yield "lora_rank", str(scenario.lora_rank)
    layers = scenario.model.num_hidden_layers
    if layers != load_model(scenario.model.name).num_hidden_layers:
        yield "num_hidden_layers", str(layers)


def _layout(case: Writing) -> Iterator[WordPair]:
    layout, model = case.layout, case.scenario.model
    yield from case.degrees("tensor_parallel", "pipeline_parallel")
    if layout.pipeline_parallel > 1:
        yield "pipeline_parallel_config", '"disable_partial_send_recv disable_batch_p2p_comm"'
    if layout.schedule != BY_NAME["schedule"].default:
        raise UnsupportedError(f"--schedule {layout.schedule}: the trainer has 1F1B and the interleaved schedule")
    if layout.virtual_stages > 1:
        yield from case.degrees("virtual_stages")
    if not case.cut_is_usual:
        starts = [0, *(1 + sum(layout.stage_layers[:stage]) for stage in range(1, layout.pipeline_parallel))]
        yield "pp_seg_method", f'"[{",".join(map(str, starts))}]"'
    if layout.context_parallel > 1:
        kind = case.scenario.framework.cp_communication
        if kind not in ("ring", "all_to_all"):
            raise UnsupportedError(f"--option cp_communication={kind}: the trainer has a ring or heads (all_to_all)")
        name = "sep_parallel_degree" if kind == "all_to_all" else "context_parallel_degree"
        yield name, str(layout.context_parallel)
    yield "sequence_parallel", str(int(layout.sequence_parallel))
    if layout.zero_stage:
        degree = case.scenario.framework.sharding_degree or -1
        yield "sharding", f"stage{layout.zero_stage}"
        yield "sharding_parallel_degree", str(degree)
    if model.is_moe:
        yield from _experts(case)
    if layout.offload != "none":
        yield from case.word("layout.offload", layout.offload)


def _experts(case: Writing) -> Iterator[WordPair]:
    layout = case.layout
    if layout.expert_parallel == layout.tensor_parallel and layout.expert_tensor_parallel == 1:
        yield "moe_group", "mp"
        return
    if layout.expert_parallel > 1 or layout.expert_tensor_parallel > 1:
        yield "expert_parallel_degree", str(layout.expert_parallel)
    if layout.expert_tensor_parallel > 1:
        yield "expert_tensor_model_parallel_size", str(layout.expert_tensor_parallel)


def _switches(case: Writing, *, ernie: bool) -> Iterator[WordPair]:
    profile = case.scenario.framework
    yield from case.options(*_BY_NAME)
    norm = "fuse_rms_norm" if ernie else "use_fused_rms_norm"
    yield "use_flash_attention", str(int(profile.flash_attention))
    yield norm, str(int(profile.fused_rms_norm))
    yield "fuse_swiglu", str(int(profile.fused_swiglu))
    overlaps = {
        "enable_stage1_overlap": profile.overlap_grad_reduce,
        "enable_stage1_broadcast_overlap": profile.overlap_param_gather,
    }
    if any(overlaps.values()):
        yield "sharding_parallel_config", f'"{" ".join(word for word, on in overlaps.items() if on)}"'
    if profile.cross_entropy_chunk_tokens:
        yield "use_fused_head_and_loss_fn", "1"
        yield "use_recompute_loss_fn", "1"
        yield "use_sparse_head_and_loss_fn", "0"
        yield "loss_subbatch_sequence_length", str(profile.cross_entropy_chunk_tokens)


def _recompute(case: Writing) -> Iterator[WordPair]:
    layout = case.layout
    mode = layout.recompute
    yield "recompute", str(int(mode != "none"))
    match mode:
        case "none":
            pass
        case "selective":
            if layout.recompute_modules != ("core_attn",):
                raise UnsupportedError("--recompute-modules: written are core_attn, full_attn and whole layers")
            yield "recompute_granularity", "core_attn"
        case "attention":
            yield "recompute_granularity", "full_attn"
        case "full":
            yield "recompute_granularity", "full"
            yield from _recomputed_layers(case)
        case _:
            raise UnsupportedError(f"--recompute {mode}: the trainer recomputes the attention or whole layers")


def _recomputed_layers(case: Writing) -> Iterator[WordPair]:
    layout = case.layout
    if layout.recompute_method == "list":
        others = [x for x in range(case.scenario.model.num_hidden_layers) if x not in layout.recompute_layer_list]
        if others:
            yield "no_recompute_layers", " ".join(map(str, others))
    elif layout.recompute_method != "uniform" or layout.recompute_layers != 1:
        raise UnsupportedError(
            "--recompute-layers: the trainer recomputes every layer, or all but a list (--recompute-layer-list)"
        )


def paddle_words(scenario: Scenario, layout: Layout) -> Iterator[WordPair]:
    """Yield the flags of a layout. Raises UnsupportedError for settings without one."""
    case = Writing(scenario, layout, table_of("paddlenlp", "paddleformers"))
    yield from _workload(case, ernie=scenario.model.architecture.startswith("ernie"))
    yield from _layout(case)
    yield from _recompute(case)
