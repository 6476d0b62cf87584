"""What Megatron-LM checks as it starts: flags that need one another, read from its `arguments.py` and its config class.

Only a recipe knows these: the same layout may be asked for in words that pass.
"""

from __future__ import annotations

from simulator.question.scenario.layout import default_cut
from simulator.recipes.recipe import GivenFlag
from simulator.recipes.rules.launch import (
    MEGATRON,
    MEGATRON_ARGUMENTS,
    MEGATRON_CONFIG,
    FrameworkRule,
    LaunchFacts,
    megatron_rule,
    says,
)

_FSDP_ARGUMENTS = "Megatron-LM core_v0.19.0, megatron/training/arguments.py"


def _command_line(launch: LaunchFacts) -> bool:
    """Whether Megatron-LM's own parser reads the flags: it checks more than the library does."""
    return launch.recipe is not None and launch.recipe.dialect == "megatron-shell"


def _uneven(launch: LaunchFacts) -> bool:
    """Whether the layers do not divide, and neither recipe nor user says which stage has fewer."""
    layout, recipe = launch.layout, launch.recipe
    if recipe is None or recipe.layout is None or layout.virtual_stages > 1 or "stage_layers" in launch.replaced:
        return False
    if launch.flag(*_CUTS) is not None:
        return False
    cut_by_recipe = bool(recipe.layout.stage_layers) and recipe.layout.stage_layers == layout.stage_layers
    return not cut_by_recipe and launch.scenario.model.num_hidden_layers % layout.pipeline_parallel != 0


_CUTS = (
    *("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout"),
    *("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split", "num-layer-list"),
)
"""Flags that cut the layers themselves: the check of an even cut is left out, or counts other items."""


def _uneven_fix(launch: LaunchFacts) -> str:
    layers, stages = launch.scenario.model.num_hidden_layers, launch.layout.pipeline_parallel
    sizes = ", ".join(str(d) for d in range(1, min(layers, 2 * stages) + 1) if layers % d == 0)
    cut = default_cut(layers, stages)
    ends = f"--decoder-first-pipeline-num-layers {cut[0]} --decoder-last-pipeline-num-layers {cut[-1]}"
    spread = f"{ends} in the recipe" if len(set(cut[1:-1])) <= 1 else "--pipeline-model-parallel-layout in the recipe"
    return f"--pp {sizes}; or {spread}"


def _outside_fsdp2(launch: LaunchFacts) -> bool:
    """Whether PyTorch's FSDP2 is asked for beside what it does not go with."""
    layout = launch.layout
    spread = layout.pipeline_parallel > 1 or layout.expert_parallel > 1
    own = launch.flag("use-distributed-optimizer") is not None or launch.scenario.model.tie_word_embeddings
    own |= launch.scenario.precision == "fp16"
    return launch.flag("use-torch-fsdp2") is not None and (spread or own)


def _format(launch: LaunchFacts, flag: str, *takes: str) -> bool:
    """Whether a command line with this flag writes its checkpoints in another format than these."""
    own = launch.flag("ckpt-format")
    return _command_line(launch) and launch.flag(flag) is not None and (own.text if own else "torch_dist") not in takes


def _recomputes(launch: LaunchFacts, mode: str) -> bool:
    """Whether the recipe's own flags ask for this recomputation."""
    own = launch.flag("recompute-granularity")
    return own is not None and own.text == mode == launch.layout.recompute and "recompute" not in launch.replaced


def _lacks(launch: LaunchFacts, *flags: str) -> bool:
    return _command_line(launch) and launch.flag(*flags) is None


def _gathers(launch: LaunchFacts) -> bool:
    """Whether a command line overlaps the gathering of parameters."""
    overlaps = launch.scenario.framework.overlap_param_gather and launch.flag("overlap-param-gather") is not None
    return overlaps and _command_line(launch)


def _short_positions(launch: LaunchFacts) -> bool:
    flag = launch.flag("max-position-embeddings")
    if flag is None or not flag.text.isdecimal() or not _command_line(launch):
        return False
    return int(flag.text) < launch.scenario.seq_length


def _positions(launch: LaunchFacts) -> str:
    flag = launch.flag("max-position-embeddings")
    return f"max-position-embeddings {flag.text} < seq-length {launch.scenario.seq_length}" if flag else ""


def _layers(launch: LaunchFacts) -> str:
    layers, stages = launch.scenario.model.num_hidden_layers, launch.layout.pipeline_parallel
    return f"{layers} layers do not divide over {stages} pipeline ranks, and no flag says which has fewer"


def _underscored(launch: LaunchFacts) -> GivenFlag | None:
    """The first flag of a command line that is spelled with underscores; Megatron's have dashes."""
    if launch.recipe is None or not _command_line(launch):
        return None
    found = (flag for flag in launch.recipe.flags if "_" in flag.spelled and flag.name in DASHED_FLAGS)
    return next(found, None)


def _underscored_fix(launch: LaunchFacts) -> str:
    flag = _underscored(launch)
    return "" if flag is None else f"--{flag.spelled.replace('_', '-')}"


DASHED_FLAGS = frozenset(
    {
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "num_layers"),
        *("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "group_query_attention"),
        *("seq_length", "max_position_embeddings", "micro_batch_size", "global_batch_size"),
        *("use_distributed_optimizer", "recompute_granularity", "recompute_method", "recompute_num_layers"),
        *("recompute_activations", "overlap_grad_reduce", "overlap_param_gather", "num_experts"),
        *("num_layers_per_virtual_pipeline_stage", "untie_embeddings_and_output_weights"),
    }
)
"""Flags of Megatron-LM that have dashes and no other form: its parser takes neither underscores nor parts of names."""


MEGATRON_START_RULES: tuple[FrameworkRule, ...] = (
    megatron_rule(
        id="megatron-uneven-layers",
        source=f"{MEGATRON_ARGUMENTS}:501",
        about="layers divide by pipeline ranks unless the first or the last stage is given its own number",
        says="Number of layers should be divisible by the pipeline-model-parallel size",
        fix=_uneven_fix,
        broken=_uneven,
        breach=_layers,
        blame=("pp", "--num-layers"),
    ),
    megatron_rule(
        id="megatron-recompute-method",
        source=f"{MEGATRON_CONFIG}:699",
        about="full recompute needs a method",
        says='Using recompute_granularity: full so recompute_method must be "block" or "uniform"',
        fix=says("--recompute-method uniform --recompute-num-layers 1 in the recipe"),
        broken=lambda x: _recomputes(x, "full") and x.flag("recompute-method") is None,
        blame=("--recompute-granularity",),
    ),
    megatron_rule(
        id="megatron-recompute-layers",
        source=f"{MEGATRON_CONFIG}:705",
        about="full recompute needs a number of layers",
        says="When using recompute_granularity: full recompute_num_layers must be between 1 and ...",
        fix=says("--recompute-num-layers 1 in the recipe"),
        broken=lambda x: _recomputes(x, "full") and x.flag("recompute-num-layers") is None,
        blame=("--recompute-granularity",),
    ),
    megatron_rule(
        id="megatron-selective-method",
        source=f"{MEGATRON_ARGUMENTS}:762",
        about="selective recompute takes no method",
        says="recompute method is not yet supported for selective recomputing granularity",
        fix=says("drop --recompute-method"),
        broken=lambda x: _command_line(x) and _recomputes(x, "selective") and x.flag("recompute-method") is not None,
        blame=("--recompute-method",),
    ),
    megatron_rule(
        id="megatron-selective-layers",
        source=f"{MEGATRON_CONFIG}:714",
        about="selective recompute takes no number of layers",
        says="When using recompute_granularity: selective recompute_num_layers must be None.",
        fix=says("drop --recompute-num-layers"),
        broken=lambda x: _recomputes(x, "selective") and x.flag("recompute-num-layers") is not None,
        blame=("--recompute-num-layers",),
    ),
    megatron_rule(
        id="megatron-torch-fsdp2",
        versions="Megatron-core 0.10 and later",
        source=f"{_FSDP_ARGUMENTS}:1001",
        about="PyTorch's FSDP2 takes neither pipelines nor spread experts nor the distributed optimizer",
        says=(
            "--use-torch-fsdp2 is not supported with pipeline parallelism; with expert parallelism; with MCore's "
            "distributed optimizer; requires --untie-embeddings-and-output-weights; not supported with fp16 yet"
        ),
        fix=says("drop --use-torch-fsdp2 from the recipe"),
        broken=_outside_fsdp2,
        blame=("--use-torch-fsdp2",),
    ),
    megatron_rule(
        id="megatron-torch-fsdp2-fusion",
        versions="Megatron-core 0.10 and later",
        source=f"{_FSDP_ARGUMENTS}:1006",
        about="PyTorch's FSDP2 takes no gradients that are added inside of products, Megatron's default",
        says="--use-torch-fsdp2 is not supported with gradient accumulation fusion",
        fix=says("--no-gradient-accumulation-fusion in the recipe"),
        broken=lambda x: x.flag("use-torch-fsdp2") is not None and _lacks(x, "no-gradient-accumulation-fusion"),
        blame=("--use-torch-fsdp2",),
    ),
    megatron_rule(
        id="megatron-torch-fsdp2-checkpoint",
        versions="Megatron-core 0.10 and later",
        source=f"{_FSDP_ARGUMENTS}:1008",
        about="PyTorch's FSDP2 has checkpoints of the formats torch_dist and torch_dcp",
        says="--use-torch-fsdp2 requires --ckpt-format torch_dist or torch_dcp",
        fix=says("--ckpt-format torch_dist in the recipe"),
        broken=lambda x: _format(x, "use-torch-fsdp2", "torch_dist", "torch_dcp"),
        blame=("--ckpt-format",),
    ),
    megatron_rule(
        id="megatron-fsdp-checkpoint",
        versions="Megatron-core 0.14 and later, where --use-megatron-fsdp is from",
        source=f"{_FSDP_ARGUMENTS}:1146",
        about="Megatron's FSDP has checkpoints of the format fsdp_dtensor, which is not the default",
        says="Megatron-FSDP requires the `fsdp_dtensor` checkpointing format.",
        fix=says("--ckpt-format fsdp_dtensor in the recipe"),
        broken=lambda x: _format(x, "use-megatron-fsdp", "fsdp_dtensor"),
        blame=("--ckpt-format", "--use-megatron-fsdp"),
    ),
    megatron_rule(
        id="megatron-fsdp-connections",
        versions="Megatron-core 0.12 and later",
        source=f"{_FSDP_ARGUMENTS}:1014; core_v0.14.0, the same file:635",
        about="FSDP needs more than one connection to a device",
        says="FSDP always requires CUDA_DEVICE_MAX_CONNECTIONS value large than one",
        fix=says("unset CUDA_DEVICE_MAX_CONNECTIONS"),
        remark="one-connection",
    ),
    megatron_rule(
        id="megatron-param-gather-optimizer",
        source=f"{MEGATRON_ARGUMENTS}:514",
        about="overlapped gathering of parameters needs the distributed optimizer",
        says="--overlap-param-gather only supported with distributed optimizer",
        fix=says("--use-distributed-optimizer in the recipe, or --option overlap_param_gather=false"),
        broken=lambda x: _gathers(x) and x.layout.zero_stage == 0,
        blame=("--overlap-param-gather",),
    ),
    megatron_rule(
        id="megatron-param-gather-reduce",
        versions=f"{MEGATRON}; older ones word it differently",
        source=f"{MEGATRON_ARGUMENTS}:516",
        about="overlapped gathering of parameters needs overlapped reduction of gradients",
        says="Must use --overlap-param-gather with --overlap-grad-reduce",
        fix=says("--overlap-grad-reduce in the recipe, or --option overlap_param_gather=false"),
        broken=lambda x: _gathers(x) and not x.scenario.framework.overlap_grad_reduce,
        blame=("--overlap-param-gather",),
    ),
    megatron_rule(
        id="megatron-positions",
        source=f"{MEGATRON_ARGUMENTS}:706",
        about="the longest position is at least the sequence length",
        says="assert args.max_position_embeddings >= args.seq_length",
        fix=lambda x: f"--max-position-embeddings {x.scenario.seq_length} in the recipe",
        broken=_short_positions,
        breach=_positions,
        blame=("--max-position-embeddings",),
    ),
    megatron_rule(
        id="megatron-optimizer-offload",
        versions="Megatron-core 0.12 and later",
        source=f"{MEGATRON_ARGUMENTS}:957",
        about="offloading the optimizer needs the precision-aware one",
        says="The optimizer cpu offload must be used in conjunction with `--use-precision-aware-optimizer`",
        fix=says("--use-precision-aware-optimizer in the recipe, or --offload none"),
        broken=lambda x: (
            x.layout.offload == "optimizer_tensorwise"
            and x.flag("optimizer-cpu-offload") is not None
            and _lacks(x, "use-precision-aware-optimizer")
        ),
        blame=("--optimizer-cpu-offload",),
    ),
    megatron_rule(
        id="megatron-dashes",
        source=f"{MEGATRON_ARGUMENTS}:73",
        about="flags are spelled with dashes",
        says="error: unrecognized arguments: ...",
        fix=_underscored_fix,
        broken=lambda x: _underscored(x) is not None,
        flag=_underscored,
    ),
)
"""Refusals that flags decide."""
