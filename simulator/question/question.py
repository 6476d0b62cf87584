"""Record `Question`: every value that somebody said, with who said it; entrances make one, answers take one.

A script's question has its values with their lines; options beat them: `options.over(Question.of_recipe(recipe))`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import Any, Final

from simulator.errors import InputError, check_kind, did_you_mean
from simulator.late import late_pattern
from simulator.question.frameworks.stacks import METHOD_FRAMEWORK, current_switches, framework_of, usual_rank
from simulator.question.origin import ARGUMENT, NOBODY, Input, Origin
from simulator.question.recipe import Recipe
from simulator.question.scenario.complete import NAMES, Wording, layout_fields
from simulator.question.scenario.inputs import BY_INPUT, DEFAULT_WORKLOAD, TUNING_WORKLOAD, WORKLOAD
from simulator.question.scenario.layout import BY_NAME, FIELDS, Layout, pipeline_shape
from simulator.question.scenario.lengths import Lengths
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.optimizers import optimizer_name, switches_of_word
from simulator.question.specs.vision import Images
from simulator.question.units import parse_count, share_of
from simulator.records import Record, field, replace

_AUTO: Final = late_pattern(r"auto(:[0-9]{1,7})?")  # text of an input that a search chooses, up to a limit
_SETS: Final = (list, tuple, range, set, frozenset)
Inputs = Mapping[str, Input]
"""Values by name, each with who said it."""
FOLLOWS: Final = Origin("follows")
SEARCH: Final = Origin("search")
_SIZES: Final = ("nodes", "devices")  # inputs that state the size of the cluster; one of them replaces the other
_OF_LENGTHS: Final = ("lengths", "batching", "cutoff", "survive")
"""Inputs that state lengths as a distribution; a length of all sequences replaces them."""
_CHUNKS: Final = ("virtual_stages", "layers_per_virtual_stage")
"""Fields that state the chunks of a pipeline rank; one of them replaces the other."""


GROUPS: Final = ("inputs", "model_fields", "layout", "switches")
"""Groups of a question's values."""


class Question(Record, kw_only=True):
    """Values of a question. A name that is absent was said by nobody."""

    inputs: Inputs = field(default_factory=dict)
    """Model, machines, workload, framework, stack, calibration, by the names of `scenario.inputs`."""
    model_fields: Inputs = field(default_factory=dict)
    """Fields of the model's spec that replace the model's own."""
    layout: Inputs = field(default_factory=dict)
    """Fields of the layout, and `layers_per_virtual_stage`; of a search, each with a tuple of values."""
    switches: Inputs = field(default_factory=dict)
    """Switches of the framework, as text after `--option`; its optimizer included."""
    recipe: Recipe | None = None
    """The file whose run it is; None for a question without one."""

    @staticmethod
    def of_recipe(recipe: Recipe) -> Question:
        """Return the question that a recipe asks by itself."""
        stated = {
            "model": recipe.model,
            "framework": recipe.framework,
            "stack": recipe.stack,
            "hardware": recipe.hardware,
            **{setting.name: getattr(recipe, setting.name, None) for setting in WORKLOAD},
        }
        inputs = {name: Input(value, recipe.origin(name)) for name, value in stated.items() if value is not None}
        return Question(
            inputs=inputs,
            model_fields={name: Input(value, recipe.origin(name)) for name, value in recipe.model_fields.items()},
            layout={} if recipe.layout is None else _recipe_layout(recipe, recipe.layout),
            switches={name: Input(text, recipe.origin(name)) for name, text in recipe.options.items()},
            recipe=recipe,
        )

    def value(self, name: str) -> Any:
        """Return the value of an input; its default where nobody said it."""
        stated = self.inputs.get(name)
        return BY_INPUT[name].default if stated is None else stated.value

    def stated(self, name: str) -> Any:
        """Return the value of an input; None where nobody said it."""
        stated = self.inputs.get(name)
        return None if stated is None else stated.value

    def origin(self, name: str) -> Origin:
        """Return who said an input, a field of the layout, or a switch."""
        for group in (self.inputs, self.layout, self.switches, self.model_fields):
            if name in group:
                return group[name].origin
        return NOBODY

    def by_user(self, name: str) -> bool:
        """Whether the user said a value, beside any file."""
        return self.origin(name).is_user

    @property
    def user_layout(self) -> dict[str, Any]:
        """Fields of the layout that the user said, beside any file."""
        return {name: stated.value for name, stated in self.layout.items() if stated.origin.is_user}

    @property
    def layout_values(self) -> dict[str, Any]:
        """Fields of the layout by name."""
        return {name: stated.value for name, stated in self.layout.items()}

    @property
    def options(self) -> dict[str, str]:
        """Switches by name, as text."""
        return {name: stated.value for name, stated in self.switches.items()}

    @property
    def layout_is_searched(self) -> bool:
        """Whether nobody said a word of the layout, so that a search chose it."""
        said = {stated.origin for stated in self.layout.values()} - {FOLLOWS}
        return self.recipe is None and said == {SEARCH}

    def without(self, origin: Origin) -> Question:
        """Return the question without the values that `origin` said, and without a layout that follows from them."""
        left = self.said_by(lambda other: other != origin)
        follows = all(stated.origin == FOLLOWS for stated in left.layout.values())
        return replace(left, layout={} if follows else left.layout, recipe=self.recipe)

    def said_by(self, whose: Callable[[Origin], bool]) -> Question:
        """Return the question of the values alone of which `whose` takes the origin, without a recipe."""
        groups: dict[str, Any] = {
            group: {name: stated for name, stated in getattr(self, group).items() if whose(stated.origin)}
            for group in GROUPS
        }
        return Question(**groups)

    @property
    def has_groups(self) -> bool:
        """Whether the hardware names node groups, which state their own sizes."""
        return ":" in str(self.value("hardware"))

    @property
    def is_sized(self) -> bool:
        """Whether the user says how large the cluster is."""
        return self.by_user("nodes") or self.by_user("devices") or self.has_groups

    def over(self, base: Question) -> Question:
        """Return the base with the values of this question in place of its own.

        What follows from a replaced value follows anew: a base whose layout states sequence parallelism has it
        without tensor parallelism no longer.
        """
        dropped = {name for name in _SIZES if not self.inputs.keys().isdisjoint(_SIZES) or self.has_groups}
        dropped |= set(_OF_LENGTHS) if "seq_length" in self.inputs and "lengths" not in self.inputs else set()
        own = {name: x for name, x in self.inputs.items() if x.origin != FOLLOWS or name not in base.inputs}
        fields = base.model_fields
        if "model" in self.inputs:
            fields = {name: stated for name, stated in fields.items() if stated.origin.is_user}
        return Question(
            inputs={name: stated for name, stated in base.inputs.items() if name not in dropped} | own,
            model_fields={**fields, **self.model_fields},
            layout=_layout_over(self, base),
            switches={**base.switches, **self.switches},
            recipe=base.recipe or self.recipe,
        )

    def changed(self, origin: Origin = ARGUMENT, **values: Any) -> Question:
        """Return the question with inputs replaced, said by `origin`."""
        return Question(inputs={name: Input(value, origin) for name, value in values.items()}).over(self)

    def with_switches(self, options: Mapping[str, str], origin: Origin = ARGUMENT) -> Question:
        """Return the question with switches replaced, said by `origin`."""
        return replace(self, switches={**self.switches, **{name: Input(x, origin) for name, x in options.items()}})

    def with_layout(self, layout: Layout, origin: Origin = SEARCH) -> Question:
        """Return the question with a whole layout; fields that the question does not state are said by `origin`."""
        origins = {name: stated.origin for name, stated in self.layout.items()}
        fields = {
            field.name: Input(getattr(layout, field.name), origins.get(field.name, origin))
            for field in FIELDS
            if getattr(layout, field.name) != () or field.name in origins
        }
        return replace(self, layout=fields)


def question_of(
    values: Mapping[str, Any],
    words: Wording = NAMES,
    origin: Callable[[str], Origin] = lambda _: ARGUMENT,
    *,
    many: bool = False,
) -> Question:
    """Return the question of inputs and layout fields by name or key, and `options`, `optimizer`, `model_fields`.

    None leaves a value out. `origin` tells who said a name; with `many` the fields of the layout are sets to search.
    Raises InputError for values that no question has, in these words.
    """
    stated = {name: _plain(name, value) for name, value in values.items() if value is not None}
    fields = {name: stated.pop(name) for name in tuple(stated) if name in BY_NAME}
    if many:
        fields = {name: tuple(x) if isinstance(x, _SETS) else (x,) for name, x in fields.items()}
    if "lengths" in stated and "seq_length" in stated:
        raise InputError(f"lengths and seq_length {stated['seq_length']} exclude each other: give one")
    framework, trained = framework_following(stated), _trained(stated, origin)
    trains = stated.get("framework", framework or "")
    switches = _switches(stated.pop("options", {}), stated.pop("optimizer", None), trains, origin)
    replaced = stated.pop("model_fields", {})
    for name, value in stated.items():
        if name not in BY_INPUT:
            known = (*BY_INPUT, *BY_NAME)
            raise InputError(f"unknown input '{name}'{did_you_mean(name, known)}; allowed: {', '.join(known)}")
        if not (BY_INPUT[name].searchable and _AUTO.fullmatch(str(value))):
            BY_INPUT[name].check(value)
    by = {BY_NAME[name].name: origin(name) for name in fields}
    implied = next(iter(by.values()), NOBODY)
    layout = layout_fields(fields, words, many=many)
    follows = {} if framework is None else {"framework": Input(framework, FOLLOWS)}
    return Question(
        inputs={**follows, **{name: Input(value, origin(name)) for name, value in stated.items()}, **trained},
        model_fields={name: Input(value, origin("model_fields")) for name, value in replaced.items()},
        layout={name: Input(value, by.get(name, implied)) for name, value in layout.items()},
        switches=switches,
    )


_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    **dict.fromkeys(("hardware", "calibration"), ((str, PathLike), "a name or a path")),
    **dict.fromkeys(("options", "model_fields"), ((Mapping,), "a mapping")),
    **dict.fromkeys(("stage_layers", "chunk_layers"), ((list, tuple, range), "a list of whole numbers")),
    "optimizer": ((str,), "a word"),
}  # types of inputs that no setting checks, with their words


def _plain(name: str, value: Any) -> Any:
    """Return a path as text, and a text such as `8k` of an input that counts as its number. Raises InputError."""
    if name in _KINDS:
        check_kind(name, value, *_KINDS[name])
        for layers in value if "layers" in name else ():
            check_kind(name, layers, int, "a list of whole numbers")
    if name == "lengths":
        return Lengths.read(fspath(value) if isinstance(value, PathLike) else value)
    if isinstance(value, PathLike):
        return fspath(value)
    if name == "images":
        Images.read(value)
    setting = BY_INPUT.get(name)
    if setting is not None and setting.kind == "share" and isinstance(value, str):
        return value if math.isnan(number := share_of(value)) else number
    if setting is None or setting.kind != "count" or not isinstance(value, str) or not value[:1].isdigit():
        return value
    try:
        return parse_count(value, length=setting.of_tokens)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def framework_following(stated: Mapping[str, Any]) -> str | None:
    """Return the framework that follows from other values: of a named stack, else of a method."""
    return framework_of(str(stated.get("stack"))) or (None if stated.get("method") is None else METHOD_FRAMEWORK)


def _trained(stated: dict[str, Any], origin: Callable[[str], Origin]) -> dict[str, Input]:
    """Take the method out of stated values, set a base of 4 bits, and return the rank of adapters.

    A stated rank or switch stays. Raises InputError for a rank beside `full`.
    """
    if (method := stated.pop("method", None)) is None:
        return {}
    BY_INPUT["method"].check(method)
    if method == "full":
        if "lora_rank" in stated:
            raise InputError(f"lora_rank {stated['lora_rank']}: method full trains all weights; give lora or qlora")
        return {"lora_rank": Input(None, origin("method"))}
    if method == "qlora":
        stated["options"] = {"quantised_base": "true", **(stated.get("options") or {})}
    if "lora_rank" in stated:
        return {}
    rank = usual_rank(stated.get("framework") or framework_following(stated) or METHOD_FRAMEWORK, stated.get("stack"))
    return {"lora_rank": Input(rank, origin("method"))}


def _switches(
    options: Mapping[str, Any], optimizer: str | None, framework: str, origin: Callable[[str], Origin]
) -> dict[str, Input]:
    """Return the switches, the optimizer included. Raises InputError for two optimizers."""
    if not all(isinstance(text, str) for text in options.values()):
        wrong = next(name for name, text in options.items() if not isinstance(text, str))
        raise InputError(f"option {wrong}: its value is text, as after --option")
    options = current_switches(options)
    words = filter(None, (options.get("optimizer"), optimizer))
    implied = {name: text for word in words for name, text in switches_of_word(word, framework).items()}
    if "optimizer" in options:
        options["optimizer"] = optimizer_name(options["optimizer"])
    optimizer = optimizer_name(optimizer) if optimizer is not None else None
    if optimizer is not None and options.get("optimizer", optimizer) != optimizer:
        raise InputError(f"optimizer: given as '{optimizer}' and, among the switches, as '{options['optimizer']}'")
    switches = {name: Input(text, FOLLOWS) for name, text in implied.items()}
    switches |= {name: Input(text, origin("options")) for name, text in options.items()}
    return switches if optimizer is None else switches | {"optimizer": Input(optimizer, origin("optimizer"))}


def _recipe_layout(recipe: Recipe, layout: Layout) -> dict[str, Input]:
    """Return the fields of a recipe's layout; data parallelism only where the recipe fixes it."""
    fields = [field for field in FIELDS if field.name != "data_parallel" or "dp" in recipe.places]
    return {field.name: Input(getattr(layout, field.name), recipe.origin(field.key, field.name)) for field in fields}


def _layout_over(question: Question, base: Question) -> dict[str, Input]:
    """Return the layout fields of a base with those of a question in their place, and what follows from these."""
    if not question.layout and not question.is_sized:
        return dict(base.layout)
    replaced = _CHUNKS if not question.layout.keys().isdisjoint(_CHUNKS) else ()
    earlier = {name: stated for name, stated in base.layout.items() if name not in replaced}
    changes = {name: stated for name, stated in earlier.items() if stated.origin.is_user} | dict(question.layout)
    recipe = base.recipe
    if recipe is None:
        fixed = {name: stated for name, stated in earlier.items() if name not in changes}
    else:
        fixed = {} if recipe.layout is None else _recipe_layout(recipe, recipe.layout)
    if changes or question.is_sized or base.is_sized:
        fixed.pop("data_parallel", None)
    values = {name: stated.value for name, stated in changes.items()}
    following = _following({name: stated.value for name, stated in fixed.items()}, values, recipe)
    derived = {name: Input(value, FOLLOWS) for name, value in following.items() if value != () or name in fixed}
    return {**fixed, **changes, **derived}


def _following(base: Mapping[str, Any], changes: Mapping[str, Any], recipe: Recipe | None) -> dict[str, Any]:
    """Return the fields that follow from changed ones, of those that the base states."""
    fields = dict(changes)
    if "stage_layers" in fields:
        fields.setdefault("pipeline_parallel", len(fields["stage_layers"]))
    _tensor_parallel(base, fields, recipe)
    pipeline = fields.get("pipeline_parallel", base.get("pipeline_parallel", 1))
    # The base's cut goes where another is stated, or sizes that do not match it.
    if pipeline != base.get("pipeline_parallel", 1) and "stage_layers" not in fields:
        fields["stage_layers"] = ()
    if "chunk_layers" in fields:
        fields.setdefault("stage_layers", ())
        fields.setdefault("virtual_stages", max(len(fields["chunk_layers"]) // pipeline, 1))
    elif base.get("chunk_layers") and fields.keys() & {"pipeline_parallel", "virtual_stages", "stage_layers"}:
        fields["chunk_layers"] = ()
        fields.setdefault("stage_layers", ())
    if pipeline == 1 and base.get("virtual_stages", 1) > 1:
        fields = {"virtual_stages": 1, "schedule": BY_NAME["schedule"].default} | fields
    elif "schedule" in fields and pipeline_shape(fields["schedule"], 2, 2) == "there_and_back":
        fields.setdefault("virtual_stages", 2)
    if fields.get("recompute_method", "list") != "list":
        fields.setdefault("recompute_layer_list", ())
    if fields.get("recompute", "full") != "full":
        fields |= {"recompute_method": "uniform", "recompute_layers": 1, "recompute_layer_list": ()}
    if fields.get("recompute", "selective") != "selective":
        fields["recompute_modules"] = BY_NAME["recompute_modules"].default
    return {name: value for name, value in fields.items() if name not in changes or changes[name] != value}


def _tensor_parallel(base: Mapping[str, Any], fields: dict[str, Any], recipe: Recipe | None) -> None:
    """Add the fields that follow from another tensor-parallel size."""
    before = base.get("tensor_parallel", 1)
    tensor = fields.get("tensor_parallel", before)
    if tensor == before:
        return
    if "sequence_parallel" in base:
        fields.setdefault("sequence_parallel", tensor > 1 and (base["sequence_parallel"] or before == 1))
    # Paddle's expert group is the tensor-parallel group (moe_group mp).
    if recipe is not None and recipe.framework == "paddle" and base.get("expert_parallel") == before > 1:
        fields.setdefault("expert_parallel", tensor)
    elif base.get("expert_tensor_parallel") == before > 1:
        fields.setdefault("expert_tensor_parallel", tensor)


def usual_workload(question: Question, model: ModelSpec, *, tunes: bool) -> dict[str, int]:
    """Return the sequence and the batch that nobody said, no longer than the model's longest; a recipe says its own.

    Where a run `tunes` they are those of fine-tuning, unless lengths or images say the sequence.
    """
    usual: Mapping[str, int] = TUNING_WORKLOAD if tunes else DEFAULT_WORKLOAD
    length = (usual if {"lengths", "images"}.isdisjoint(question.inputs) else DEFAULT_WORKLOAD)["seq_length"]
    workload = {**usual, "seq_length": min(length, model.longest_sequence or length)}
    said = {*question.inputs, *(("seq_length",) if "lengths" in question.inputs else ())}
    return {name: workload[name] for name in TUNING_WORKLOAD if name not in said and question.recipe is None}
