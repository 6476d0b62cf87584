"""A recipe and the user's options as a question that can be priced, or the reasons why it cannot. Prices nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from simulator.cluster import cluster
from simulator.errors import InputError
from simulator.frameworks.home import asking
from simulator.frameworks.run import A_NODE
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.frameworks.releases import usual_profile
from simulator.question.scenario.complete import Wording, named, resolve
from simulator.question.scenario.inputs import DEFAULT_WORKLOAD
from simulator.question.scenario.layout import BY_NAME, FIELDS, SETTINGS, Layout, default_cut, pipeline_shape
from simulator.question.scenario.scenario import Cluster, Scenario, scenario_on
from simulator.question.scenario.settings import InputSetting
from simulator.question.specs.model import ModelSpec
from simulator.recipes.check.asked import Asked
from simulator.recipes.check.model import ContradictionError, needs_vocabulary, recipe_model
from simulator.recipes.recipe import Recipe, Remark, Unknown
from simulator.recipes.rules.frameworks import replicated_key_value_heads, uneven_stages
from simulator.recipes.rules.launch import LaunchFacts, Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recipe as a question that can be priced."""

    recipe: Recipe
    asked: Asked
    model: ModelSpec
    """Model as in the recipe; the scenario's counts the key-value heads of all the layout's ranks."""
    scenario: Scenario
    layout: Layout
    remarks: tuple[Remark, ...] = ()
    """Remarks of the recipe's reader and of this module."""

    def launch(self, marks: frozenset[Mark]) -> LaunchFacts:
        """Return the facts that the framework's rules refer to."""
        replaced = frozenset(self.asked.layout)
        return LaunchFacts(
            scenario=self.scenario, layout=self.layout, recipe=self.recipe, marks=marks, replaced=replaced
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A recipe that cannot be priced, with every reason."""

    recipe: Recipe
    missing: tuple[Remark, ...]
    """Missing values, each with the option that sets it."""
    remarks: tuple[Remark, ...] = ()


class OtherHardwareError(InputError):
    """A recipe starts more processes on a node than the hardware has devices."""

    settings = ("devices_per_node", "nodes")


def case_of(recipe: Recipe, asked: Asked, like: Case | None = None) -> Case | Blocked:
    """Return the question that a recipe asks.

    `like` is a case of the same recipe, model and hardware, whose model and cluster are reused. Raises InputError for
    contradictions (a cluster that the degrees do not fill) and UnsupportedError for what cannot be priced.
    """
    if like is None:
        model, remarks = recipe_model(recipe, asked.model, asked.model_fields, asked.num_layers)
    else:
        model, remarks = like.model, ()
    joint = _Joint(recipe, asked)
    missing = tuple(_missing(joint, model)) if like is None else ()
    base = joint.layout
    if missing or model is None or base is None:
        return Blocked(recipe=recipe, missing=missing, remarks=recipe.remarks)
    machines = _cluster(joint, like, model)
    base, more = _as_launched(joint, _with_experts(joint, base, model))
    framework = asked.framework or recipe.framework
    stated = {name: joint.value(name) for name in DEFAULT_WORKLOAD}
    workload = {name: plain if stated[name] is None else stated[name] for name, plain in DEFAULT_WORKLOAD.items()}
    profile = _profile(joint, framework, machines, _options(joint, base, machines), model, workload["precision"])
    steps = None if stated["global_batch_size"] else recipe.gradient_accumulation_steps or 1
    scenario, layout = resolve(
        scenario_on(machines, model, profile, **workload),
        _fields(joint, base),
        _words(recipe),
        accumulation_steps=steps,
    )
    if layout.chunk_layers and not base.chunk_layers and not recipe.is_question:
        # Only its flags cut a launch's layers.
        cut = default_cut(scenario.model.num_hidden_layers, layout.pipeline_parallel)
        layout = replace(layout, stage_layers=cut, chunk_layers=())
    layout, unsharded = _as_sharded(joint, _with_virtual_stages(joint, layout))
    scenario, whole = _with_whole_heads(scenario, layout)
    remarks = (*recipe.remarks, *remarks, *more, *unsharded, *whole, *_notes(joint, scenario, layout))
    return Case(recipe=recipe, asked=asked, model=model, scenario=scenario, layout=layout, remarks=tuple(remarks))


def _profile(  # noqa: PLR0913, PLR0917  what decides it
    joint: _Joint, framework: str, machines: Cluster, options: Mapping[str, str], model: ModelSpec, precision: str
) -> FrameworkProfile:
    """Return the framework's profile: a launch has the framework's defaults, a question the cluster's usual stack."""
    stack, question = joint.asked.stack or joint.recipe.stack, joint.recipe.is_question
    case = model.name, machines.hardware.name if question and not machines.groups else "", precision
    return usual_profile(framework, options, stack, machines.stacks if question else (), case, machines.hardware.family)


def _with_whole_heads(scenario: Scenario, layout: Layout) -> tuple[Scenario, tuple[Remark, ...]]:
    """Return the question with the key-value heads of all ranks, where a network keeps them whole on each."""
    heads, name = replicated_key_value_heads(scenario, layout)
    if not heads:
        return scenario, ()
    shared = scenario.model.num_key_value_heads
    message = (
        f"{shared} key-value heads do not divide by tensor parallel {layout.tensor_parallel}: Paddle's {name} keeps "
        f"them whole on every rank, {heads} in all"
    )
    model = scenario.model.model_copy(update={"num_key_value_heads": heads})
    return replace(scenario, model=model), (Remark("whole-key-values", "note", message),)


@dataclass(frozen=True)
class _Joint:
    """Settings of recipe and user together; the user's take precedence."""

    recipe: Recipe
    asked: Asked

    def value(self, name: str) -> Any:
        """Return a setting that both have under the same name."""
        own = getattr(self.asked, name)
        return getattr(self.recipe, name) if own is None else own

    @cached_property
    def layout(self) -> Layout | None:
        """The recipe's layout with the user's fields, before data parallelism and the cut are resolved."""
        base = self.recipe.layout
        if base is None:
            return None
        changes = named(self.asked.layout)
        changes.pop("layers_per_virtual_stage", None)
        return replace(base, **_consistent(self.recipe, base, changes))


def _consistent(recipe: Recipe, base: Layout, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's fields with those that follow from them in a launch script."""
    fields = dict(changes)
    if "stage_layers" in fields:
        fields.setdefault("pipeline_parallel", len(fields["stage_layers"]))
    tensor = fields.get("tensor_parallel", base.tensor_parallel)
    if tensor != base.tensor_parallel:
        fields.setdefault("sequence_parallel", tensor > 1 and (base.sequence_parallel or base.tensor_parallel == 1))
        # Paddle's expert group is the tensor-parallel group (moe_group mp).
        if recipe.framework == "paddle" and base.expert_parallel == base.tensor_parallel > 1:
            fields.setdefault("expert_parallel", tensor)
        elif base.expert_tensor_parallel == base.tensor_parallel > 1:
            fields.setdefault("expert_tensor_parallel", tensor)
    pipeline = fields.get("pipeline_parallel", base.pipeline_parallel)
    _recut(base, fields, pipeline)
    if pipeline == 1 and base.virtual_stages > 1:
        fields |= {"virtual_stages": 1, "schedule": BY_NAME["schedule"].default} | fields
    elif "schedule" in fields and pipeline_shape(fields["schedule"], 2, 2) == "there_and_back":
        fields.setdefault("virtual_stages", 2)
    if fields.get("recompute_method", "list") != "list":
        fields.setdefault("recompute_layer_list", ())
    if fields.get("recompute", "full") != "full":
        fields |= {"recompute_method": "uniform", "recompute_layers": 1, "recompute_layer_list": ()}
    if fields.get("recompute", "selective") != "selective":
        fields["recompute_modules"] = BY_NAME["recompute_modules"].default
    return fields


def _recut(base: Layout, fields: dict[str, Any], pipeline: int) -> None:
    """Drop the recipe's cut where the user sets another, or sizes that do not match it."""
    if pipeline != base.pipeline_parallel and "stage_layers" not in fields:
        fields["stage_layers"] = ()
    if "chunk_layers" in fields:
        fields.setdefault("stage_layers", ())
        fields.setdefault("virtual_stages", max(len(fields["chunk_layers"]) // pipeline, 1))
    elif base.chunk_layers and fields.keys() & {"pipeline_parallel", "virtual_stages", "stage_layers"}:
        fields["chunk_layers"] = ()
        fields.setdefault("stage_layers", ())


def _missing(joint: _Joint, model: ModelSpec | None) -> Iterator[Remark]:
    """Yield every value that must be set before the recipe can be priced."""
    sized = bool(joint.asked.nodes or joint.asked.devices or ":" in joint.asked.hardware)
    open_settings: set[str] = set()
    for unknown in joint.recipe.unknowns:
        needing = [name for name in unknown.affects if not _settled(joint, name, sized=sized)]
        if needing:
            open_settings |= set(needing)
            yield _unknown_value(unknown, needing)
    for name, absent, message, fix, known_by in _absences(joint, model):
        if absent and not open_settings & known_by:
            yield Remark(rule=f"unknown-{name}", severity="error", message=message, fix=fix)


def _unknown_value(unknown: Unknown, needing: list[str]) -> Remark:
    name = f"${unknown.name}" if unknown.name.isdigit() or unknown.name in ("@", "*") else unknown.name
    names = ", ".join(setting.replace("_", " ") for setting in needing)
    return Remark(
        rule="unknown-value",
        severity="error",
        message=f"{name} is not known before the launch; it decides {names}",
        place=unknown.place,
        fix=asking(unknown.name),
    )


_Absence = tuple[str, bool, str, str, frozenset[str]]


def _absences(joint: _Joint, model: ModelSpec | None) -> tuple[_Absence, ...]:
    """Return what a question needs: (name, whether absent, message, fix, settings that would supply it)."""
    recipe = joint.recipe
    batch = joint.value("global_batch_size") is None and recipe.gradient_accumulation_steps is None
    reason = "the recipe does not say"
    bare = model is None and joint.asked.model is None and needs_vocabulary(recipe, joint.asked.model_fields)
    no_model = ("the recipe names no model that is known", "--model NAME")
    if bare:
        no_model = ("the vocabulary is missing: the recipe gives every other size", "--model-field vocab_size=N")
    return (
        ("vocabulary" if bare else "model", model is None, *no_model, _MODEL_SETTINGS),
        ("layout", joint.layout is None, f"{reason} how it is spread", "--set NAME=VALUE", LAYOUT_SETTINGS),
        (
            "seq-length",
            joint.value("seq_length") is None,
            f"{reason} how long a sequence is",
            "--seq-length N",
            _SEQUENCE,
        ),
        ("precision", joint.value("precision") is None, f"{reason} its precision", "--precision bf16", _PRECISION),
        ("global-batch-size", batch, f"{reason} how large a step is", "--global-batch-size N", _BATCH),
    )


CLUSTER_SETTINGS = frozenset({"nodes", "devices", "devices_per_node", "dp"})
LAYOUT_SETTINGS = frozenset(setting.key for setting in SETTINGS) - CLUSTER_SETTINGS
"""Settings without which a recipe's reader returns no layout; only `--set` supplies them."""
_MODEL_SETTINGS = frozenset({"model", "tokenizer", *ModelSpec.model_fields})
_SEQUENCE = frozenset({"seq_length"})
_PRECISION = frozenset({"precision"})
_BATCH = frozenset({"global_batch_size", "gradient_accumulation_steps", "micro_batch_size"})


def _settled(joint: _Joint, name: str, *, sized: bool) -> bool:
    """Whether a setting that the recipe leaves open is set by the user, or does not matter."""
    asked = joint.asked
    if name == "launch":
        return True
    if name in CLUSTER_SETTINGS:
        return sized
    if name in LAYOUT_SETTINGS:
        return joint.recipe.layout is not None and BY_NAME[name].name in named(asked.layout)
    if name in _MODEL_SETTINGS:
        own = "vocab_size" if name == "tokenizer" else name
        return asked.model is not None or own in asked.model_fields
    if name in ("global_batch_size", "gradient_accumulation_steps"):
        return asked.global_batch_size is not None
    return name in asked.options or getattr(asked, name, None) is not None


def _size(joint: _Joint) -> int | None:
    """Return the nodes of the recipe's launch, else the devices that its degrees state; None without either."""
    recipe = joint.recipe
    if recipe.nodes is not None or recipe.layout is None or "dp" not in recipe.places:
        return recipe.nodes
    return recipe.layout.devices


def _cluster(joint: _Joint, like: Case | None, model: ModelSpec) -> Cluster:
    """Return the machines: the user's, else the recipe's nodes, else the fewest nodes that its degrees fill."""
    recipe, asked = joint.recipe, joint.asked
    if like is not None:
        return _resized(joint, like)
    degrees = None if asked.nodes or recipe.nodes is not None else _size(joint)
    if degrees is not None and ":" not in asked.hardware and asked.devices is None:
        machines = cluster(asked.hardware, None, degrees, asked.calibration)
    elif ":" in asked.hardware or asked.devices is not None:
        machines = cluster(asked.hardware, asked.nodes, asked.devices, asked.calibration)
    else:
        spec = cluster(asked.hardware, None, None, asked.calibration).hardware
        per_node = recipe.devices_per_node or spec.devices_per_node
        if per_node > spec.devices_per_node:
            raise OtherHardwareError(
                f"{recipe.file}: the recipe starts {per_node} processes on a node; "
                f"{spec.name} has {spec.devices_per_node} devices (--hardware NAME)",
            )
        nodes = asked.nodes or recipe.nodes or _fewest_nodes(joint.layout, model, per_node)
        machines = cluster(asked.hardware, None, nodes * per_node, asked.calibration)
    return machines


def _fewest_nodes(layout: Layout | None, model: ModelSpec, per_node: int) -> int:
    """Return the fewest whole nodes that the degrees fill; 1 where none do."""
    if layout is None:
        return 1
    replica = layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel
    experts = layout.expert_parallel * layout.expert_tensor_parallel if model.is_moe else 1

    def filled(nodes: int) -> bool:
        devices = nodes * per_node
        return devices % replica == 0 and devices // layout.pipeline_parallel % experts == 0

    return next((nodes for nodes in range(1, _MOST_ASSUMED + 1) if filled(nodes)), 1)


_MOST_ASSUMED = 1024
"""Most nodes that are assumed where none are stated."""


def _resized(joint: _Joint, like: Case) -> Cluster:
    """Return the machines of a case with the user's present number of nodes."""
    scenario, asked = like.scenario, joint.asked
    devices = scenario.devices
    if asked.nodes is not None and asked.nodes != like.asked.nodes:
        devices = asked.nodes * (joint.recipe.devices_per_node or scenario.hardware.devices_per_node)
    return Cluster(
        hardware=scenario.hardware,
        devices=devices,
        groups=scenario.groups,
        coefficients=scenario.coefficients,
        calibration=scenario.calibration,
        stacks=(scenario.framework.stack,),
    )


def _with_experts(joint: _Joint, layout: Layout, model: ModelSpec) -> Layout:
    """Return the layout with Megatron's default: experts are split like the other layers, unless a flag decides.

    Without experts their tensor parallel size makes groups that nothing uses (initialize_model_parallel in
    megatron/core/parallel_state.py of core_r0.12.0); an expert parallel size is refused.
    """
    recipe = joint.recipe
    if recipe.framework == "megatron" and not recipe.is_question and not model.is_moe:
        own = named(joint.asked.layout).get("expert_tensor_parallel", 1)
        return replace(layout, expert_tensor_parallel=own)
    own = recipe.model is not None or "num_experts" in recipe.model_fields
    fixed = own or "etp" in recipe.places or "expert_tensor_parallel" in named(joint.asked.layout)
    if recipe.framework != "megatron" or recipe.dialect == "estimate" or fixed or not model.is_moe:
        return layout
    return replace(layout, expert_tensor_parallel=layout.tensor_parallel)


def _as_launched(joint: _Joint, layout: Layout) -> tuple[Layout, list[Remark]]:
    """Return the layout without sequence parallelism where nothing is tensor parallel, as frameworks do."""
    if not layout.sequence_parallel or layout.tensor_parallel > 1:
        return layout, []
    remark = Remark(
        rule="sequence-parallel-off",
        severity="note",
        message="sequence parallelism with tensor parallel 1: the framework switches it off",
        place=joint.recipe.places.get("sequence_parallel"),
    )
    return replace(layout, sequence_parallel=False), [remark]


def _as_sharded(joint: _Joint, layout: Layout) -> tuple[Layout, list[Remark]]:
    """Return the layout without sharding over one rank, as in Paddle (training_args.py:922 of paddlenlp 2.8.1)."""
    alone = layout.data_parallel * layout.context_parallel == 1
    # Stage 1 over one replica changes nothing; only higher stages would be refused beside a pipeline.
    if layout.zero_stage < 2 or not alone or joint.recipe.framework != "paddle":
        return layout, []
    remark = Remark(
        rule="sharding-off",
        severity="note",
        message=f"ZeRO stage {layout.zero_stage} on one replica: the framework switches it off",
        place=joint.recipe.places.get("zero_stage"),
    )
    return replace(layout, zero_stage=0), [remark]


def _fields(joint: _Joint, layout: Layout) -> dict[str, Any]:
    """Return the layout's fields; data parallel only where user or recipe fix it for these devices."""
    fields = {field.name: getattr(layout, field.name) for field in FIELDS}
    fields["data_parallel"] = named(joint.asked.layout).get("data_parallel")
    if fields["data_parallel"] is None and "dp" in joint.recipe.places and joint.recipe.layout is not None:
        fields["data_parallel"] = joint.recipe.layout.data_parallel if _same_cluster(joint) else None
    return fields


def _words(recipe: Recipe) -> Wording:
    """Return the wording of errors: the recipe's file in front, and which sizes to change."""

    def refusal(message: str, *keys: str) -> InputError:
        if keys[:1] == ("tp",):
            message += "; change a degree (--pp N) or the cluster (--nodes N)"
        sizes = _SIZES if "tp" in keys else ("pp",)
        return ContradictionError(message, *dict.fromkeys((*(key for key in keys if key not in _SIZES), *sizes)))

    def said(setting: InputSetting) -> str:
        return "the cut" if setting.key == "stage_layers" else setting.key

    return Wording(spell=said, where=f"{recipe.file}: ", refusal=refusal)


_SIZES = ("pp", "tp", "cp", "devices_per_node", "nodes")
"""Settings that make up the sizes of layout and cluster, the most likely first."""


def _same_cluster(joint: _Joint) -> bool:
    asked = joint.asked
    return asked.nodes is None and asked.devices is None and ":" not in asked.hardware and not asked.layout


def _with_virtual_stages(joint: _Joint, layout: Layout) -> Layout:
    """Return a layout with its chunks per rank; of layers that do not divide, a number that their rule refuses."""
    asked, cut = named(joint.asked.layout), layout.stage_layers
    chunk = asked.get("layers_per_virtual_stage")
    if chunk is None and "virtual_stages" not in asked:
        chunk = joint.recipe.virtual_stage_layers
    if chunk is None or layout.pipeline_parallel == 1:
        return layout
    count = max(-(-max(cut) // int(chunk)), 1)
    if any(layers % chunk for layers in cut):
        while max(cut) % count == 0:
            count += 1
    return replace(layout, virtual_stages=count)


def _options(joint: _Joint, layout: Layout, machines: Cluster) -> dict[str, str]:
    """Return the switches of recipe and user, without those that have no effect on the layout."""
    options = dict(joint.recipe.options)
    if options.get("sharding_degree") == A_NODE:
        options["sharding_degree"] = str(joint.recipe.devices_per_node or machines.hardware.devices_per_node)
    if layout.tensor_parallel == 1:
        options.pop("tp_comm_overlap", None)
    return options | dict(joint.asked.options)


HARDWARE_ASSUMED = "hardware-assumed"
"""Rule of the remark that no hardware was named."""
NODES_ASSUMED = "nodes-assumed"
"""Rule of the remark that no number of nodes is stated."""


def _assumed_machines(joint: _Joint, scenario: Scenario) -> Iterator[Remark]:
    """Yield remarks on nodes, and devices per node, that are not stated."""
    recipe, asked = joint.recipe, joint.asked
    if asked.devices is not None or ":" in asked.hardware:
        return
    per_node = recipe.devices_per_node or scenario.hardware.devices_per_node
    nodes = scenario.devices // per_node
    if not asked.nodes and _size(joint) is None:
        shown = "one node is assumed" if nodes == 1 else f"{nodes} nodes are assumed, the fewest that its degrees fill"
        text = f"the recipe does not say how many nodes run it: {shown}"
        yield Remark(rule=NODES_ASSUMED, severity="note", message=text, fix="--nodes N")
    if recipe.devices_per_node is None and scenario.devices == nodes * per_node:
        text = f"the recipe does not say on how many devices of a node it starts: all {per_node} are taken"
        yield Remark(rule="devices-assumed", severity="note", message=text, fix="--devices N")


def _notes(joint: _Joint, scenario: Scenario, layout: Layout) -> Iterator[Remark]:
    """Yield remarks on the assumptions of the answer."""
    if joint.asked.hardware_assumed:
        yield Remark(
            rule=HARDWARE_ASSUMED,
            severity="note",
            message=f"no hardware was named: priced on {scenario.hardware_name}",
            fix="--hardware NAME",
        )
    yield from _assumed_machines(joint, scenario)
    base = joint.recipe.layout
    set_by_recipe = "dp" in joint.recipe.places and "data_parallel" not in joint.asked.layout
    if set_by_recipe and base is not None and base.data_parallel != layout.data_parallel:
        yield Remark(
            rule="other-replicas",
            severity="warning",
            message=(
                f"the recipe sets data parallel {base.data_parallel}; on these devices it is priced with "
                f"{layout.data_parallel}, which the framework takes only when the recipe says so"
            ),
            place=joint.recipe.places["dp"],
        )
    layers, stages = scenario.model.num_hidden_layers, layout.pipeline_parallel
    uneven = layout.virtual_stages == 1 and len(set(layout.stage_layers)) > 1
    # Megatron refuses such a cut unless it is stated: a rule covers it.
    if uneven and scenario.framework.name != "megatron" and not _cut_by_hand(joint, layout):
        yield Remark(
            rule="uneven-stages",
            severity="warning",
            message=(
                f"{layers} layers do not divide over {stages} stages: {min(layout.stage_layers)} or "
                f"{max(layout.stage_layers)} layers each, and the longest sets the pace"
                + uneven_stages(scenario.framework.name, layers, stages)
            ),
            place=joint.recipe.places.get("pp"),
        )


def _cut_by_hand(joint: _Joint, layout: Layout) -> bool:
    """Whether recipe or user state this cut of the layers."""
    stage_layers = joint.recipe.layout.stage_layers if joint.recipe.layout else ()
    return layout.stage_layers == stage_layers or "stage_layers" in joint.asked.layout
