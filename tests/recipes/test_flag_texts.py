"""Texts among the flags that may hold any flag, the script's own arguments, and names that no table has."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.frameworks.flags import Flag, FlagTable, is_irrelevant, misspelled
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked
from simulator.recipes.readers.read import read_recipe
from tests.recipes.seeds import about, rules
from tests.recipes.test_megatron import BASE

LAUNCH = f"torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {' '.join(BASE.split())} --sequence-parallel"
DEGREES = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"


def read(text: str, folder: Path, **settings: str) -> Recipe:
    file = folder / "run.sh"
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file, settings)
    return recipe


def checked(folder: Path, **settings: str) -> Checked:
    asked = question_of({"hardware": "h100-sxm-80g"})
    (found,) = check_files([str(folder / "run.sh")], asked, Gates(), settings)
    return found


def affected(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    return {unknown.name: unknown.affects for unknown in recipe.unknowns if unknown.affects}


@pytest.mark.parametrize(
    ("before", "flags", "name"),
    [
        ("", "$EXTRA_ARGS", "EXTRA_ARGS"),
        ("", "--lr 1e-4 $MORE", "MORE"),
        ("", "--no-load-optim $MORE", "MORE"),
        ("", "--save ${EXTRA_ARGS}", "EXTRA_ARGS"),
        ("", '"$EXTRA_ARGS"', "EXTRA_ARGS"),
        ("", "--$SWITCH", "SWITCH"),
        ("P=$(cat args.txt)", "$P", "$(cat args.txt)"),
        ("source ./parallel.sh", "${PARALLEL_ARGS[@]}", "PARALLEL_ARGS"),
        ("A=(); while read -r l; do A+=($l); done < f", '"${A[@]}"', "read -r l"),
        ("A=(--a); A+=(${EXTRA[@]})", '"${A[@]}"', "EXTRA"),
        ("if [ $1 = a ]; then O=$MORE; else O=; fi", "$O", "MORE"),
    ],
)
def test_a_text_that_may_hold_any_flag(before: str, flags: str, name: str, tmp_path: Path) -> None:
    recipe = read(f"{before}\n{LAUNCH} {flags}\n", tmp_path)
    assert "any_other_flag" in affected(recipe)[name]
    answer = checked(tmp_path)
    assert (answer.outcome, answer.passed) == ("cannot_tell", False)
    assert any("any other flag" in reason for reason in answer.reasons)


OWN_LISTS = "TRAIN_ARGS='--lr 1e-4'; DATA_ARGS='--data-path d'; MODEL_ARGS=(--seed 1)"


def test_a_list_of_flags_that_the_script_forgot_may_be_told(tmp_path: Path) -> None:
    told = read(f"{OWN_LISTS}\n{LAUNCH} $TRAIN_ARGS $MOE_ARGS\n", tmp_path, MOE_ARGS=DEGREES)
    assert told.layout is not None
    assert told.layout.tensor_parallel == 4


@pytest.mark.parametrize(
    ("before", "name"),
    [
        (OWN_LISTS, "EXTRA_ARGS"),
        (OWN_LISTS, "MOE"),
        (OWN_LISTS, "DIST_ARGS"),
        (OWN_LISTS, "PARALLEL_ARGS"),
        (OWN_LISTS, "RECOMPUTE_ARGS"),
        (OWN_LISTS, "MOE_ARGS"),
        (f"{OWN_LISTS}; source ./experts.sh", "MOE_ARGS"),
    ],
)
def test_a_list_of_flags_that_may_come_from_elsewhere(before: str, name: str, tmp_path: Path) -> None:
    recipe = read(f"{before}\n{LAUNCH} $TRAIN_ARGS ${name}\n", tmp_path)
    assert "any_other_flag" in affected(recipe)[name]


def test_the_user_says_what_the_text_holds(tmp_path: Path) -> None:
    recipe = read(f"{LAUNCH} $EXTRA_ARGS\n", tmp_path, EXTRA_ARGS="")
    assert affected(recipe) == {}
    assert checked(tmp_path, EXTRA_ARGS="").outcome in ("fits", "does_not_fit")
    recipe = read(f"{LAUNCH} $EXTRA_ARGS\n", tmp_path, EXTRA_ARGS=DEGREES)
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.pipeline_parallel) == (4, 2)


def test_flags_that_the_text_may_hold_are_not_said_to_be_absent(tmp_path: Path) -> None:
    launch = "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 $MODEL_ARGS"
    recipe = read(launch, tmp_path)
    assert affected(recipe) == {"MODEL_ARGS": ("any_other_flag", "model", "seq_length")}
    assert rules(recipe) == set()
    assert len(checked(tmp_path).reasons) == 1


@pytest.mark.parametrize(
    "flags", ["--data-path $A $B", '--train-data-path 1 "$A"', "--save $DIR", "--lr $LR --seed $S"]
)
def test_values_of_flags_are_no_flags(flags: str, tmp_path: Path) -> None:
    recipe = read(f"{LAUNCH} {flags}\n", tmp_path)
    assert affected(recipe) == {}
    assert recipe.layout is not None


@pytest.mark.parametrize(
    "flags", ['"$@"', "$@", "$*", "${@:1}", '--data-path d "$@"', '--data-path "$@"', '--lr "${@:2}"']
)
def test_arguments_that_nobody_gave(flags: str, tmp_path: Path) -> None:
    recipe = read(f"{LAUNCH} {flags}\n", tmp_path)
    assert recipe.unknowns == () or affected(recipe) == {}
    (remark,) = (remark for remark in recipe.remarks if remark.rule == "assumed-unset")
    assert (remark.severity, remark.place and remark.place.line) == ("note", 1)
    assert "no arguments" in remark.message
    assert checked(tmp_path).outcome != "cannot_tell"
    assert about(read(f"{LAUNCH} {flags}\n", tmp_path, **{"@": ""}), "assumed-unset") == []


def test_arguments_that_the_user_gives(tmp_path: Path) -> None:
    recipe = read(f'{LAUNCH} "$@"\n', tmp_path, **{"@": DEGREES})
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.pipeline_parallel) == (4, 2)


@pytest.mark.parametrize(
    "before",
    [
        f'f() {{ echo "{DEGREES}"; }}\nP=$(f)',
        f"f() {{\ncat <<EOF\n{DEGREES}\nEOF\n}}\nP=`f`",
        (
            "declare -A C=([tp]=4)\nC[pp]=2\nP="
            '"--tensor-model-parallel-size ${C[tp]} --pipeline-model-parallel-size ${C[pp]}"'
        ),
    ],
)
def test_flags_that_the_script_itself_makes(before: str, tmp_path: Path) -> None:
    recipe = read(f"{before}\n{LAUNCH} $P\n", tmp_path)
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.pipeline_parallel) == (4, 2)
    assert recipe.unknowns == ()


@pytest.mark.parametrize(
    "name",
    [
        *("full_finetune", "finetune_method", "trainable_part"),
        *("load_in_4bit", "memory_efficient_norm", "train_adapters_only", "disable_gradient_checkpointing"),
        *("--fp8-param", "freeze_llm", "compile_model", "lora_target", "quantization_bit"),
    ],
)
def test_names_that_may_matter(name: str) -> None:
    assert not is_irrelevant(name)


@pytest.mark.parametrize(
    "name",
    [
        *("--load", "--no-load-optim", "--train-iters", "--model_type", "--stage", "--plot_loss", "disable_tqdm"),
        *("fsdp_transformer_layer_cls_to_wrap", "weight_decay", "lora_alpha", "device", "train_file", "--min-lr"),
    ],
)
def test_names_that_do_not_matter(name: str) -> None:
    assert is_irrelevant(name)


def test_only_a_slip_is_a_misspelling() -> None:
    names = ("no_initialization", "compute_type", "expert_tensor_parallel_degree", "tensor_parallel_degree")
    known = FlagTable(dict.fromkeys(names, Flag(about="")))
    assert misspelled("tensor_paralel_degree", known) == ", did you mean 'tensor_parallel_degree'?"
    assert [misspelled(name, known) for name in ("use_cpu_initialization", "model_type")] == ["", ""]
    assert misspelled("enable_async_tensor_parallel", known) == ""
