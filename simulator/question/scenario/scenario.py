"""Scenario: model, cluster, workload, framework and coefficients, the same for all layouts of a question."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from simulator.errors import InputError
from simulator.question.coefficients import Coefficients
from simulator.question.frameworks.profile import FrameworkProfile, merges_experts
from simulator.question.frameworks.stacks import MEGATRON, ReleaseCase, with_release
from simulator.question.scenario.inputs import BY_INPUT, WORKLOAD, Workload
from simulator.question.scenario.lengths import Lengths
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.vision import Images
from simulator.question.vocabulary import StackName
from simulator.records import Record, field, replace

if TYPE_CHECKING:
    from typing import Unpack

    from simulator.question.scenario.keywords import WorkloadFields


@lru_cache(maxsize=1024)
def _first_of_equals(profile: FrameworkProfile) -> FrameworkProfile:
    """Return one object for all equal profiles: figures are remembered by them, and identity is compared at once."""
    return profile


class Calibrated(Protocol):
    """Calibration as a scenario sees it: coefficients, and the error of estimates made with them."""

    @property
    def name(self) -> str:
        """Name in the provenance."""

    def coefficients(self) -> Coefficients:
        """Return the set that the formulas take."""

    def judged(self, scenario: Scenario, estimates: Sequence[Any]) -> Any:
        """Return estimates with intervals, the probability that they fit, and the origin of their numbers."""

    def difference_half_widths(self, alternatives: Sequence[tuple[Scenario, Any]]) -> Any:
        """Return half the 90 % range of each layout's step time over the first layout's, in the logarithm."""

    def likely_to_fit(self, scenario: Scenario, priced: Any, index: Any, probability: float) -> Any:
        """Return which layouts at `index` of a priced block fit with at least `probability`."""


class NodeGroup(Record):
    """Group of equal nodes in a cluster of several kinds."""

    hardware: HardwareSpec
    devices: int
    """Devices used of all nodes of the group."""
    coefficients: Coefficients = field(default_factory=Coefficients)


class Cluster(Record, kw_only=True):
    """Machines of a scenario: devices, node groups and their coefficients."""

    hardware: HardwareSpec
    """Only kind of device, or the kind of the first group."""
    devices: int
    groups: tuple[NodeGroup, ...] = ()
    """Empty for a uniform cluster."""
    coefficients: Coefficients = field(default_factory=Coefficients)
    calibration: Calibrated | None = None
    """Calibration of the first group's family; None where nothing was fitted."""
    stacks: tuple[StackName, ...] = ()
    """Usual stacks of the cluster's runs: that of its calibration, then that of its hardware's spec."""


def scenario_on(
    cluster: Cluster, model: ModelSpec, framework: FrameworkProfile = MEGATRON, **workload: Unpack[WorkloadFields]
) -> Scenario:
    """Return the scenario of a model on a cluster; omitted workload fields have defaults. Raises InputError."""
    return Scenario(
        model=model,
        hardware=cluster.hardware,
        devices=cluster.devices,
        groups=cluster.groups,
        framework=framework,
        coefficients=cluster.coefficients,
        calibration=cluster.calibration,
        **workload,
    )


def positions_problem(model: ModelSpec, seq_length: int) -> str:
    """Return why a sequence is too long for a model whose table of positions is learned; empty where it is not."""
    longest = model.learned_positions
    if not longest or seq_length <= longest:
        return ""
    return f"seq_length {seq_length}: {model.name} has {longest} learned positions, the longest sequence that it takes"


class Scenario(Workload, kw_only=True):
    """Model, cluster and workload, with the framework and coefficients that price them."""

    model: ModelSpec
    hardware: HardwareSpec
    """Only kind of device, or the kind of the first group."""
    devices: int
    """Devices of the cluster; a whole number of nodes, or a part of one node."""
    groups: tuple[NodeGroup, ...] = ()
    """Node groups of a cluster of several kinds, in rank order; empty where all devices are `hardware`."""
    framework: FrameworkProfile = MEGATRON
    coefficients: Coefficients = field(default_factory=Coefficients)
    """Part of the calibration that the formulas read."""
    calibration: Calibrated | None = field(default=None, compare=False)
    """Calibration of the coefficients; with it an estimate has intervals."""
    lengths: Lengths | None = None
    """Lengths that differ; `seq_length` is then that of the fullest micro batch. None: every sequence has that."""

    images: Images | None = None
    """Images of every sequence; None for text alone."""

    def __post_init__(self) -> None:
        """Raise InputError, or UnsupportedError for the precision, where no layout could be valid."""
        BY_INPUT["devices"].check(self.devices)
        if self.lengths is not None:
            samples = self.global_batch_size * self.framework.sequences_per_sample
            object.__setattr__(self, "seq_length", self.lengths.fullest(samples))
        if self.images is not None:
            self._check_images(self.images)
        for setting in WORKLOAD:
            setting.check(getattr(self, setting.name))
        for hardware in self.kinds_of_device:
            hardware.peak(self.precision)
        if "@" in self.framework.stack and not (self.groups and self.framework.case):
            model, hardware = self.model, self.hardware
            about = (model.name, model.is_moe, hardware.name, hardware.family, self.precision, self.devices)
            case = ReleaseCase(*about, self.lora_rank is not None)
            object.__setattr__(self, "framework", with_release(self.framework, case))
        object.__setattr__(self, "framework", _first_of_equals(self.framework))
        if self.lora_rank is not None:
            self._check_adapters(self.lora_rank)
        if self.groups and sum(group.devices for group in self.groups) != self.devices:
            raise InputError(f"devices {self.devices}: the node groups add up to another number")
        per_node = self.hardware.devices_per_node
        if not self.groups and self.devices > per_node and self.devices % per_node:
            raise InputError(
                f"devices {self.devices}: more than one node of {self.hardware.name} means a multiple of {per_node}"
            )

    def _check_adapters(self, rank: int) -> None:
        decomposed = self.framework.decomposed_adapters
        if rank > self.model.hidden_size:
            raise InputError(f"lora_rank {rank}: must be at most the hidden size {self.model.hidden_size}")
        if decomposed != "none" and "head" in self.framework.adapter_targets.split("+"):
            raise InputError(f"--option decomposed_adapters={decomposed}: none is priced for the output layer, head")
        if decomposed == "apart" and self.model.is_moe and merges_experts(self.framework):  # peft 0.21, ParamWrapper
            other = "merged_expert_adapters=none or adapter_targets=attention"
            raise InputError(f"--option decomposed_adapters=apart: peft has none for experts of one parameter: {other}")

    def _check_images(self, images: Images) -> None:
        model = self.model
        if model.encoder is None:
            alone = "its encoder is not known" if model.text_part else "it reads text alone"
            raise InputError(f"images {images.number}x{images.width}x{images.height}: {model.name}: {alone}")
        if self.image_tokens > self.seq_length:
            raise InputError(
                f"images: {images.shown} take {self.image_tokens} tokens, a sequence has {self.seq_length}"
            )

    @property
    def kinds_of_device(self) -> tuple[HardwareSpec, ...]:
        """Hardware of every node group; of a uniform cluster, its only one."""
        return tuple(group.hardware for group in self.groups) or (self.hardware,)

    @property
    def hardware_name(self) -> str:
        """Name of the hardware, or the names and devices of the node groups."""
        if not self.groups:
            return self.hardware.name
        return ",".join(f"{g.hardware.name}:{g.devices}" for g in self.groups)

    @property
    def members(self) -> tuple[Scenario, ...]:
        """Uniform scenarios, one per node group, by which the stages on it are priced."""
        if not self.groups:
            return (self,)
        return tuple(
            replace(
                self, hardware=g.hardware, coefficients=g.coefficients, groups=(NodeGroup(g.hardware, self.devices),)
            )
            for g in self.groups
        )

    def group_of(self, first_device: int) -> int:
        """Return the index of the node group that holds a device."""
        end = 0
        for index, group in enumerate(self.groups):
            end += group.devices
            if first_device < end:
                return index
        return max(len(self.groups) - 1, 0)

    @property
    def nodes(self) -> int:
        """Nodes the devices fill; a part of a node counts as one."""
        groups = self.groups or (NodeGroup(self.hardware, self.devices),)
        return sum(-(-group.devices // group.hardware.devices_per_node) for group in groups)

    @property
    def widened_rest(self) -> bool:
        """Whether weights that a quantised base leaves alone, tables included, are stored in fp32."""
        return self.lora_rank is not None and self.framework.quantised_base and self.framework.widened_rest

    @property
    def frozen_in_fp32(self) -> bool:
        """Whether the weights under adapters are stored in fp32."""
        profile = self.framework
        return self.lora_rank is not None and not profile.quantised_base and profile.frozen_dtype == "fp32"

    def trains(self, end: Literal["embedding", "output"]) -> bool:
        """Return whether the input table or the output layer is trained: with all weights, or beside adapters."""
        return self.lora_rank is None or self.framework.saved_modules in (end, "both")

    @property
    def widened_modules(self) -> bool:
        """Whether modules that are trained beside adapters are stored in fp32, as copies of a widened base are."""
        beside = self.lora_rank is not None and self.framework.saved_modules != "none"
        widened = self.widened_rest or self.frozen_in_fp32
        return beside and (widened or self.framework.saved_modules_dtype == "fp32")

    @property
    def prediction_modules(self) -> int:
        """Next-token prediction modules that are trained beside the model."""
        return self.model.num_nextn_predict_layers if self.framework.mtp else 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step, of every sequence of a sample."""
        return round(self.sample_tokens * self.global_batch_size * self.framework.sequences_per_sample)

    @property
    def image_tokens(self) -> int:
        """Tokens of a sequence that stand for images."""
        if self.images is None or self.model.encoder is None:
            return 0
        return self.images.number * self.images.each(self.model.encoder).tokens

    @property
    def sample_tokens(self) -> float:
        """Mean tokens of a sequence, without padding."""
        return self.seq_length if self.lengths is None else self.lengths.sample_tokens

    def of_length(self, seq_length: int) -> Scenario:
        """Return the scenario with every sequence of one length, in which its images have room."""
        if self.images is not None and self.images.fills and self.model.encoder is not None:
            images = Images.filling(self.model.encoder, seq_length, self.images.trained)
            return replace(self, seq_length=seq_length, lengths=None, images=images)
        return replace(self, seq_length=max(seq_length, self.image_tokens), lengths=None)

    @property
    def outputs_per_token(self) -> int:
        """Outputs of the model per token: logits, or one score."""
        return 1 if self.framework.score_head else self.model.vocab_size
