"""References and placeholders among a configuration's values: of another key, of the environment, of nothing."""

from pathlib import Path

import pytest

from simulator.errors import NoRecipeError, UnsupportedError
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe

TUNE = """size: 2
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
model: {_component_: torchtune.models.llama3.llama3_8b}
dataset: {_component_: torchtune.datasets.alpaca_dataset}
optimizer: {_component_: torch.optim.AdamW}
batch_size: BATCH
gradient_accumulation_steps: 2
dtype: bf16
"""
FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
dataset: identity
cutoff_len: 2048
per_device_train_batch_size: BATCH
bf16: true
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = "BATCH"
seq_len = 8192
"""
LITGPT = """checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
precision: bf16-true
devices: 1
data: {class_path: litgpt.data.Alpaca2k}
train: {micro_batch_size: BATCH, global_batch_size: 8, max_seq_length: 512}
"""
NANOTRON = """model: {model_config: {hidden_size: 4096, num_hidden_layers: 32, num_attention_heads: 32,
  intermediate_size: 11008, vocab_size: 32000}}
parallelism: {dp: 4, tp: 2, pp: 1}
tokens: {micro_batch_size: BATCH, sequence_length: 2048, batch_accumulation_per_replica: 1}
"""
FILES = {"tune.yaml": TUNE, "factory.yaml": FACTORY, "t.toml": TITAN, "litgpt.yaml": LITGPT, "nanotron.yaml": NANOTRON}


def read(folder: Path, name: str, batch: str, settings: dict[str, str] | None = None) -> Recipe:
    (folder / name).write_text(FILES[name].replace("BATCH", batch), encoding="utf-8")
    (recipe,) = read_recipe(folder / name, settings)
    return recipe


def micro_batch(recipe: Recipe) -> int:
    assert recipe.layout is not None
    return recipe.layout.micro_batch_size


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("hole", ["${oc.env:SIZE}", "${nothing.here}", "<your batch>", "CHANGEME", "{{ batch }}"])
def test_what_nothing_resolves_is_asked_for(name: str, hole: str, tmp_path: Path) -> None:
    batch = hole if name.endswith("toml") else f'"{hole}"'
    recipe = read(tmp_path, name, batch)
    (unknown,) = [unknown for unknown in recipe.unknowns if unknown.affects]
    assert (recipe.layout, unknown.affects) == (None, ("micro_batch_size",))
    told = read(tmp_path, name, batch, {unknown.name: "4"})
    assert (micro_batch(told), told.unknowns) == (4, ())
    assert all(remark.rule != "unused-setting" for remark in told.remarks)


def test_another_key_is_its_value_and_no_unknown_word(tmp_path: Path) -> None:
    recipe = read(tmp_path, "tune.yaml", "${size}")
    assert micro_batch(recipe) == 2
    assert "unknown-flag" not in {remark.rule for remark in recipe.remarks}
    assert "unknown-flag" in {remark.rule for remark in read(tmp_path, "tune.yaml", "2").remarks}


def test_a_command_line_replaces_what_is_referred_to(tmp_path: Path) -> None:
    (tmp_path / "tune.yaml").write_text(TUNE.replace("BATCH", "${size}"), encoding="utf-8")
    script = tmp_path / "run.sh"
    command = "tune run --nproc_per_node 8 full_finetune_distributed --config tune.yaml size="
    script.write_text(f"{command}8\n", encoding="utf-8")
    (recipe,) = read_recipe(script)
    assert micro_batch(recipe) == 8
    script.write_text(f"{command}'${{oc.env:SIZE}}'\n", encoding="utf-8")
    (recipe,) = read_recipe(script, {"SIZE": "16"})
    assert micro_batch(recipe) == 16


def test_a_file_of_components_is_no_other_frameworks(tmp_path: Path) -> None:
    """Its nested keys have names of many trainers: Modalities, config_files/training."""
    file = tmp_path / "components.yaml"
    file.write_text(
        "model: {component_key: model, variant_key: gpt2, config: {per_device_train_batch_size: '${a.b}'}}\n"
        "mesh: {component_key: device_mesh, variant_key: default, config: {tensor_model_parallel_size: 2}}\n",
        encoding="utf-8",
    )
    with pytest.raises(UnsupportedError, match="Modalities, which is not read"):
        read_recipe(file)


def test_a_schema_nested_too_deep_is_no_recipe(tmp_path: Path) -> None:
    file = tmp_path / "crd.yaml"
    file.write_text(
        "".join(f"{' ' * depth}properties{depth}:\n" for depth in range(40)) + f"{' ' * 40}type: string\n",
        encoding="utf-8",
    )
    with pytest.raises(NoRecipeError, match="nested deeper than 32 levels"):
        read_recipe(file)
