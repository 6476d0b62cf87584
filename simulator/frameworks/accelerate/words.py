"""Options of `accelerate launch` 1.15, and of its file (`words.csv`), translated into the words of a trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from simulator.frameworks.arguments import OFF, Arguments, LaunchCommand
from simulator.frameworks.configuration import configuration, need_written
from simulator.frameworks.flags import table_of
from simulator.frameworks.values import EMPTY, Cause, known_value

_FILE: Final = "config_file"
_ENGINE: Final = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "deepspeed_config_file": "deepspeed",
}  # keys of DeepSpeed's section, and the trainer's or DeepSpeed's own keys that they stand for
STRATEGIES: Final = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_SHARDS: Final = {str(number): name for number, name in enumerate(STRATEGIES, 1)} | {n: n for n in STRATEGIES}
"""FSDP strategies by name or number, as the trainer's `fsdp` spells them."""


def accelerate_words(arguments: Arguments, launch: LaunchCommand) -> Arguments:
    """Return the launcher's options merged with its file. Raises InputError where that is missing."""
    words = Arguments(arguments.file, table_of("accelerate"), complete=True)
    named = launch.options.get(_FILE)
    if named is not None and named.known:
        configured = configuration(launch, arguments.file, named.text, named.line)
        if configured is None:
            need_written(words, launch, named.text, "zero_stage")
        for key in configured.keys if configured else ():
            words.add(key.name, key.values, key.line, configured.file if configured else "")
    elif named is not None:
        words.need(named.causes, "zero_stage")
    for name, value in launch.options.items():
        # An option without a value holds its own name.
        switch = value.text.lstrip("-").replace("-", "_") == name
        words.entries.pop(name, None)
        words.add(name, [] if switch else [value], value.line or launch.line)
    return words


def cluster(arguments: Arguments, launch: LaunchCommand) -> tuple[int | None, int | None]:
    """Return machines and processes per machine; accelerate counts the processes of all machines together."""
    words = accelerate_words(arguments, launch)
    nodes = words.integer("nodes", "num_machines", high=2**20) or 1
    processes = words.integer("devices_per_node", "num_processes", low=-1, high=2**20)
    for option in words.incomplete & {"nodes", "devices_per_node"}:
        arguments.need(_causes(words), option)
    if "nodes" in words.incomplete or processes is None or processes < 1:
        return (None if "nodes" in words.incomplete else nodes), None
    for option, place in words.places.items():
        arguments.places[option] = place
    if processes % nodes:
        raise words.refusal(words.entry("num_processes"), f"{processes} processes on {nodes} machines")
    return nodes, processes // nodes


def _causes(words: Arguments) -> Iterable[Cause]:
    """Yield what the unknown values among the words depend on."""
    return (cause for entries in words.entries.values() for entry in entries for cause in entry.causes)


def take_named(arguments: Arguments) -> bool:
    """Take the configuration of `accelerate launch` that the user's setting `config_file` names, if it is set."""
    name = arguments.settings.get(_FILE)
    if name is None:
        return False
    arguments.used.add(_FILE)
    launch = LaunchCommand("accelerate", "accelerate", 1, EMPTY, (), {_FILE: known_value(name, 1)}, {})
    arguments.nodes, arguments.devices_per_node = cluster(arguments, launch)
    take_accelerate(arguments, launch)
    return True


def take_accelerate(arguments: Arguments, launch: LaunchCommand | None) -> None:
    """Add the options of `accelerate launch` as the trainer's words, except where the trainer has its own."""
    if launch is None or launch.launcher != "accelerate":
        return
    words = accelerate_words(arguments, launch)
    kind = (words.text("zero_stage", "distributed_type") or "").upper()
    engine = kind == "DEEPSPEED" or words.switch("zero_stage", "use_deepspeed")
    shards = kind == "FSDP" or words.switch("zero_stage", "use_fsdp")
    if kind in ("MEGATRON_LM", "XLA", "TPU") or words.switch("zero_stage", "use_megatron_lm"):
        arguments.not_modelled(f"accelerate with {kind or 'MEGATRON_LM'} is not modelled")
    precision = (words.text("precision", "mixed_precision") or "no").lower()
    if precision in ("bf16", "fp16") and not (arguments.has("bf16") or arguments.has("fp16")):
        _hand_over(arguments, words, "mixed_precision", precision, "true")
    elif precision == "fp8":
        arguments.not_modelled("mixed_precision fp8 of accelerate is not modelled")
    if engine:
        for name, own in [pair for pair in _ENGINE.items() if not arguments.has(pair[1])]:
            _hand_over(arguments, words, name, own)
        stage = ("zero_optimization.stage=2",)  # 6cb6eb8, utils/dataclasses.py, without a configuration of its own
        arguments.add_defaults(() if arguments.has("deepspeed") else stage, launch.line)
    elif shards:
        _take_fsdp(arguments, words)
    elif _FILE not in launch.options and kind == "" and not (arguments.has("deepspeed") or arguments.has("fsdp")):
        message = "the user's own configuration of accelerate may shard the state"
        arguments.remark("upper-bound", "warning", message, bound="sharding")
    for option in words.incomplete - {"nodes", "devices_per_node"}:
        arguments.need(_causes(words), option)
    words.remark_unread()
    arguments.remarks += words.remarks


def _take_fsdp(arguments: Arguments, words: Arguments) -> None:
    strategy = (words.text("zero_stage", "fsdp_sharding_strategy") or "").lower()
    again = (words.text("zero_stage", "fsdp_reshard_after_forward") or "true").lower()
    if not strategy:
        # FSDP 2 has no strategy, only whether weights are freed after the forward pass.
        strategy = again if again in _SHARDS else "shard_grad_op" if again in OFF else "full_shard"
    if strategy not in _SHARDS:
        arguments.not_modelled(f"fsdp_sharding_strategy {strategy[:30]} is not known")
    elif _SHARDS[strategy] == "no_shard":
        arguments.remark("upper-bound", "warning", "NO_SHARD is priced with the buckets of DistributedDataParallel")
    line = next(iter(words.places.values())).line if words.places else 1
    arguments.add_defaults((f"fsdp={_SHARDS.get(strategy, 'full_shard')}",), line)
    prefetch = ("backward_prefetch", "fsdp_backward_prefetch")
    for option, name in (("saves_on_host", "fsdp_state_dict_type"), ("flat_parameters", "fsdp_version"), prefetch):
        if words.text(option, name):
            _hand_over(arguments, words, name, name.replace("_", "_config.", 1))
    if words.switch("recompute", "fsdp_activation_checkpointing"):
        arguments.add("gradient_checkpointing", [known_value("true", 1)], line)


def _hand_over(arguments: Arguments, words: Arguments, name: str, own: str, text: str | None = None) -> None:
    """Add one of accelerate's words as a word of the trainer."""
    entry = words.entry(name)
    if entry is None or (text is None and entry.text.lower() == "auto"):
        return
    values = entry.values if text is None else (known_value(text, entry.value_line),)
    arguments.add(own, values, entry.place.line, entry.place.file)
