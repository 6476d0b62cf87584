"""Option values to the layout of an estimate, or to the space of a ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from click import UsageError

from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.search.space import Space

_SIZES = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
}
_CHOICES = ("micro_batch_size", "zero_stage", "recompute", "recompute_method", "recompute_layers", "offload")


def check_cluster(values: Mapping[str, Any]) -> None:
    """Refuse nodes and devices together."""
    if values["nodes"] is not None and values["devices"] is not None:
        raise UsageError("--nodes and --devices exclude each other: give one")


def framework_options(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the framework's switches; one that is given twice is refused."""
    found: dict[str, str] = {}
    for name, text in values["option"]:
        if found.setdefault(name, text) != text:
            raise UsageError(f"--option {name}: given as '{found[name]}' and as '{text}'")
    return found


def space(values: Mapping[str, Any]) -> Space:
    """Return the space a ranking searches: what was given narrows it, the rest is left open."""
    from simulator.search.space import Space  # noqa: PLC0415  start-up time

    _check_virtual_stages(values, values["vpp"] or ())
    _check_cut(values, values["pp"])
    axes: dict[str, Any] = {field: values[name] for name, field in _SIZES.items()}
    axes |= {name: values[name] for name in _CHOICES}
    axes |= _full_only(values, "full" in (values["recompute"] or ("full",)))
    axes |= _listed(values)
    sequence = values["sequence_parallel"]
    return Space(
        **{name: _choices(value) for name, value in axes.items()},
        data_parallel=values["dp"],
        virtual_stages=values["vpp"],
        layers_per_virtual_stage=values["layers_per_virtual_stage"],
        sequence_parallel=None if sequence is None else (sequence,),
        recompute_layer_list=values["recompute_layer_list"] or (),
        stage_layers=values["stage_layers"] or (),
        tensor_parallel_across_nodes=values["allow_tp_across_nodes"],
    )


def layout_fields(values: Mapping[str, Any], devices: int, layers: int) -> dict[str, Any]:
    """Return the fields of `Layout` that an estimate was given, on so many devices and for so many layers.

    What was left out is None: the API completes it from the scenario.
    """
    _check_cut(values, None if values["pp"] is None else (values["pp"],))
    sizes: dict[str, Any] = {field: values[name] or 1 for name, field in _SIZES.items()}
    choices: dict[str, Any] = {name: values[name] for name in _CHOICES} | _full_only(
        values, values["recompute"] == "full"
    )
    return (
        sizes
        | choices
        | _listed(values)
        | {
            "pipeline_parallel": _pipeline(values),
            "data_parallel": data_parallel(values, devices),
            "virtual_stages": _virtual_stages(values, layers),
            "sequence_parallel": values["sequence_parallel"],
            "recompute_layer_list": values["recompute_layer_list"] or (),
            "stage_layers": values["stage_layers"] or (),
        }
    )


def model_parallel(values: Mapping[str, Any]) -> int:
    """Return how many devices one replica takes."""
    return int((values["tp"] or 1) * _pipeline(values) * (values["cp"] or 1))


def data_parallel(values: Mapping[str, Any], devices: int) -> int:
    """Return the replicas: as given, or as many as the devices hold."""
    replica = model_parallel(values)
    given = values["dp"]
    sizes = f"--tp {values['tp'] or 1} x --pp {_pipeline(values)} x --cp {values['cp'] or 1}"
    if given is not None and given * replica != devices:
        raise InputError(f"{sizes} x --dp {given} take {given * replica} devices; there are {devices}")
    if devices % replica:
        raise InputError(f"{sizes} = {replica} does not divide the {devices} devices")
    return devices // replica


def _virtual_stages(values: Mapping[str, Any], layers: int) -> int:
    _check_virtual_stages(values, (values["vpp"],) if values["vpp"] else ())
    chunk = values["layers_per_virtual_stage"]
    if chunk is None:
        return values["vpp"] or 1
    pipeline = _pipeline(values)
    if layers % (pipeline * chunk):
        raise InputError(f"--layers-per-virtual-stage {chunk} x --pp {pipeline} does not divide the model's {layers}")
    return int(layers // (pipeline * chunk))


def _pipeline(values: Mapping[str, Any]) -> int:
    """Return the pipeline size: as given, or the stages of an explicit cut."""
    return int(values["pp"] or len(values["stage_layers"] or (0,)))


def _check_cut(values: Mapping[str, Any], pipelines: Sequence[int] | None) -> None:
    stages = len(values["stage_layers"] or ())
    if stages and pipelines is not None and stages not in pipelines:
        given = ",".join(map(str, pipelines[:8]))
        raise UsageError(f"--stage-layers names {stages} stages, but --pp is {given}")


def _check_virtual_stages(values: Mapping[str, Any], chunks: Sequence[int]) -> None:
    """Refuse two ways of saying the chunks, and chunks of stages that differ."""
    if chunks and values["layers_per_virtual_stage"] is not None:
        raise UsageError("--vpp and --layers-per-virtual-stage exclude each other: give one")
    cut = values["stage_layers"] or ()
    option = "--layers-per-virtual-stage" if values["layers_per_virtual_stage"] is not None else "--vpp"
    if len(set(cut)) > 1 and (option != "--vpp" or min(chunks, default=1) > 1):
        given = ",".join(map(str, cut[:16])) + ("..." if len(cut) > 16 else "")
        raise UsageError(
            f"{option}: virtual stages need an even cut, and --stage-layers {given} is uneven; leave out one"
        )


def _full_only(values: Mapping[str, Any], full: bool) -> dict[str, Any]:
    """Refuse what only full recompute has, and let it imply full recompute where nothing else was said."""
    given = [name for name in ("recompute_method", "recompute_layers", "recompute_layer_list") if values[name]]
    if not given:
        return {}
    option = "--" + given[0].replace("_", "-")
    if not full and values["recompute"] is not None:
        raise UsageError(f"{option} needs --recompute full")
    return {"recompute": values["recompute"] or "full"}


def _listed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recompute method of an explicit list of layers."""
    if not values["recompute_layer_list"]:
        return {}
    for name in ("recompute_method", "recompute_layers"):
        if values[name] is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"--recompute-layer-list and {option} exclude each other: give one")
    return {"recompute_method": "list"}


def _choices(value: Any) -> Any:
    """Return the values to choose from; a single one is a choice of one."""
    return value if value is None or isinstance(value, tuple) else (value,)
