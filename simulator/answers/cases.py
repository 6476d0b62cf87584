"""Cases: completion of a question into the scenario and the layout that are priced, or the list of what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Final

from simulator.answers.models import ContradictionError, model_of, needs_vocabulary, recipe_model
from simulator.answers.rules import LaunchFacts, Mark, replicated_key_value_heads, uneven_stages
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError
from simulator.evidence.cluster import cluster, device_kinds
from simulator.question.frameworks import stacks
from simulator.question.origin import Remark, Severity, option_for
from simulator.question.question import SEARCH, Question, usual_workload
from simulator.question.recipe import A_NODE, Recipe
from simulator.question.scenario.complete import KEYS, NAMES, OPTIONS, Wording, devices_taken, resolve
from simulator.question.scenario.inputs import BY_INPUT, DEFAULT_WORKLOAD, WORKLOAD, InputSetting
from simulator.question.scenario.layout import BY_NAME, FIELDS, SETTINGS, Layout, default_cut
from simulator.question.scenario.lengths import Lengths
from simulator.question.scenario.scenario import Cluster, Scenario, positions_problem, scenario_on
from simulator.question.specs.catalogue import load_hardware, with_node_of
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.vision import Images
from simulator.question.vocabulary import Precision
from simulator.records import Bare, replace


class Case(Bare, kw_only=True):
    """A question that can be priced, with its scenario and layout."""

    question: Question
    model: ModelSpec
    """Model of the question; the scenario's counts the key-value heads of all the layout's ranks."""
    scenario: Scenario
    layout: Layout
    remarks: tuple[Remark, ...] = ()
    """Remarks of the recipe's reader and of this module."""

    @property
    def recipe(self) -> Recipe:
        """The recipe whose case it is. Raises ValueError for a question without one."""
        if self.question.recipe is None:
            raise ValueError("a case of no recipe")
        return self.question.recipe

    def launch(self, marks: frozenset[Mark] = frozenset()) -> LaunchFacts:
        """Return the facts that the framework's rules refer to."""
        question = self.question
        return LaunchFacts(
            scenario=self.scenario,
            layout=self.layout,
            recipe=question.recipe,
            marks=marks,
            replaced=frozenset(question.user_layout),
        )


class Blocked(Bare, kw_only=True):
    """A recipe that cannot be priced, with every reason."""

    question: Question
    missing: tuple[Remark, ...]
    """Missing values, each with the option that sets it."""

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """Remarks of the recipe's reader."""
        return self.question.recipe.remarks if self.question.recipe else ()


class OtherHardwareError(InputError):
    """A recipe starts more processes on a node than the hardware has devices."""

    settings = ("devices_per_node", "nodes")


def case_of(question: Question, like: Case | None = None) -> Case | Blocked:
    """Return the case of a question with one layout.

    `like` is a case of the same recipe, model and hardware, whose model and cluster are reused. Raises InputError for
    contradictions (a cluster that the degrees do not fill) and UnsupportedError for what cannot be priced.
    """
    if question.recipe is not None:
        return _recipe_case(question, question.recipe, like)
    of_scenario, groups = attrgetter("inputs", "model_fields", "switches"), (question.layout, question.inputs)
    same = like is not None and of_scenario(question) == of_scenario(like.question)
    scenario = like.scenario if like is not None and same else scenario_of(question)
    kinds = {stated.origin.kind for group in groups for stated in group.values()}  # who said it names it in errors
    words = NAMES if "argument" in kinds else OPTIONS if kinds & {"option", "environment", "settings"} else KEYS
    stated = question.layout_values
    if not any(name.startswith("recompute") for name in stated):
        stated = {**stacks.RECOMPUTES.get(scenario.framework.stack, {}), **stated}
    scenario, layout = resolve(scenario, stated, words, filled=words is OPTIONS)
    return Case(question=question, model=scenario.model, scenario=scenario, layout=layout)


def case_of_recipe(recipe: Recipe, options: Question, like: Case | None = None) -> Case | Blocked:
    """Return the case of a recipe with options over it; see `case_of`."""
    return case_of(options.over(Question.of_recipe(recipe)), like)


def case_of_estimate(estimate: Estimate) -> Case:
    """Return the case that an estimate answers. Raises InputError for one of a bare scenario."""
    question = estimate.question
    if not question.inputs and question.recipe is None:
        raise InputError(f"{estimate!r}: was priced for a scenario without a question: give its arguments")
    if question.recipe is None:
        question = question.with_layout(estimate.layout).with_switches(estimate.options, SEARCH)
        if estimate.open is None and "stack" not in question.inputs:
            # A recommended layout is launched with the stack that it was priced with.
            question = question.changed(SEARCH, stack=estimate.stack)
    return priceable(case_of(question))


def scenario_of_run(case: Case) -> Scenario:
    """Return the scenario of a run that exists: it need not have the newest release, which a search assumes."""
    scenario = case.scenario
    if not scenario.framework.stack_assumed:
        return scenario
    return replace(scenario, framework=stacks.framework(scenario.framework.name, case.question.options))


def priceable(case: Case | Blocked) -> Case:
    """Return the case. Raises one InputError naming everything that it lacks."""
    if isinstance(case, Blocked):
        raise InputError("; ".join(f"{remark.message} ({remark.fix})" for remark in case.missing))
    return case


def scenario_of(question: Question, *, recommended: bool = False) -> Scenario:
    """Return the scenario of a question without a recipe; without nodes and devices it is what its layout takes.

    Without a stack, layouts that are `recommended` have the switches of one published for speed. Raises InputError for
    what is wrong and UnsupportedError for what cannot be priced.
    """
    if question.stated("model") is None and not question.model_fields:
        raise InputError("model: name one, give an estimate, or a file")
    devices = question.stated("devices")
    if devices is None and question.stated("nodes") is None and not question.has_groups:
        sizes = (question.layout[name].value for name in _DEGREES if name in question.layout)
        devices = None if any(isinstance(size, tuple) for size in sizes) else devices_taken(question.layout_values)
    machines = cluster(question.value("hardware"), question.stated("nodes"), devices, question.stated("calibration"))
    model, workload = question_model(question), {setting.name: question.value(setting.name) for setting in WORKLOAD}
    workload |= usual_workload(question, model, tunes="lora_rank" in question.inputs)
    if question.stated("precision") is None:
        workload["precision"] = usual_precision([group.hardware for group in machines.groups] or [machines.hardware])
    lengths = lengths_of(question, model)
    hardware = "" if machines.groups else machines.hardware.name
    tunes = question.value("framework") == stacks.METHOD_FRAMEWORK and "lora_rank" in question.inputs
    profile = stacks.usual_profile(
        question.value("framework"),
        question.options,
        question.stated("stack"),
        machines.stacks,
        (model.name, hardware, workload["precision"], model.architecture, model.activation),
        _makers(machines),
        # What is published for speed trains all weights; who says that as a method tunes them, by another library.
        recommended=recommended and workload["lora_rank"] is None and not tunes,
        adapters=workload["lora_rank"] is not None,
    )
    if problem := positions_problem(model, workload["seq_length"]):
        raise InputError(problem)
    return _with_images(question, with_lengths(scenario_on(machines, model, profile, **workload), lengths))


def usual_precision(kinds: Iterable[HardwareSpec]) -> Precision:
    """Return the usual precision of devices: a kind without bf16, such as a V100, trains in fp16, others beside it."""
    return "bf16" if all("bf16" in kind.peak_flops_per_second for kind in kinds) else "fp16"


def _with_images(question: Question, scenario: Scenario) -> Scenario:
    text = question.stated("images")
    return scenario if text is None else replace(scenario, images=Images.read(text))


def _with_open_images(question: Question, recipe: Recipe, scenario: Scenario) -> tuple[Scenario, tuple[Remark, ...]]:
    """Return the scenario with its images, else as many as its sequences have room for; the encoder is then trained."""
    encoder = scenario.model.encoder
    if encoder is None or question.stated("images") is not None:
        return _with_images(question, scenario), ()
    trained = recipe.encoder_training or "trained"
    images = Images.filling(encoder, scenario.seq_length, trained)
    message = f"how many images a sequence has is not said: {images.number} of {images.width} pixels a side are priced"
    remark = Remark("activations-bound", "warning", message, fix=f"--images NxWxH@{trained}", bound="images")
    return replace(scenario, images=images), (remark,)


def lengths_of(question: Question, model: ModelSpec, longest: int | None = None) -> Lengths | None:
    """Return the lengths of a question's samples, cut at `longest` unless it says where; None where it states none.

    Raises InputError for one above the model's positions, and for settings of lengths without any.
    """
    lengths = question.stated("lengths")
    if lengths is None:
        unused = next((name for name in ("cutoff", "batching", "survive") if question.by_user(name)), None)
        if unused:
            raise InputError(f"{unused} {question.stated(unused)}: is of lengths that differ: give lengths too")
        return None
    settings = {name: question.value(name) for name in ("batching", "cutoff", "survive")}
    for name, value in settings.items():
        BY_INPUT[name].check(value)
    settings["cutoff"] = settings["cutoff"] or longest
    lengths = replace(Lengths.read(lengths), **settings)
    most = model.longest_sequence
    if most is not None and lengths.longest > most:
        fix = f"--cutoff {most} cuts it, max_position_embeddings of a model file allows it"
        raise InputError(f"{lengths.where}: {lengths.longest} tokens: {model.name} has {most} positions; {fix}")
    return lengths


def with_lengths(scenario: Scenario, lengths: Lengths | None) -> Scenario:
    """Return the scenario with lengths that differ; equal ones are its sequence length."""
    if lengths is None:
        return scenario
    return scenario.of_length(lengths.equal) if lengths.equal else replace(scenario, lengths=lengths)


_DEGREES: Final = ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel")


def question_model(question: Question) -> ModelSpec:
    """Return the model of a question without a recipe, its fields and layers replaced. Raises InputError."""
    name, layers = question.stated("model"), question.stated("num_layers")
    if not question.model_fields:
        model = model_of(name)
        return model if layers is None else model.with_layers(layers)
    values = {field: stated.value for field, stated in question.model_fields.items()}
    changed, _ = recipe_model(Recipe(file="options", framework="megatron"), name, values, layers)
    if changed is None:
        raise InputError(f"model: {', '.join(values)} alone make no model: name one")
    return changed


def _recipe_case(question: Question, recipe: Recipe, like: Case | None) -> Case | Blocked:
    """Return the case of a recipe: a launch with the framework's own defaults."""
    if like is None:
        name = question.stated("model") if question.by_user("model") else None
        model, remarks = recipe_model(recipe, name, user_fields(question), question.stated("num_layers"))
    else:
        model, remarks = like.model, ()
    missing = tuple(_missing(question, recipe, model)) if like is None else ()
    base = _stated_layout(question, recipe)
    if missing or model is None or base is None:
        return Blocked(question=question, missing=missing)
    machines = _cluster(question, recipe, like, model)
    base, more = _as_launched(recipe, _with_experts(question, recipe, base, model))
    stated = {name: question.stated(name) for name in DEFAULT_WORKLOAD}
    workload = {name: plain if stated[name] is None else stated[name] for name, plain in DEFAULT_WORKLOAD.items()}
    options = _options(question, recipe, base, machines)
    adapters = workload["lora_rank"] is not None
    options, bound = _with_open_experts(question, recipe, model, options) if adapters else (options, ())
    name, stack = question.value("framework"), question.stated("stack")
    exact = model.name, "", workload["precision"], model.architecture, model.activation
    profile = stacks.usual_profile(name, options, stack, (), exact, _makers(machines), adapters=adapters)
    lengths = lengths_of(question, model, stated["seq_length"])
    # Of a flag of the launch itself the framework's own rule tells.
    own = any(flag.name == "max_position_embeddings" for flag in recipe.flags)
    if (problem := positions_problem(model, workload["seq_length"])) and not own:
        raise ContradictionError(f"{recipe.file}: {problem}", "seq_length")
    steps = None if stated["global_batch_size"] else recipe.gradient_accumulation_steps or 1
    fields = {field.name: getattr(base, field.name) for field in FIELDS}
    fields["data_parallel"] = question.layout_values.get("data_parallel")
    scenario = with_lengths(scenario_on(machines, model, profile, **workload), lengths)
    scenario, unseen = _with_open_images(question, recipe, scenario)
    scenario, layout = resolve(scenario, fields, _recipe_words(recipe), accumulation_steps=steps)
    if layout.chunk_layers and not base.chunk_layers:
        # Only its flags cut a launch's layers.
        cut = default_cut(scenario.model.num_hidden_layers, layout.pipeline_parallel)
        layout = replace(layout, stage_layers=cut, chunk_layers=())
    layout, unsharded = _as_sharded(recipe, _with_virtual_stages(question, recipe, layout))
    remarks = (*bound, *remarks, *unseen)
    scenario, whole = _with_whole_heads(scenario, layout)
    remarks = (*recipe.remarks, *remarks, *more, *unsharded, *whole, *_notes(question, recipe, scenario, layout))
    return Case(question=question, model=model, scenario=scenario, layout=layout, remarks=tuple(remarks))


def user_fields(question: Question) -> Mapping[str, object]:
    """Return the fields of the model that the user replaces."""
    return {name: stated.value for name, stated in question.model_fields.items() if stated.origin.is_user}


def _stated_layout(question: Question, recipe: Recipe) -> Layout | None:
    """Return the recipe's layout with the user's fields, before data parallelism and the cut are resolved."""
    if recipe.layout is None:
        return None
    fields = question.layout_values
    return replace(recipe.layout, **{field.name: fields[field.name] for field in FIELDS if field.name in fields})


def _makers(machines: Cluster) -> tuple[str, str]:
    """Return the maker and the family of a cluster's devices."""
    return machines.hardware.vendor, machines.hardware.family


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
    model = replace(scenario.model, num_key_value_heads=heads)
    return replace(scenario, model=model), (Remark("whole-key-values", "note", message),)


def _missing(question: Question, recipe: Recipe, model: ModelSpec | None) -> Iterator[Remark]:
    """Yield every value that must be set before the recipe can be priced."""
    open_settings: set[str] = set()
    for unknown in recipe.unknowns:
        needing = [name for name in unknown.affects if not _settled(question, recipe, name)]
        if needing:
            open_settings |= set(needing)
            name = f"${unknown.name}" if unknown.name.isdigit() or unknown.name in ("@", "*") else unknown.name
            names = ", ".join(setting.replace("_", " ") for setting in needing)
            message = f"{name} is not known before the launch; it decides {names}"
            yield Remark("unknown-value", "error", message, unknown.place, option_for(unknown.name))
    for name, absent, message, fix, known_by in _absences(question, recipe, model):
        if absent and not open_settings & known_by:
            yield Remark(f"unknown-{name}", "error", message, recipe.places.get(name), fix)
    if recipe.maker and "hardware" not in question.inputs:
        specs = [load_hardware(name) for name in recipe.device_choice]
        larger = [spec for spec in specs if spec.devices_per_node >= (recipe.devices_per_node or 1)]
        choice = ", ".join(spec.name for spec in larger or specs)
        fix = f"--hardware NAME, of {choice}" if choice else "--hardware FILE.yaml, a spec of your own"
        message = f"the recipe runs on devices of {recipe.maker} ({recipe.device_word}), and does not say on which"
        yield Remark("unknown-hardware", "error", message, recipe.places.get("hardware"), fix)


def _other_devices(recipe: Recipe, spec: HardwareSpec) -> Iterator[Remark]:
    """Yield the remark on a recipe whose words name devices of another maker or family than it is priced on."""
    families = {load_hardware(name).family for name in recipe.device_choice}
    if recipe.maker and spec.family not in families and spec.vendor != "undisclosed":
        devices = recipe.hardware or f"devices of {recipe.maker}"
        message = f"{recipe.device_word}: the recipe runs on {devices}; priced on {spec.name}"
        severity: Severity = "note" if spec.vendor == recipe.maker else "warning"
        yield Remark("other-devices", severity, message, recipe.places.get("hardware"))


_Absence = tuple[str, bool, str, str, frozenset[str]]


def _absences(question: Question, recipe: Recipe, model: ModelSpec | None) -> tuple[_Absence, ...]:
    """Return what a question needs: (name, whether absent, message, fix, settings that would supply it)."""
    batch = question.stated("global_batch_size") is None and recipe.gradient_accumulation_steps is None
    reason = "the recipe does not say"
    bare = model is None and not question.by_user("model") and needs_vocabulary(recipe, user_fields(question))
    no_model = ("the recipe names no model that is known", "--model NAME")
    if bare:
        no_model = ("the vocabulary is missing: the recipe gives every other size", "--model-field vocab_size=N")
    stated = question.stated("seq_length") or question.stated("lengths")
    length, precision = stated is None, question.stated("precision") is None
    usual = usual_precision(device_kinds(question.value("hardware"))) if precision else ""
    of_type = (flag for flag in recipe.flags if precision and flag.place == recipe.places.get("precision"))
    kind = next((f"{flag.spelled} {flag.text[:40]}: is no type that is read" for flag in of_type), "")
    return (
        ("vocabulary" if bare else "model", model is None, *no_model, _MODEL_SETTINGS),
        ("layout", recipe.layout is None, f"{reason} how it is spread", "--set NAME=VALUE", LAYOUT_SETTINGS),
        ("seq-length", length, f"{reason} how long a sequence is", "--seq-length N or --lengths FILE", _SEQUENCE),
        ("precision", precision, kind or f"{reason} its precision", f"--precision {usual}", _PRECISION),
        ("global-batch-size", batch, f"{reason} how large a step is", "--global-batch-size N", _BATCH),
    )


CLUSTER_SETTINGS = frozenset({"nodes", "devices", "devices_per_node", "dp"})
LAYOUT_SETTINGS = frozenset(setting.key for setting in SETTINGS) - CLUSTER_SETTINGS
"""Settings without which a recipe's reader returns no layout; only `--set` supplies them."""
_MODEL_SETTINGS = frozenset({"model", "tokenizer", *(each.name for each in fields(ModelSpec))})
_SEQUENCE = frozenset({"seq_length"})
_PRECISION = frozenset({"precision"})
_BATCH = frozenset({"global_batch_size", "gradient_accumulation_steps", "micro_batch_size"})


def _settled(question: Question, recipe: Recipe, name: str) -> bool:
    """Whether a setting that the recipe leaves open is set by the user, or does not matter."""
    if name == "launch":
        return True
    if name in CLUSTER_SETTINGS:
        return question.is_sized
    if name in LAYOUT_SETTINGS:
        return recipe.layout is not None and BY_NAME[name].name in question.user_layout
    if name in _MODEL_SETTINGS:
        field = "vocab_size" if name == "tokenizer" else name
        return question.by_user("model") or field in user_fields(question)
    if name in ("global_batch_size", "gradient_accumulation_steps"):
        return question.by_user("global_batch_size")
    return question.by_user(name) or (name == "seq_length" and question.by_user("lengths"))


def _size(recipe: Recipe) -> int | None:
    """Return the nodes of the recipe's launch, else the devices that its degrees state; None without either."""
    if recipe.nodes is not None or recipe.layout is None or "dp" not in recipe.places:
        return recipe.nodes
    return recipe.layout.devices


def _cluster(question: Question, recipe: Recipe, like: Case | None, model: ModelSpec) -> Cluster:
    """Return the machines: the user's, else the recipe's nodes, else the fewest nodes that its degrees fill."""
    if like is not None:
        return _resized(question, recipe, like)
    hardware, calibration = question.value("hardware"), question.stated("calibration")
    nodes, devices = question.stated("nodes"), question.stated("devices")
    if question.has_groups or devices is not None:
        return cluster(hardware, nodes, devices, calibration)
    degrees = None if nodes or recipe.nodes is not None else _size(recipe)
    if degrees is not None:
        return cluster(hardware, None, degrees, calibration)
    spec = cluster(hardware, None, None, calibration).hardware
    per_node = recipe.devices_per_node or spec.devices_per_node
    if per_node > spec.devices_per_node and (larger := with_node_of(spec, per_node)) is not None:
        hardware = larger.name
    elif per_node > spec.devices_per_node:
        raise OtherHardwareError(
            f"{recipe.file}: the recipe starts {per_node} processes on a node; "
            f"{spec.name} has {spec.devices_per_node} devices (--hardware NAME)"
        )
    nodes = nodes or recipe.nodes or _fewest_nodes(_stated_layout(question, recipe), model, per_node)
    return cluster(hardware, None, nodes * per_node, calibration)


def _fewest_nodes(layout: Layout | None, model: ModelSpec, per_node: int) -> int:
    """Return the fewest whole nodes that the degrees fill; 1 where none do."""
    if layout is None:
        return 1
    experts = layout.expert_parallel * layout.expert_tensor_parallel if model.is_moe else 1

    def filled(nodes: int) -> bool:
        devices = nodes * per_node
        return devices % layout.replica == 0 and devices // layout.pipeline_parallel % experts == 0

    return next((nodes for nodes in range(1, _MOST_ASSUMED + 1) if filled(nodes)), 1)


_MOST_ASSUMED = 1024  # most nodes that are assumed where none are stated


def _resized(question: Question, recipe: Recipe, like: Case) -> Cluster:
    """Return the machines of a case with the present number of nodes or devices."""
    scenario, nodes, devices = like.scenario, question.stated("nodes"), question.stated("devices")
    if devices is None or devices == like.question.stated("devices"):
        devices = scenario.devices
    if nodes is not None and nodes != like.question.stated("nodes"):
        devices = nodes * (recipe.devices_per_node or scenario.hardware.devices_per_node)
    return Cluster(
        hardware=scenario.hardware,
        devices=devices,
        groups=scenario.groups,
        coefficients=scenario.coefficients,
        calibration=scenario.calibration,
        stacks=(scenario.framework.stack,),
    )


def _with_experts(question: Question, recipe: Recipe, layout: Layout, model: ModelSpec) -> Layout:
    """Return the layout with Megatron's default: experts are split like the other layers, unless a flag decides.

    Without experts their tensor parallel size makes groups that nothing uses (initialize_model_parallel in
    megatron/core/parallel_state.py of core_r0.12.0); an expert parallel size is refused.
    """
    if recipe.framework != "megatron":
        return layout
    by_user = question.by_user("expert_tensor_parallel")
    if not model.is_moe:
        return layout if by_user else replace(layout, expert_tensor_parallel=1)
    fixed = recipe.model is not None or "num_experts" in recipe.model_fields or "etp" in recipe.places or by_user
    return layout if fixed else replace(layout, expert_tensor_parallel=layout.tensor_parallel)


def _with_open_experts(
    question: Question, recipe: Recipe, model: ModelSpec, options: dict[str, str]
) -> tuple[dict[str, str], tuple[Remark, ...]]:
    """Return switches with routed experts under adapters as they need most: adapted, in 16 bits over a 4-bit base.

    Which they are hangs on the release: since transformers 5 a layer's experts are one parameter, which bitsandbytes
    leaves as it is (its issue 1849) and peft 0.19 adapts in some models alone, merged with a copy (M40).
    """
    stack = question.stated("stack")
    stated = options.keys() | ((stack and stacks.decided_by(stack)) or frozenset())
    if any(model.architecture in each.families for each in stacks.practice_of("torch", adapters=True)):
        stated -= {"expert_adapters"} - question.inputs.keys()
    wide = options.get("quantised_base") == "true" and "quantised_experts" not in stated
    places = {*options.get("adapter_targets", "all").split("+")}
    adapted = not places.isdisjoint(("all", "up", "down")) and "expert_adapters" not in stated
    if not (recipe.experts_open and model.is_moe and (wide or adapted)):
        return options, ()
    merged = adapted and "merged_expert_adapters" not in stated
    how = " and ".join(("with adapters",) * adapted + ("in 16 bits",) * wide)
    message = f"routed experts are priced {how}; libraries pass over those of one parameter{' or merge them' * merged}"
    place = recipe.places.get("quantised_base" if wide else "lora_rank")
    remark = Remark("upper-bound", "warning", message, place, bound="experts")
    options |= {"quantised_experts": "false"} if wide else {}
    options |= {"expert_adapters": "true"} if adapted else {}
    return options | ({"merged_expert_adapters": "added"} if merged else {}), (remark,)


def _as_launched(recipe: Recipe, layout: Layout) -> tuple[Layout, list[Remark]]:
    """Return the layout without sequence parallelism where nothing is tensor parallel, as frameworks do."""
    if not layout.sequence_parallel or layout.tensor_parallel > 1:
        return layout, []
    message = "sequence parallelism with tensor parallel 1: the framework switches it off"
    remark = Remark("sequence-parallel-off", "note", message, recipe.places.get("sequence_parallel"))
    return replace(layout, sequence_parallel=False), [remark]


def _as_sharded(recipe: Recipe, layout: Layout) -> tuple[Layout, list[Remark]]:
    """Return the layout without sharding over one rank, as in Paddle (training_args.py:922 of paddlenlp 2.8.1)."""
    alone = layout.data_parallel * layout.context_parallel == 1
    # Stage 1 over one replica changes nothing; only higher stages would be refused beside a pipeline.
    if layout.zero_stage < 2 or not alone or recipe.framework != "paddle":
        return layout, []
    message = f"ZeRO stage {layout.zero_stage} on one replica: the framework switches it off"
    return replace(layout, zero_stage=0), [Remark("sharding-off", "note", message, recipe.places.get("zero_stage"))]


def _recipe_words(recipe: Recipe) -> Wording:
    """Return the wording of errors: the recipe's file in front, and which sizes to change."""

    def refusal(message: str, *keys: str) -> InputError:
        if keys[:1] == ("tp",):
            message += "; change a degree (--pp N) or the cluster (--nodes N)"
        sizes = _SIZES if "tp" in keys else ("pp",)
        return ContradictionError(message, *dict.fromkeys((*(key for key in keys if key not in _SIZES), *sizes)))

    def spelled(setting: InputSetting) -> str:
        return "the cut" if setting.key == "stage_layers" else setting.key

    return Wording(spell=spelled, where=f"{recipe.file}: ", refusal=refusal)


_SIZES = ("pp", "tp", "cp", "devices_per_node", "nodes")
"""Settings that make up the sizes of layout and cluster, the most likely first."""


def _with_virtual_stages(question: Question, recipe: Recipe, layout: Layout) -> Layout:
    """Return a layout with its chunks per rank; of layers that do not divide, a number that their rule refuses."""
    fields, cut = question.user_layout, layout.stage_layers
    chunk = fields.get("layers_per_virtual_stage")
    if chunk is None and "virtual_stages" not in fields:
        chunk = recipe.virtual_stage_layers
    if chunk is None or layout.pipeline_parallel == 1:
        return layout
    count = max(-(-max(cut) // int(chunk)), 1)
    if any(layers % chunk for layers in cut):
        while max(cut) % count == 0:
            count += 1
    return replace(layout, virtual_stages=count)


def _options(question: Question, recipe: Recipe, layout: Layout, machines: Cluster) -> dict[str, str]:
    """Return the switches of the question, without those of the recipe that have no effect on the layout."""
    options, adapters = question.options, question.stated("lora_rank") is not None
    if options.get("sharding_degree") == A_NODE:
        options["sharding_degree"] = str(recipe.devices_per_node or machines.hardware.devices_per_node)
    for name, acts in (("tp_comm_overlap", layout.tensor_parallel > 1), ("quantised_base", adapters)):
        if not acts and not question.by_user(name):
            options.pop(name, None)
    return options


HARDWARE_ASSUMED = "hardware-assumed"
"""Rule of the remark that no hardware was named."""
OF_DEVICES = (HARDWARE_ASSUMED, "other-devices")
"""Rules of the remarks on devices; an answer says them first where the recipe's own words name them."""
NODES_ASSUMED = "nodes-assumed"
"""Rule of the remark that no number of nodes is stated."""


def _assumed_machines(question: Question, recipe: Recipe, scenario: Scenario) -> Iterator[Remark]:
    """Yield remarks on nodes, and devices per node, that are not stated."""
    if question.stated("devices") is not None or question.has_groups:
        return
    per_node = recipe.devices_per_node or scenario.hardware.devices_per_node
    nodes = scenario.devices // per_node
    if not question.stated("nodes") and _size(recipe) is None:
        shown = "one node is assumed" if nodes == 1 else f"{nodes} nodes are assumed, the fewest that its degrees fill"
        text = f"the recipe does not say how many nodes run it: {shown}"
        yield Remark(rule=NODES_ASSUMED, severity="note", message=text, fix="--nodes N")
    if recipe.devices_per_node is None and scenario.devices == nodes * per_node:
        text = f"the recipe does not say on how many devices of a node it starts: all {per_node} are taken"
        yield Remark(rule="devices-assumed", severity="note", message=text, fix="--devices N")


def _assumed_hardware(question: Question, recipe: Recipe, scenario: Scenario) -> Iterator[Remark]:
    """Yield remarks on devices that nobody, or the recipe alone, names."""
    if "hardware" not in question.inputs:
        text = f"no hardware was named: priced on {scenario.hardware_name}"
        yield Remark(rule=HARDWARE_ASSUMED, severity="note", message=text, fix="--hardware NAME")
        return
    if question.origin("hardware").kind == "file":
        word = f" ({recipe.device_word})" if recipe.device_word else ""
        text, place = f"priced on {scenario.hardware_name}, which the recipe names{word}", recipe.places.get("hardware")
        yield Remark(HARDWARE_ASSUMED, "note", text, place, fix="--hardware NAME")
    if question.has_groups:
        return
    yield from _other_devices(recipe, scenario.hardware)
    named = load_hardware(question.value("hardware"))
    if scenario.hardware.name != named.name:
        text = (
            f"the recipe starts {recipe.devices_per_node} processes on a node, {named.name} has "
            f"{named.devices_per_node} devices: priced on {scenario.hardware_name}, whose nodes have them"
        )
        yield Remark("node-of-recipe", "note", text, fix=f"--hardware {scenario.hardware.name}")


def _notes(question: Question, recipe: Recipe, scenario: Scenario, layout: Layout) -> Iterator[Remark]:
    """Yield remarks on the assumptions of the answer."""
    yield from _assumed_hardware(question, recipe, scenario)
    yield from _assumed_machines(question, recipe, scenario)
    base = recipe.layout
    set_by_recipe = "dp" in recipe.places and "data_parallel" not in question.user_layout
    if set_by_recipe and base is not None and base.data_parallel != layout.data_parallel:
        text = (
            f"the recipe sets data parallel {base.data_parallel}; on these devices it is priced with "
            f"{layout.data_parallel}, which the framework takes only when the recipe says so"
        )
        yield Remark("other-replicas", "warning", text, recipe.places["dp"])
    layers, stages = scenario.model.num_hidden_layers, layout.pipeline_parallel
    uneven = layout.virtual_stages == 1 and len(set(layout.stage_layers)) > 1
    # Megatron refuses such a cut unless it is stated: a rule covers it.
    by_hand = "stage_layers" in question.user_layout or layout.stage_layers == (
        recipe.layout.stage_layers if recipe.layout else ()
    )
    if uneven and scenario.framework.name != "megatron" and not by_hand:
        text = (
            f"{layers} layers do not divide over {stages} stages: {min(layout.stage_layers)} or "
            f"{max(layout.stage_layers)} layers each, and the longest sets the pace"
        )
        text += uneven_stages(scenario.framework.name, layers, stages)
        yield Remark("uneven-stages", "warning", text, recipe.places.get("pp"))
