"""What a framework would say to a launch: its own refusals, with the words the user would meet.

A rule that a layout alone decides is written once, in `simulator.search.rules`; here it gets the framework's words. The
others look at what only a recipe knows: the script, the flags, the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from simulator.cost.operations.sums import total_parameters
from simulator.cost.pricing.violation import Violation
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.question.units import GIGA
from simulator.recipes.recipe import Place, Remark
from simulator.recipes.rules.launch import (
    MEGATRON,
    MEGATRON_ARGUMENTS,
    MEGATRON_CONFIG,
    FrameworkRule,
    LaunchFacts,
    megatron_rule,
    says,
)
from simulator.recipes.rules.megatron_start import MEGATRON_START_RULES


def findings(launch: LaunchFacts, violations: Iterable[Violation]) -> tuple[Remark, ...]:
    """Every refusal of a launch: those the layout's rules found, in the framework's words, and the framework's own."""
    framework = launch.scenario.framework.name
    known = {rule.layout_rule: rule for rule in FRAMEWORK_RULES if rule.framework == framework and rule.layout_rule}
    found: list[Remark] = []
    for violation in violations:
        rule = known.get(violation.rule)
        place = _place(launch, (*(rule.blame if rule else ()), *_BLAME.get(violation.rule, ())))
        lacking = _NOT_MODELLED.get((framework, violation.rule), says(""))(launch)
        if lacking:
            found.append(Remark("not-modelled", "error", lacking, place, violation.fix))
        elif rule is None:
            found.append(Remark(violation.rule.replace("_", "-"), "error", violation.message, place, violation.fix))
        else:
            more = "" if rule.says in violation.message else f"; the framework says: {rule.says}"
            message = f"{violation.message}{more}"
            found.append(Remark(rule.id, "error", message, place, rule.fix(launch), rule.source))
    remarks = {remark.rule: remark for remark in (launch.recipe.remarks if launch.recipe else ())}
    for rule in FRAMEWORK_RULES:
        if rule.framework != framework:
            continue
        if rule.remark in remarks:
            said = remarks[rule.remark]
            message = f"{said.message}; the framework says: {rule.says}"
            found.append(Remark(rule.id, "error", message, said.place, said.fix, rule.source))
        elif not rule.layout_rule and rule.broken(launch):
            message = f"{_breach(rule, launch)}; the framework says: {rule.says} ({rule.versions})"
            flag = rule.flag(launch)
            place = flag.place if flag else _place(launch, rule.blame)
            found.append(Remark(rule.id, "error", message, place, rule.fix(launch), rule.source))
    return tuple(found)


def _breach(rule: FrameworkRule, launch: LaunchFacts) -> str:
    """What breaks a rule: the numbers, or the flag at fault as the recipe has it with what it goes against."""
    flags = (launch.flag(name[2:]) for name in rule.blame if name.startswith("--"))
    flag = rule.flag(launch) or next((flag for flag in flags if flag is not None), None)
    shown = "" if flag is None else f"--{flag.spelled} {flag.text}".rstrip()[:80] + ": "
    return rule.breach(launch) or f"{shown}{rule.about}"


def _place(launch: LaunchFacts, settings: Iterable[str]) -> Place | None:
    for name in settings:
        if name.startswith("--"):
            flag = launch.flag(name[2:])
            if flag is not None:
                return flag.place
        elif launch.recipe is not None and name in launch.recipe.places:
            return launch.recipe.places[name]
    return None


_BLAME: dict[str, tuple[str, ...]] = {
    "devices": ("nodes", "dp", "tp", "pp"),
    "heads": ("tp", "model"),
    "kv_heads": ("tp", "model"),
    "ffn": ("tp", "etp"),
    "vocabulary": ("tp",),
    "layers": ("stage_layers", "pp"),
    "node_groups": ("pp", "nodes"),
    "virtual_stages": ("layers_per_virtual_stage", "vpp", "pp"),
    "batch": ("global_batch_size", "micro_batch_size"),
    "sequence": ("seq_length", "cp"),
    "context_heads": ("cp", "tp"),
    "experts": ("ep", "etp"),
    "sequence_parallel": ("sequence_parallel", "tp"),
    "zero_stage": ("zero_stage", "pp"),
    "sharding_groups": ("sharding_degree", "zero_stage"),
    "parameters_on_host": ("offload_parameters", "zero_stage"),
    "offload_pipeline": ("offload", "pp"),
    "offload_recompute": ("offload", "recompute"),
    "two_stages": ("layers_per_virtual_stage", "vpp", "pp"),
    "recompute_layers": ("recompute_layers", "recompute"),
}
"""Settings that decide a layout rule."""


_WHOLE_KEY_VALUES = {"llama": "LLaMA", "gemma": "Gemma", "glm": "ChatGLM2"}
"""Networks of PaddleNLP 2.8.1 that keep key-value heads whole where they do not divide: llama/modeling.py:692, alike
gemma/modeling.py and chatglm_v2/modeling.py, which never splits them."""


def _whole_key_values(launch: LaunchFacts) -> str:
    """Key-value heads that a network of Paddle's keeps whole on every rank, with a warning; empty for another."""
    name = _keeping_whole(launch.scenario, launch.layout)
    said = f"Paddle's {name} keeps key-value heads that do not divide whole on every rank: that is not modelled"
    return said if name else ""


def _keeping_whole(scenario: Scenario, layout: Layout) -> str:
    """The network of Paddle's that keeps all key-value heads on every rank of a layout; empty where none does."""
    model, size = scenario.model, layout.tensor_parallel
    split = model.num_key_value_heads % size == 0 or model.num_attention_heads % size
    return "" if scenario.framework.name != "paddle" or split else _WHOLE_KEY_VALUES.get(model.architecture, "")


def held_key_value_heads(scenario: Scenario, layout: Layout) -> tuple[int, str]:
    """Key-value heads that all tensor-parallel ranks hold together, and the network that keeps them whole on each.

    Zero and nothing where they are split, or where a rank would hold more of them than query heads.
    """
    held = scenario.model.num_key_value_heads * layout.tensor_parallel
    name = _keeping_whole(scenario, layout)
    return (held, name) if name and scenario.model.num_attention_heads % held == 0 else (0, "")


_NOT_MODELLED: dict[tuple[str, str], Callable[[LaunchFacts], str]] = {
    ("megatron", "zero_stage"): says("Megatron's FSDP shards gradients or parameters too: that is not modelled"),
    ("paddle", "kv_heads"): _whole_key_values,
}
"""Layout rules that say what the simulator lacks, not what the framework does; empty text where it does."""


def other_heads(model: ModelSpec, tensor_parallel: int) -> tuple[int, int] | None:
    """The nearest heads and key-value heads that tensor parallelism can split, at the same hidden size."""
    shared = -(-model.num_key_value_heads // tensor_parallel) * tensor_parallel
    fitting = [n for n in range(shared, 4 * model.num_attention_heads + 1, shared) if model.hidden_size % n == 0]
    if model.attention == "mla" or not fitting:
        return None
    return min(fitting, key=lambda n: (abs(n - model.num_attention_heads), n)), shared


def _heads_fix(launch: LaunchFacts) -> str:
    model, size = launch.scenario.model, launch.layout.tensor_parallel
    limit = min(model.num_attention_heads, model.num_key_value_heads)
    fits = [d for d in range(1, limit + 1) if model.num_attention_heads % d == 0 and model.num_key_value_heads % d == 0]
    text = f"--tp {max(fits)}"
    other = other_heads(model, size)
    if other is None:
        return text
    heads, shared = other
    fields = f"--model-field num_attention_heads={heads} --model-field num_key_value_heads={shared}"
    changed = model.model_copy(
        update={
            "num_attention_heads": heads,
            "num_key_value_heads": shared,
            "head_dim": model.hidden_size // heads if _even(model) else model.head_dim,
        }
    )
    counts = f"{total_parameters(model) / GIGA:.2f}B -> {total_parameters(changed) / GIGA:.2f}B parameters"
    return (
        f"{text}; or another model with heads {heads}/{shared} ({fields}): head_dim {model.head_dim} -> "
        f"{changed.head_dim}, {counts}, and the published weights no longer match"
    )


def _even(model: ModelSpec) -> bool:
    return model.head_dim * model.num_attention_heads == model.hidden_size


def _divisible_chunks(launch: LaunchFacts) -> str:
    cut = launch.layout.stage_layers
    if launch.layout.pipeline_parallel < 2:
        return "--vpp 1: chunks need a pipeline"
    if len(set(cut)) != 1:
        return "--vpp 1, or a pipeline size that divides the layers"
    sizes = ", ".join(str(d) for d in range(1, cut[0]) if cut[0] % d == 0)
    pipeline = launch.layout.pipeline_parallel
    return f"--layers-per-virtual-stage {sizes}, and micro batches of a step that are a multiple of {pipeline}"


def _explicit(launch: LaunchFacts, switch: str) -> bool:
    """Whether the recipe itself turns a switch on."""
    return launch.recipe is not None and launch.recipe.options.get(switch, "").lower() in ("true", "1", "on", "yes")


def _te_checkpoint(launch: LaunchFacts) -> bool:
    return launch.layout.recompute == "full" and {"llama3.1-example", "megatron-240718"} <= launch.marks


_PADDLE = "PaddleNLP 2.6 to 3, PaddleFormers, ERNIEKit"
UNEVEN_STAGES: dict[str, str] = {
    "paddle": (
        "; Paddle 2 and early 3.0 that cut by layer stop with 'number of layers ({layers}) should be divided by part "
        "number({stages})', later versions warn and cut unevenly (pp_seg_method with a list works in all)"
    )
}
"""What a framework does with layers that do not divide over the stages, by its versions."""

_paddle_rule = partial(FrameworkRule, framework="paddle", versions=_PADDLE)
_torch_rule = partial(FrameworkRule, framework="torch", versions="torchtitan 0.1 and later")

READER_RULES = frozenset({"one-connection", "partial-send-recv"})
"""Remarks of readers that a rule here says in the framework's words."""

FRAMEWORK_RULES: tuple[FrameworkRule, ...] = (
    *MEGATRON_START_RULES,
    megatron_rule(
        id="megatron-offload-pipeline",
        versions=f"{MEGATRON}; met in measured rows 15 and 22",
        source=f"{MEGATRON_CONFIG}:676",
        about="activation offloading does not work with a pipeline",
        says="Currently there is no support for Pipeline parallelism with CPU offloading",
        fix=says("--pp 1, or --recompute full instead of the offload"),
        layout_rule="offload_pipeline",
        blame=("offload",),
    ),
    megatron_rule(
        id="megatron-offload-recompute",
        source=f"{MEGATRON_CONFIG}:681",
        about="activation offloading does not work with recomputation",
        says="CPU offloading does not work when activation recomputation is enabled",
        fix=says("--recompute none, or --offload none"),
        layout_rule="offload_recompute",
        blame=("offload", "recompute"),
    ),
    megatron_rule(
        id="megatron-virtual-stages",
        versions=f"{MEGATRON}; met in measured row 25",
        source=f"{MEGATRON_ARGUMENTS}:472",
        about="layers of a stage divide by layers of a virtual stage, micro batches by pipeline ranks",
        says="number of layers per pipeline stage must be divisible number of layers per virtual pipeline stage",
        fix=_divisible_chunks,
        layout_rule="virtual_stages",
    ),
    megatron_rule(
        id="megatron-overlap-virtual-stages",
        source=f"{MEGATRON_ARGUMENTS}:450",
        about="interleaving without overlapped point-to-point exchange needs more than two stages",
        says=(
            "when interleaved schedule is used and p2p communication overlap is disabled, pipeline-model-parallel size "
            "should be greater than 2"
        ),
        fix=says("--vpp 1, --pp 4, or leave the exchange overlapped"),
        layout_rule="two_stages",
    ),
    megatron_rule(
        id="pai-te-checkpoint",
        versions="Pai-Megatron-Patch examples/llama3_1 on Megatron-LM 240718; met in measured rows 14, 45 and 48",
        source="met in rows 14, 45 and 48 of the measured table z2000-megatron",
        about="full recompute fails in the Llama 3.1 example of this snapshot (the Qwen 2.5 example runs it)",
        says="TypeError: te_checkpoint() missing 1 required positional argument",
        fix=says("--recompute none with more --cp or --tp, or a newer Megatron-LM"),
        broken=_te_checkpoint,
        blame=("recompute",),
    ),
    megatron_rule(
        id="megatron-tp-overlap",
        source=f"{MEGATRON_ARGUMENTS}:774",
        about="overlapped tensor-parallel collectives need sequence parallelism",
        says="Tensor parallel communication/GEMM overlap can happen only when sequence parallelism is enabled",
        fix=says("--sequence-parallel, or --option tp_comm_overlap=false"),
        broken=lambda x: (
            _explicit(x, "tp_comm_overlap") and not x.layout.sequence_parallel and x.layout.tensor_parallel > 1
        ),
        blame=("tp_comm_overlap", "sequence_parallel", "tp"),
    ),
    megatron_rule(
        id="megatron-heads",
        source=f"{MEGATRON_CONFIG}:561",
        about="attention heads divide by tensor parallel",
        says="... is not divisible by ...",
        fix=_heads_fix,
        layout_rule="heads",
    ),
    megatron_rule(
        id="megatron-kv-heads",
        # Before 0.16 a multiple only: a launch on an older core with fewer groups than ranks stops.
        versions="Megatron-core 0.16 and later",
        source="Megatron-LM core_v0.16.1, megatron/core/transformer/transformer_config.py:940",
        about="query groups divide by tensor parallel, or it by them",
        says="num_query_groups (...) must be a multiple or divisor of tensor_model_parallel_size (...)",
        fix=_heads_fix,
        layout_rule="kv_heads",
    ),
    megatron_rule(
        id="megatron-batch",
        source="Megatron-LM core_r0.12.0, megatron/core/num_microbatches_calculator.py:341",
        about="the global batch divides by micro batch x data parallel",
        says="global batch size (...) is not divisible by micro batch size (...) times data parallel size (...)",
        fix=lambda x: f"a global batch that is a multiple of {x.layout.micro_batch_size * x.layout.data_parallel}",
        layout_rule="batch",
    ),
    megatron_rule(
        id="megatron-expert-sequence-parallel",
        source="Megatron-LM core_r0.12.0, megatron/core/transformer/moe/moe_layer.py:137",
        about="experts with tensor parallelism need sequence parallelism",
        says="When using MoE and tensor parallelism, sequence parallelism must be used.",
        fix=says("--sequence-parallel"),
        layout_rule="sequence_parallel",
    ),
    _paddle_rule(
        id="paddle-sharding-pipeline",
        source="paddlenlp 2.8.1, paddlenlp/trainer/training_args.py:980",
        about="beside a pipeline Paddle shards the optimizer state only",
        says="pipeline parallel is not compatible for sharding stage2 or stage3, please using sharding stage1",
        fix=says("--zero-stage 1, or --pp 1"),
        layout_rule="zero_stage",
    ),
    _paddle_rule(
        id="paddle-heads",
        versions=f"{_PADDLE}; ERNIE-4.5-21B-A3B has heads 20/4",
        source="paddlenlp 2.8.1, paddlenlp/transformers/llama/modeling.py:680",
        about="attention heads divide by tensor parallel",
        says="num_heads: ..., tensor_parallel_degree: ...",
        fix=_heads_fix,
        layout_rule="heads",
    ),
    _paddle_rule(
        id="paddle-kv-heads",
        versions=f"{_PADDLE}; ERNIE-4.5-21B-A3B has heads 20/4",
        source="paddlenlp 2.8.1, paddlenlp/transformers/mixtral/modeling.py:584",
        about="key-value heads divide by tensor parallel",
        says="num_key_value_heads: ..., tensor_parallel_degree: ...",
        fix=_heads_fix,
        layout_rule="kv_heads",
    ),
    _paddle_rule(
        id="paddle-vocabulary",
        source="paddlenlp 2.8.1, paddlenlp/ops/distributed/parallel.py:81",
        about="the vocabulary divides by tensor parallel",
        says="The length of the vocabulary must be divisible by the parallelism degree of MP",
        fix=says("a smaller --tp, or --model-field vocab_size=N"),
        layout_rule="vocabulary",
    ),
    _paddle_rule(
        id="paddle-partial-send-recv",
        source="PaddleNLP 4596ac3, llm/alignment/kto/run_kto.py:72; ERNIE 01d6181, erniekit/train/sft/workflow.py:158",
        about="ERNIEKit, DPO and KTO need disable_partial_send_recv for sequence parallelism in a pipeline",
        says="Should set '--pipeline_parallel_config disable_partial_send_recv' in bash script for pp with sp.",
        fix=says(
            '--pipeline_parallel_config "disable_partial_send_recv"; newer configurations: partial_send_recv: false'
        ),
        remark="partial-send-recv",
    ),
    _torch_rule(
        id="torch-heads",
        source="torchtitan v0.1.0, torchtitan/models/llama3/model/model.py:178",
        about="attention heads divide by tensor parallel",
        says="shape '...' is invalid for input of size ...",
        fix=_heads_fix,
        layout_rule="heads",
    ),
    _torch_rule(
        id="torch-kv-heads",
        source="torchtitan v0.1.0, torchtitan/models/llama3/model/model.py:179",
        about="key-value heads divide by tensor parallel",
        says="shape '...' is invalid for input of size ...",
        fix=_heads_fix,
        layout_rule="kv_heads",
    ),
    _torch_rule(
        id="torch-batch",
        source="torchtitan v0.1.0, torchtitan/train.py:201",
        about="the global batch divides by local batch x data parallel",
        says="global batch size must be multiple of local batch size times data-parallel degree (...)",
        fix=lambda x: f"a global batch that is a multiple of {x.layout.micro_batch_size * x.layout.data_parallel}",
        layout_rule="batch",
    ),
)
"""By framework; those with a `layout_rule` are also what a ranking drops."""
