"""Throw-away extensions, one of each kind: the files that `CONTRIBUTING.md` names for it, and what is asked of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MEGATRON = "examples/recipes/llama3-8b-megatron.sh"
_HARDWARE = "hardware_specs/abacus.yaml"
_LLAMA = "model_specs/llama3.2-1b.yaml"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A command, and what comes of it."""

    command: str
    says: str
    """Part of the answer, or of the one line that refuses."""
    status: int = 0


@dataclass(frozen=True, kw_only=True)
class Extension:
    """One extension: files of the project that it touches, data of a user beside them, and questions."""

    heading: str
    """Its heading in CONTRIBUTING.md."""
    most: int
    """Files that it may take."""
    new: Mapping[str, str] = field(default_factory=dict)
    """Text of new files; `COPY OF file` begins as that one."""
    edits: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Exact text, which the file holds once, and what stands there instead."""
    generates: bool = False
    """Whether `python -m tools.regenerate types` follows."""
    data: Mapping[str, str] = field(default_factory=dict)
    """What its user brings: no part of the extension."""
    asked: tuple[Asked, ...]
    """A ranking, an estimate, a check and a recipe."""


def _questions(given: str, found: str, *, emit: Asked, rank: str = "", check: str = "") -> tuple[Asked, ...]:
    hardware = "" if "--hardware" in given else "--hardware h20 "
    small = f"{hardware}--devices 2 --seq-length 2048 --global-batch-size 16"
    question = f"{'' if '--model ' in given else '--model llama3.2-1b '}{small}"
    return (
        Asked(command=f"rank {question} {given} --top 2", says=rank or found),
        Asked(command=f"estimate {question} {given}", says=found),
        Asked(command=f"check {MEGATRON} {hardware}--global-batch-size 32 {given}", says=check or found),
        Asked(command=f"emit {question} {given} {emit.command}", says=emit.says, status=emit.status),
    )


_COPIES = '    sequence_copies: int = input_field(1, "Times that a step trains on each sequence.", high=64)\n'
WORKLOAD_FIELD = Extension(
    heading="A workload field",
    most=2,
    edits={
        "simulator/question/scenario/inputs.py": (
            (
                "    @property\n    def workload(self)",
                f"{_COPIES}\n    @property\n    def workload(self)",
            ),
        ),
        "simulator/cost/operations/sums.py": (
            (
                "return pricing.scenario.global_batch_size / (",
                "return pricing.scenario.sequence_copies * pricing.scenario.global_batch_size / (",
            ),
        ),
    },
    generates=True,
    asked=_questions(
        "--sequence-copies 2",
        "llama3.2-1b",
        check="1 fits",
        emit=Asked(command="--framework megatron", says="--sequence-copies: megatron recipes have no word", status=3),
    ),
)

DEVICE = Extension(
    heading="A device",
    most=1,
    new={_HARDWARE: "COPY OF hardware_specs/h20.yaml"},
    edits={
        _HARDWARE: (
            ("name: h20\n", "name: abacus\n"),
            ("aliases: [h20-96gb, h20-sxm, nvidia-h20]\n", ""),
            ('bf16: {value: "148 TFLOP/s"', 'bf16: {value: "15 TFLOP/s"'),
        )
    },
    asked=_questions("--hardware abacus", "abacus", emit=Asked(command="--framework megatron", says="pretrain_gpt.py")),
)

POLICY = Extension(
    heading="A recompute policy",
    most=2,
    edits={
        "simulator/question/vocabulary.py": (('"attention", "operations"]', '"attention", "operations", "norms"]'),),
        "simulator/cost/operations/recompute.py": (
            (
                "            return (Part(groups=_ATTENTION),)\n",
                (
                    "            return (Part(groups=_ATTENTION),)\n"
                    '        case "norms":\n'
                    '            return (Part(groups=frozenset({"norm"})),)\n'
                ),
            ),
        ),
    },
    asked=_questions(
        "--recompute norms",
        "recompute norms",
        rank="norms",
        emit=Asked(command="--framework megatron", says="--recompute norms: Megatron-LM recomputes modules", status=3),
    ),
)

FAMILY = Extension(
    heading="A family of models",
    most=1,
    edits={
        "simulator/question/specs/families/families.yaml": (
            ("\nphi3: {", "\nolmo4: {like: _grouped, set: {norm_placement: around}}\nphi3: {"),
        ),
    },
    data={
        "olmo4-1b/config.json": '{"model_type": "olmo4", "num_hidden_layers": 32, "hidden_size": 2048, '
        '"intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 50304}'
    },
    asked=_questions(
        "--model olmo4-1b/config.json",
        "olmo4-1b",
        emit=Asked(command="--framework megatron", says="this one sets norm_placement", status=3),
    ),
)

MIXER = Extension(
    heading="A token mixer",
    most=3,
    new={
        "simulator/cost/operations/average.py": '''"""Every token takes the mean of those before it."""

from __future__ import annotations

from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.attention import output_projection
from simulator.cost.operations.record import Conditions
from simulator.cost.operations.recurrent import input_projection, scan_exchange
from simulator.cost.operations.record import Amount, Operation, Saved, Weight


def average(conditions: Conditions) -> tuple[Operation, ...]:
    """The operations between the norm and the residual addition."""
    width, element = conditions.model.query_width, element_bytes(conditions)
    weights = (Weight("v", conditions.model.hidden_size, width, "column"),)
    mean = Operation(
        name="mean",
        group="core_attention",
        saved=(Saved("mean", element * width, "tensor"),),
        moved=(Amount(2.0 * element * width, "tensor"),),
        core_flops=float(width),
    )
    return (
        input_projection(conditions, "value", weights, width),
        scan_exchange(conditions, width, width),
        mean,
        output_projection(conditions, width),
    )
'''
    },
    edits={
        "simulator/question/specs/model.py": (
            ('    "linear",\n    "none",\n', '    "linear",\n    "average",\n    "none",\n'),
            (
                '        "none": MixerTraits(',
                '        "average": MixerTraits("none", "state", ()),\n        "none": MixerTraits(',
            ),
        ),
        "simulator/cost/operations/layer.py": (
            (
                "from simulator.cost.operations.blocks",
                "from simulator.cost.operations.average import average\nfrom simulator.cost.operations.blocks",
            ),
            ('        "mamba": mamba,\n', '        "mamba": mamba,\n        "average": average,\n'),
        ),
    },
    data={"averaging.yaml": f"COPY OF {_LLAMA}\nmixers: [average]\n"},
    asked=_questions(
        "--model averaging.yaml --num-layers 32",
        "llama3.2-1b",
        rank="averaging.yaml",
        emit=Asked(command="--framework megatron", says="this one sets mixers", status=3),
    ),
)

SCHEDULE = Extension(
    heading="A schedule",
    most=3,
    new={
        "simulator/cost/schedule/gpipe.py": '''"""GPipe: all forward passes of a step, then all backward passes."""

from __future__ import annotations

import numpy as np

from simulator.cost.schedule.schedule import Schedule, Turns, one_of_each_in_turn
from simulator.question.scenario.block import Array, StageArray


class GPipe(Schedule):
    """Ranks without model chunks of their own, which hold all micro batches at once."""

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """All forward passes, then all backward passes."""
        kind, micro_batch = one_of_each_in_turn(micro_batches, micro_batches)
        return np.column_stack((kind, micro_batch, np.zeros_like(kind)))

    def in_flight(self, ranks: int, chunks: int, micro_batches: Array) -> StageArray:
        """All of them."""
        return np.ones((ranks, 1)) * micro_batches

    def fill_seconds(self, others_seconds: Array, chunks: int) -> Array:
        """The others' work passes by once."""
        return others_seconds
'''
    },
    edits={
        "simulator/cost/schedule/orders.py": (
            (
                "from simulator.cost.schedule.schedule import (",
                "from simulator.cost.schedule.gpipe import GPipe\nfrom simulator.cost.schedule.schedule import (",
            ),
            (
                "    match name:\n",
                (
                    "    if block.pipeline_parallel == 2 and np.all(block.chunks == 1):\n"
                    "        return GPipe()\n"
                    "    match name:\n"
                ),
            ),
        ),
    },
    asked=(
        *_questions(
            "--pp 2",
            "PP2",
            rank=" 2 ",
            emit=Asked(command="--framework megatron", says="--pipeline-model-parallel-size 2"),
        ),
        Asked(
            command="estimate --model llama3.2-1b --hardware h20 --devices 2 --pp 2 --seq-length 2048 "
            "--global-batch-size 16 --format json",
            says="",
        ),
    ),
)

PROFILE = Extension(
    heading="A framework profile",
    most=1,
    new={
        "simulator/frameworks/loom/profile.yaml": (
            "version: loom 1.0\nlimits: {zero_stage: 2}\nswitches: {fused_swiglu: false}\n"
        )
    },
    asked=_questions(
        "--framework loom",
        "loom",
        check="1 fits",
        emit=Asked(command="", says="--framework", status=2),
    ),
)

ESTIMATES_CSV = "ranking;estimate,csv,report.as_json.estimates_csv\n"
FORMAT = Extension(
    heading="An output format",
    most=2,
    edits={
        "simulator/show/report/forms.csv": ((ESTIMATES_CSV, ESTIMATES_CSV + ESTIMATES_CSV.replace("csv", "tsv")),),
        "simulator/show/report/as_json.py": (
            (
                "def estimates_csv(",
                (
                    "def estimates_tsv(answer: Estimate | Ranking, presentation: Presentation) -> str:\n"
                    '    """Return the same with tabs."""\n'
                    '    return estimates_csv(answer, presentation).replace(",", "\\t")\n\n\n'
                    "def estimates_csv("
                ),
            ),
        ),
    },
    asked=(
        *_questions("--format tsv", "rank\tmodel\t", emit=Asked(command="", says=""))[:2],
        Asked(command=f"check {MEGATRON} --hardware h20 --format tsv", says="tsv", status=2),
        Asked(command="emit --model llama3.2-1b --framework megatron --format tsv", says="--format", status=2),
    ),
)

EXTENSIONS = (WORKLOAD_FIELD, DEVICE, POLICY, FAMILY, MIXER, SCHEDULE, PROFILE, FORMAT)
