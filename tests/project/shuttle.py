"""A framework that nobody has, as one folder: its table, its profile, what it refuses, what reads and writes it."""

from tests.project.extensions import Asked, Extension

FOLDER = "simulator/frameworks/shuttle"
WORDS = """name,kind,weight,takes,default,sets,what,file,first,last
weave_tensor,priced,,value,1,layout.tensor_parallel,tensor parallel size,shuttle/options.py,1.0,1.0
weave_stages,priced,,value,1,layout.pipeline_parallel,pipeline parallel size,shuttle/options.py,1.0,1.0
weave_micro,priced,,value,1,layout.micro_batch_size,micro batch size,shuttle/options.py,1.0,1.0
micro,priced,,value,,alias:weave_micro,other name of weave-micro,shuttle/options.py,1.0,1.0
weave_batch,priced,,value,,workload.global_batch_size,global batch size,shuttle/options.py,1.0,1.0
weave_length,priced,,value,,workload.seq_length,sequence length,shuttle/options.py,1.0,1.0
weave_again,priced,,value,none,"layout.recompute=nothing:none,all:full|none",recompute,shuttle/options.py,1.0,1.0
weave_split_state,priced,,switch,,layout.zero_stage=1|0,ZeRO stage 1,shuttle/options.py,1.0,1.0
weave_unfused_swiglu,priced,,switch,,option.fused_swiglu=false,switch fused_swiglu,shuttle/options.py,1.0,1.0
weave_model,priced,,value,,,the model's name,shuttle/options.py,1.0,1.0
weave_rate,no_effect,,value,,,learning rate,shuttle/options.py,1.0,1.0
weave_sparse,not_modelled,verdict,switch,,,sparse attention is not priced,shuttle/options.py,1.0,1.0
"""
PROFILE = """version: shuttle 1.0
limits: {zero_stage: 1}
switches: {}
"""
RULES = """framework: shuttle
versions: shuttle 1.0
rules:
  - id: shuttle-recompute-pipeline
    source: "shuttle 1.0, shuttle/options.py:12"
    about: a pipeline does nothing again
    says: the loom has one shuttle
    when:
      - layout.recompute: full
        layout.pipeline_parallel: more than 1
    fix: --recompute none, or --pp 1
    blame: [recompute]
"""
READ = '''"""Shuttle as a framework."""

from __future__ import annotations

from typing import Final

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.framework import Framework, LaunchForm, RecipeWriter
from simulator.frameworks.arguments import LaunchCommand
from simulator.frameworks.models import named_model
from simulator.question.recipe import Recipe
from simulator.frameworks.shuttle.write import shuttle_script, shuttle_words
from simulator.frameworks.take import part, take
from simulator.question.scenario.layout import Layout


def is_shuttle(launch: LaunchCommand) -> bool:
    """Whether a launch starts weave.py."""
    return launch.script.text.endswith("weave.py")


def read(arguments: Arguments, _: LaunchCommand) -> Recipe:
    """The run of a launch."""
    targets = take(arguments)
    return Recipe(
        framework="shuttle",
        model=named_model(arguments, arguments.text("model", "weave-model") or "", "weave-model"),
        precision="bf16",
        layout=Layout(**part(targets, "layout")),
        options=part(targets, "option"),
        **part(targets, "workload"),
    )


FRAMEWORK: Final = Framework(
    title="Shuttle",
    profile="shuttle",
    tables=("shuttle",),
    launches=(LaunchForm(dialect="shuttle-shell", order=1, is_own=is_shuttle, read=read),),
    writer=RecipeWriter(text=shuttle_script, words=shuttle_words, dialects=("shuttle-shell",)),
)
'''
WRITE = '''"""A launch script of Shuttle."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.frameworks.flags import table_of
from simulator.frameworks.write import Head, WordPair, Writing, flags, shell
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario


def shuttle_script(scenario: Scenario, layout: Layout, head: Head) -> str:
    """The script. Raises UnsupportedError for what Shuttle has no flag for."""
    case = Writing(scenario, layout, table_of("shuttle"))
    case.refuse_switches((), "Shuttle")
    case.refuse_layout(("data_parallel", "stage_layers"), "Shuttle")
    model = ("weave_model", case.shipped_name("Shuttle"))
    start = f"--nnodes {head.nodes} --nproc_per_node {head.devices_per_node}"
    return shell([], f"torchrun {start} weave.py", flags([model, *shuttle_words(scenario, layout)]), head)


def shuttle_words(scenario: Scenario, layout: Layout) -> Iterator[WordPair]:
    """The flags of a question."""
    case = Writing(scenario, layout, table_of("shuttle"))
    yield from case.degrees("tensor_parallel", "pipeline_parallel", "micro_batch_size", "recompute", "zero_stage")
    yield "weave_batch", str(scenario.global_batch_size)
    yield "weave_length", str(scenario.seq_length)
    yield from case.options()
'''
_LAUNCH = "torchrun --nproc_per_node 2 weave.py --weave-model llama3.2-1b --weave-length 2048 --weave-batch 16"
_QUESTION = "--model llama3.2-1b --hardware h20 --devices 2 --seq-length 2048 --global-batch-size 16"

FRAMEWORK = Extension(
    heading="A framework",
    most=6,
    new={
        f"{FOLDER}/__init__.py": '"""Shuttle."""\n',
        f"{FOLDER}/words.csv": WORDS,
        f"{FOLDER}/profile.yaml": PROFILE,
        f"{FOLDER}/rules.yaml": RULES,
        f"{FOLDER}/framework.py": READ,
        f"{FOLDER}/write.py": WRITE,
    },
    data={
        "good.sh": f"{_LAUNCH} --weave-stages 2 --micro 2 --weave-rate 1e-4 --weave-split-state\n",
        "refused.sh": f"{_LAUNCH} --weave-stages 2 --weave-again all\n",
        "unpriced.sh": f"{_LAUNCH} --weave-sparse\n",
        "unknown.sh": f"{_LAUNCH} --weave-sprase\n",
    },
    asked=(
        Asked(command=f"rank {_QUESTION} --framework shuttle --top 2", says="shuttle"),
        Asked(command=f"estimate {_QUESTION} --framework shuttle --pp 2", says="PP2"),
        Asked(command="check good.sh --hardware h20", says="mbs2 recompute none"),
        Asked(command="check refused.sh --hardware h20 --exit-zero", says="[shuttle-recompute-pipeline]"),
        Asked(command="check unpriced.sh --hardware h20 --exit-zero", says="[not-modelled]"),
        Asked(command="check unknown.sh --hardware h20 --exit-zero", says="[unknown-flag]"),
        Asked(command=f"emit {_QUESTION} --framework shuttle --pp 2 --output woven.sh", says=""),
        Asked(command="check woven.sh --hardware h20", says="PP2"),
        Asked(command=f"emit {_QUESTION} --framework shuttle --cp 2", says="CP 2: Shuttle has no word", status=3),
        Asked(command="flags shuttle", says="weave_split_state"),
    ),
)
