"""Every flag has one class, and nothing firm is said over one that has none."""

import csv
import os
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from simulator.answers.gates import Gates
from simulator.frameworks import registry
from simulator.frameworks.flags import Flag, FlagWeight, table_file, table_names, table_of
from simulator.question.question import question_of
from simulator.recipes.check.judge import UNDECIDED, check_files, check_recipe
from simulator.recipes.check.verdict import Checked, exit_code
from simulator.recipes.readers.read import read_recipe
from tests.check.bare import no_advice
from tests.recipes.seeds import ROOT
from tests.recipes.test_megatron import BASE
from tools import flag_names

TABLES = table_names()
PADDLE = "--model_name_or_path llama-7b --max_seq_len 2048 --per_device_train_batch_size 1 --bf16 --sharding stage1"
SHARED = Path(os.environ.get("SIMULATE_SHARED") or ROOT.parent / "shared")
FAMILIES = ("mindspeed", "pai", "megatron-lm", "megatron-forks", "flagscale", "flagperf", "paddlenlp", "paddleformers")
COMPLETE = ("megatron-shell", "paddle-shell", "paddle-yaml")
"""Dialects whose tables hold all the framework has."""
WORDS = ("lora", "adapter", "freeze", "swap", "offload", "recompute", "checkpoint", "reuse", "prefix", "vision")
MORE_WORDS = ("image", "quant", "layout", "stage", "expert", "mtp", "logging", "data", "path")


def megatron(flags: str, folder: Path) -> Checked:
    return judged(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {' '.join(BASE.split())} {flags}", folder)


def paddle(flags: str, folder: Path) -> Checked:
    return judged(
        f"python -m paddle.distributed.launch --nnodes 1 --devices 0,1,2 run_pretrain.py {PADDLE} {flags}", folder
    )


def judged(line: str, folder: Path) -> Checked:
    file = folder / "run.sh"
    file.write_text(f"\n{line}\n")
    (recipe,) = read_recipe(file)
    return check_recipe(recipe, question_of({"hardware": "h100-sxm-80g"}), Gates())


def by_figure(found: Checked) -> str:
    """The verdict, by the figure itself where its range leaves it to a run."""
    if found.estimate is not None and [x.rule for x in found.remarks if x.severity == "error"] == [UNDECIDED]:
        return "fits" if found.estimate.memory.fits else "does_not_fit"
    return "fits" if found.passed else found.outcome


@pytest.mark.parametrize("table", TABLES)
def test_every_flag_has_one_class(table: str) -> None:
    rows = flag_names.read(table_file(table))
    lines = table_file(table).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(rows) + 1, "a name stands twice"
    for row in rows.values():
        assert row.effect in ("priced", "no_effect", "not_modelled"), row.name
        assert row.about, row.name
        assert bool(row.weight) == (row.effect == "not_modelled"), row.name
        assert row.weight in get_args(FlagWeight), row.name
        assert bool(row.first) == bool(row.last) == bool(row.file), row.name


@pytest.mark.parametrize("word", [*WORDS, *MORE_WORDS, "fancy"])
def test_an_unknown_flag_leaves_no_verdict(word: str, tmp_path: Path) -> None:
    for found in (megatron(f"--some-new-{word}-thing 3", tmp_path), paddle(f"--some_new_{word}_thing 3", tmp_path)):
        assert (found.outcome, exit_code([found], Gates())) == ("cannot_tell", 3)
        assert found.blame is not None
        assert found.blame.line == 2
        assert f"new{found.reasons[0].split('new', 1)[1][0]}{word}" in found.reasons[0]


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        ("--sequence-parallel --tensor-model-parallel-size 8 --use-distributed-optimizer", "fits"),
        ("--recompute-activation-function", "fits"),
        ("--fp8-param-gather", "fits"),
        ("--recompute-in-bubble", "not_modelled"),
        ("--deterministic-mode", "fits"),
        ("--moe-paged-stash-page-size 64", "fits"),
        ("--moe-paged-stash-page-size 128", "fits"),
        ("--fine-grained-activation-offloading", "not_modelled"),
        ("--fine-grained-activation-offloading --offload-modules core_attn attn_proj qkv_linear", "fits"),
        (
            "--fine-grained-activation-offloading --offload-modules core_attn --activation-offload-fraction .5",
            "not_modelled",
        ),
        ("--fine-grained-activation-offloading --offload-modules attn_proj", "refused"),
        ("--window-size 0", "fits"),
        ("--swap-optimizer", "fits"),
    ],
)
def test_classes_of_megatron(flags: str, outcome: str, tmp_path: Path) -> None:
    spread = "--tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer"
    assert (
        megatron(f"{spread} {flags if flags.split(maxsplit=1)[0] not in spread else ''}", tmp_path).outcome == outcome
    )


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        ("--recompute 1", "fits"),
        ("--recompute 1 --prefix_tuning 1", "not_modelled"),
        ("--recompute 1 --prefix_tuning false", "fits"),
        ("--recompute 1 --offload_queue true", "not_modelled"),
        ("--recompute 1 --stage DPO --max_seq_len 8192", "does_not_fit"),
        ("--recompute 1 --stage SFT", "fits"),
        ("--recompute 1 --stage GRPO", "not_modelled"),
        ("--recompute 1 --loss_type sigmoid --max_seq_len 8192", "does_not_fit"),
        ("--recompute 1 --use_fp8_mlp true --recompute_fwd_gate_up true --dequant_input true", "fits"),
        ("--recompute 1 --use_rms_qkv_recompute true --enable_mtp_magic_send true", "fits"),
        ("--recompute 1 --offline_quant_expert_weight true", "fits"),
    ],
)
def test_classes_of_paddle(flags: str, outcome: str, tmp_path: Path) -> None:
    assert by_figure(paddle(flags, tmp_path)) == outcome


def test_a_script_whose_name_says_preferences(tmp_path: Path) -> None:
    line = f"python -m paddle.distributed.launch --nnodes 1 --devices 0,1 ./dpo/run_dpo.py {PADDLE} --recompute 1"
    assert by_figure(judged(line, tmp_path)) == "does_not_fit"


def test_an_error_further_on_does_not_hide_what_was_not_read(tmp_path: Path) -> None:
    found = megatron("--pipeline-model-parallel-size 3 --some-new-layout x", tmp_path)
    assert found.outcome == "cannot_tell"
    assert "does not divide" in found.reasons[1]


def test_names_out_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "megatron" / "training"
    folder.mkdir(parents=True)
    (folder / "arguments.py").write_text(
        "def add(group):\n"
        "    group.add_argument('--seed', '--random-seed', type=int, default=7)\n"
        "    group.add_argument('--new-thing', action='store_true')\n"
        "    ArgumentGroupFactory(Config, exclude=['hidden'])\n"
    )
    (folder / "config.py").write_text(
        "@dataclass\nclass Base:\n    width: int = 3\n"
        "@dataclass\nclass Config(Base):\n    fuse: bool = True\n    hidden: int = 1\n"
    )
    monkeypatch.setattr(flag_names, "table_file", lambda name: tmp_path / f"{name}.csv")
    seed = Flag("start", name="seed", effect="no_effect", first="v1", last="v1", file="old.py")
    flag_names.write(tmp_path / "megatron.csv", {"seed": seed})
    monkeypatch.setattr("sys.argv", ["flag_names", "megatron", str(tmp_path), "--version", "v2"])
    assert flag_names.main() == 1
    table = flag_names.read(tmp_path / "megatron.csv")
    assert set(table) == {"seed", "random_seed", "new_thing", "width", "fuse", "no_fuse"}
    kept = table["seed"]
    assert (kept.effect, kept.first, kept.last, kept.default, kept.file) == (
        "no_effect",
        "v1",
        "v2",
        "7",
        "megatron/training/arguments.py",
    )
    assert table["new_thing"].kind == table["no_fuse"].kind == "switch"
    assert "5 to classify" in capsys.readouterr().out


SAMPLED = 3
"""Every so many files of the corpus are judged here; `tests/check/test_expectations.py` judges those with verdicts."""


def corpus() -> list[tuple[str, Path]]:
    manifest = SHARED / "corpus" / "manifest.csv"
    scripts = sorted((SHARED / "measured" / "public" / "ascend-ci").glob("*.sh"))
    if not manifest.exists():
        pytest.skip("needs corpus/ of the shared folder (SIMULATE_SHARED)")
    rows = csv.DictReader(manifest.read_text(encoding="utf-8").splitlines())
    named = [(row["family"], SHARED / "corpus" / row["file"]) for row in rows if row["family"] in FAMILIES]
    return [*named[::SAMPLED], *(("ascend-ci", script) for script in scripts[::SAMPLED])]


def test_nothing_firm_is_said_over_what_is_not_read() -> None:
    """Over a part of the corpus; the counts by family are printed."""
    counts: dict[str, Counter[str]] = {}
    known = {**registry.table("megatron"), **registry.table("paddle")}
    for family, file in corpus():
        hardware = "ascend-910b-64g" if family in ("mindspeed", "ascend-ci") else "h100-sxm-80g"
        with no_advice():
            found = check_files([str(file)], question_of({"hardware": hardware}), Gates())
        counts.setdefault(family, Counter()).update(result.outcome for result in found)
        firm = [result.outcome in ("fits", "starved", "does_not_fit", "refused") for result in found]
        launches = read_recipe(file) if any(firm) else ()
        for recipe, result, judged in zip(launches, found, firm, strict=False):
            names = {flag.name for flag in recipe.flags} - set(known)
            assert not judged or recipe.dialect not in COMPLETE or not names, (file, names)
            assert not (family == "ascend-ci" and result.outcome in ("does_not_fit", "refused")), file
    for family, outcomes in counts.items():
        print(family, dict(outcomes))  # noqa: T201  shown with -s


def test_the_row_of_the_longest_prefix_counts() -> None:
    table = table_of("oumi")
    names = ("model.model_kwargs.rope_scaling.factor", "model.model_kwargs.hidden_size")
    assert [flag.name for flag in map(table.of, names) if flag] == ["model.model_kwargs.rope_*", "model.model_kwargs.*"]
