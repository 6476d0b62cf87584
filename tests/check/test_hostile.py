"""What a stranger's pull request may hold: links, paths, names and files that mean harm, and what comes of them."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.recipes.check import judge
from simulator.recipes.readers.read import read_recipe
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.values import text_value
from tests.check.recipes import EXAMPLES
from tests.cli.running import run
from tests.fuzz.oracle import OBEYED

pytestmark = pytest.mark.full_answer

SCRIPT = (EXAMPLES / "llama3-8b-megatron.sh").read_text(encoding="utf-8")
# A number that no path of a temporary folder holds by chance.
ZERO = '{"zero_optimization": {"stage": 3}, "train_batch_size": 6180339}'
DEEPSPEED = (
    "deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 1 "
    "--bf16 true --model_max_length 4096 --deepspeed {}\n"
)


def judged(*args: str) -> list[dict[str, Any]]:
    found = json.loads(run("check", *args, "--hardware", "z2000", "--format", "json").stdout)["results"]
    assert isinstance(found, list)
    return found


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a folder of recipes; beside the checkout stands what no recipe may read."""
    folder = tmp_path / "checkout"
    (folder / "recipes").mkdir(parents=True)
    (folder / ".git").mkdir()
    (tmp_path / "outside.json").write_text(ZERO, encoding="utf-8")
    (folder / "inside.json").write_text(ZERO, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def script(repository: Path, text: str) -> str:
    (repository / "recipes" / "run.sh").write_text(text, encoding="utf-8")
    return "recipes/run.sh"


@pytest.mark.parametrize(
    "before",
    [
        "../../outside.json",
        "../recipes/../../outside.json",
        "link.json",
        "folder/outside.json",
        "A=../../outside.json; {}",
        "export zero.json=../../outside.json; zero.json",
    ],
)
def test_reading_stays_in_the_repository(before: str, repository: Path) -> None:
    (repository / "recipes" / "link.json").symlink_to(repository.parent / "outside.json")
    (repository / "recipes" / "folder").symlink_to(repository.parent)
    *first, name = before.split("; ")
    text = "\n".join([*first, DEEPSPEED.format("$A" if name == "{}" else name)])
    file = script(repository, text)
    (found,) = judged(file)
    assert found["outcome"] == "cannot_tell"
    assert "6180339" not in json.dumps(found)
    # The user may widen the root, or say where a file is.
    if first[:1] != ["export zero.json=../../outside.json"]:
        assert judged(file, "--root", "..")[0]["estimate"] is not None
    given = "../../outside.json" if name == "{}" else name
    assert judged(file, "--set", f"{given}={repository.parent / 'outside.json'}")[0]["estimate"] is not None


def test_a_variable_of_the_script_names_no_file_elsewhere(repository: Path) -> None:
    outside = repository.parent / "outside.json"
    file = script(repository, f"export zero={outside}\n" + DEEPSPEED.format("zero"))
    assert judged(file)[0]["outcome"] == "cannot_tell"
    assert judged(file, "--set", f"zero={outside}")[0]["estimate"] is not None


def test_what_is_inside_is_read(repository: Path) -> None:
    for name in ("inside.json", "../inside.json"):
        (found,) = judged(script(repository, DEEPSPEED.format(name)))
        assert found["estimate"]["layout"]["zero_stage"] == 3
    (repository / "recipes" / "near.json").symlink_to(repository / "inside.json")
    assert judged(script(repository, DEEPSPEED.format("near.json")))[0]["estimate"] is not None


def test_a_recipe_that_is_a_link_out_is_not_read(repository: Path) -> None:
    (repository.parent / "secret.sh").write_text(SCRIPT, encoding="utf-8")
    (repository / "recipes" / "run.sh").symlink_to(repository.parent / "secret.sh")
    (found,) = judged("recipes/run.sh")
    assert found["outcome"] == "unreadable"
    assert "--root FOLDER" in found["reasons"][0]
    assert judged("recipes/run.sh", "--root", "..")[0]["outcome"] == "fits"
    assert run("check", "recipes/run.sh", "--root", "nowhere").exit_code == 2


def test_a_model_outside_is_not_read(repository: Path) -> None:
    (repository.parent / "model").mkdir()
    (repository.parent / "model" / "config.json").write_text('{"secret": 1}', encoding="utf-8")
    text = DEEPSPEED.format("inside.json").replace("meta-llama/Llama-2-7b-hf", "../../model")
    assert "leads out of" in judged(script(repository, text))[0]["reasons"][0]


@pytest.mark.parametrize("name", ["../../outside.yaml", "link.yaml", "{}/outside.yaml"])
def test_a_file_that_another_extends_is_read_inside_only(name: str, repository: Path) -> None:
    """Primus extends files by paths of their own."""
    (repository.parent / "outside.yaml").write_text("seq_length: 77\n", encoding="utf-8")
    (repository / "recipes" / "link.yaml").symlink_to(repository.parent / "outside.yaml")
    base = f"extends: ['{name.format(repository.parent)}']\nmicro_batch_size: 1\n"
    (repository / "recipes" / "base.yaml").write_text(base, encoding="utf-8")
    trainer = "{framework: megatron, config: base.yaml, model: llama3.1_8B.yaml, overrides: {global_batch_size: 8}}"
    file = repository / "recipes" / "primus.yaml"
    file.write_text(f"work_group: a\nmodules:\n  pre_trainer: {trainer}\n", encoding="utf-8")
    (found,) = judged("recipes/primus.yaml")
    assert "leads out of" in found["reasons"][0]
    assert judged("recipes/primus.yaml", "--root", "..")[0]["estimate"]["layout"]["seq_length"] == 77


def test_a_patch_is_read_inside_too(repository: Path) -> None:
    """A base outside is passed over when the recipe is read, and when its patched text is."""
    (repository.parent / "outside.yaml").write_text("model: {num_query_groups: 8}\n", encoding="utf-8")
    (repository / "recipes" / "link.yaml").symlink_to(repository.parent / "outside.yaml")
    keys = (
        "trainer.num_nodes=1 trainer.devices=8 trainer.precision=bf16 model.hidden_size=4096 "
        "model.ffn_hidden_size=11008 model.num_attention_heads=32 model.encoder_seq_length=4096 "
        "++model.vocab_size=32000 model.activation=fast-swiglu model.micro_batch_size=8 "
        "model.global_batch_size=64 model.num_layers=9 model.bias=false "
        "model.tensor_model_parallel_size=1 model.pipeline_model_parallel_size=1 model.sequence_parallel=False"
    )
    text = f"python megatron_gpt_pretraining.py --config-name=link {keys}\n"
    (found,) = judged(script(repository, text.replace(" model.", " \\\n model.")), "--diff")
    assert found["outcome"] in {"does_not_fit", "cannot_tell"}, "too large, or so large that a run decides"
    patches = [change["patch"] for change in found["changes"]]
    assert any("- model.micro_batch_size=8 " in patch and "+ model.micro_batch_size=4 " in patch for patch in patches)
    assert not any("use_distributed_optimizer" in patch for patch in patches)
    assert any("++model.activations_checkpoint_granularity=full" in patch for patch in patches)


def test_without_a_repository_the_working_folder_is_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "recipes").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "here"):
        (folder / "zero.json").write_text(ZERO, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    file = Path("recipes/run.sh")
    file.write_text(DEEPSPEED.format("../zero.json"), encoding="utf-8")
    assert judged(str(file))[0]["estimate"] is not None
    file.write_text(DEEPSPEED.format("../../zero.json"), encoding="utf-8")
    assert judged(str(file))[0]["outcome"] == "cannot_tell"


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("deep"), ZeroDivisionError("x"), UnicodeError("y")])
def test_no_file_hides_the_verdict_of_another(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"{name}.sh" for name in "abc"]
    for file in files:
        file.write_text(SCRIPT, encoding="utf-8")

    def fails(file: str, *rest: Any) -> Any:
        if file == str(files[1]):
            raise error
        return read_recipe(file, *rest)

    monkeypatch.setattr("simulator.recipes.readers.read.read_recipe", fails)
    result = run("check", *map(str, files), "--hardware", "z2000", "--format", "json")
    found = json.loads(result.stdout)["results"]
    assert [one["outcome"] for one in found] == ["fits", "unreadable", "fits"]
    assert type(error).__name__ in found[1]["reasons"][0]
    assert result.exit_code == 2


def test_no_launch_hides_the_verdict_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setattr(judge, "estimate_of", lambda case: 1 / (case is None))
    (found,) = judged(str(file))
    assert (found["outcome"], found["framework"]) == ("unreadable", "megatron")


NAMES = (
    "a\nb",
    "::error::x",
    "\x1b[31m",
    "\u202ea",
    "a\x07",
    "##[group]x",
    "<img src=x>",
    "![x](y)",
    "a|b",
    "\udcff",
    "-q",
)


@pytest.mark.parametrize("form", ["table", "json", "markdown", "github", "junit", "sarif"])
def test_names_are_shown_and_not_obeyed(form: str, repository: Path) -> None:
    files = []
    for name in NAMES:
        file = os.fsencode(repository / "recipes") + b"/" + os.fsencode(f"{name.replace('/', '')}.sh")
        Path(os.fsdecode(file)).write_text(SCRIPT, encoding="utf-8")
        files.append(os.path.relpath(os.fsdecode(file)))
    files.append(files[1].removeprefix("recipes/"))
    result = run("check", "--hardware", "z2000", "--format", form, "--color", "always", "--", *files)
    assert result.exit_code == 2  # the last is not there
    shown = re.sub(r"\x1b\[(?:\d+)m", "", result.stdout) if form == "table" else result.stdout
    assert not OBEYED.search(shown)
    assert f"{len(NAMES)} fit;" in shown or form not in ("table", "markdown", "github")
    if form == "json":
        found = json.loads(result.stdout)["results"]
        assert [one["file"] for one in found] == files
    if form == "github":
        assert not re.search(r"^::error::", shown, re.MULTILINE)
    else:
        assert not re.search(r"^\s*::", shown, re.MULTILINE)
    if form == "markdown":
        assert not re.search(r"(?<!\\)<img|(?<!\\)!\[", shown)


def test_a_title_and_a_note_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("torchrun $'a\\n::error::x\\x1b[2J'.py --num-layers 2 --hidden-size 64\n", encoding="utf-8")
    for form in ("table", "markdown", "github"):
        result = run("check", str(file), "--hardware", "z2000", "--format", form)
        assert not OBEYED.search(result.stdout)
        assert not re.search(r"^\s*::error::x", result.stdout, re.MULTILINE)


def test_messages_cut_what_they_echo() -> None:
    for args in (["--tp", "x" * 4000], ["--model", "y " * 3000], ["--option", "z" * 4000], ["w" * 4000]):
        result = run("estimate", *args) if args[0] != "w" * 4000 else run(*args)
        assert result.exit_code == 2
        assert len(result.stderr) < 2200


def test_an_argument_of_many_digits_is_no_number_to_tell(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.sh"
    recipe.write_text(SCRIPT + f"\ntorchrun pretrain_gpt.py --num-layers ${{{'9' * 4301}}} --seq-length $1\n")
    found = judged(str(recipe), "--set", "X=2")
    assert all("internal error" not in reason for one in found for reason in one["reasons"])
    assert any("--set 1=" in remark["fix"] for one in found for remark in one["remarks"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("|${X//a/b}" * 25000, "more than 65536 bytes of shell text"),
        ("a|" * 3000, "more than 2000 '|'"),
        (">a`" * 3000, "more than 400 '`'"),
        ("$X)" * 5000, "more than 4000 ')'"),
    ],
)
def test_what_the_parser_would_take_long_for_is_not_given_to_it(text: str, told: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.sh"
    recipe.write_text(SCRIPT + text, encoding="utf-8")
    (found,) = judged(str(recipe))
    assert found["outcome"] == "unreadable"
    assert told in found["reasons"][0]


@pytest.mark.parametrize("mark", ["\U0010ffff", "\U0001f600", "\u4e2d", "\u0394"])
def test_a_character_of_any_language_is_a_letter_to_the_parser(mark: str, tmp_path: Path) -> None:
    # Unmasked, the first ends the process. What is read must be the script's own text again.
    recipe = tmp_path / "recipe.sh"
    recipe.write_text(f"echo {{{mark}..1}} '{mark}'\nNAME={mark}a\nFILE=$NAME\n{SCRIPT}", encoding="utf-8")
    found = [{key: one[key] for key in ("outcome", "reasons")} for one in judged(str(recipe))]
    recipe.write_text(SCRIPT, encoding="utf-8")
    assert found == [{key: one[key] for key in ("outcome", "reasons")} for one in judged(str(recipe))]
    (piece,) = Source("recipe.sh", text_value(f"x={mark}", 1)).root.children
    assert Source("recipe.sh", text_value(f"x={mark}", 1)).node_text(piece) == f"x={mark}"
