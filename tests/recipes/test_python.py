"""Recipes in Python are read as their functions say, without running them; what depends on the machine stays open."""

import contextlib
from pathlib import Path

import pytest

from simulator.budget import limited
from simulator.errors import InputError, UnsupportedError
from simulator.frameworks.python import Instance, OpenValue, Outside, PythonReader
from simulator.frameworks.values import reading_within
from simulator.recipes.readers.read import read_recipe

BASE = '''
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer, TrainingConfig, OptimizerConfig, DDPConfig
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig

LAYOUTS = {(2, 2): [["embedding"] + ["decoder"] * 9, ["decoder"] * 8, ["decoder"] * 8, ["decoder"] * 7 + ["loss"]]}


def base_config(size: int = 2):
    cfg = ConfigContainer(
        model=AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False),
        train=TrainingConfig(global_batch_size=128, micro_batch_size=size // 2),
        ddp=DDPConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
        optimizer=OptimizerConfig(optimizer="adam", use_distributed_optimizer=True),
    )
    cfg.model.tensor_model_parallel_size = size
    cfg.model.seq_length = 8192
    cfg.mixed_precision = MixedPrecisionConfig(bf16=True, params_dtype=torch.bfloat16)
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    return cfg


def tuned(cfg, *, overlap: bool = False, **more):
    """Sets what every recipe has."""
    for name, value in more.items():
        setattr(cfg.model, name, value)
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=overlap)
    if getattr(cfg.model, "cuda_graph_impl", None) == "none" or cfg.model.sequence_parallel:
        cfg.model.cuda_graph_impl = "transformer_engine"
        cfg.model.cuda_graph_scope = ["attn"]
    pipeline = (cfg.model.pipeline_model_parallel_size or 1, cfg.model.virtual_pipeline_model_parallel_size or 1)
    cfg.model.pipeline_model_parallel_layout = LAYOUTS[pipeline] if pipeline in LAYOUTS else None
    if torch.cuda.is_available():
        cfg.model.context_parallel_size = 2
    return cfg
'''
RECIPES = """
from megatron.bridge.recipes.base import base_config, tuned


def llama3_8b_pretrain_8gpu_h100_bf16_config():
    cfg = tuned(base_config(), overlap=True, sequence_parallel=True, context_parallel_size=1)
    cfg.model.context_parallel_size = 1
    return cfg


def llama3_8b_pretrain_16gpu_h100_bf16_config():
    cfg = base_config(4)
    cfg.model.sequence_parallel = True
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = 2
    tuned(cfg)
    cfg.model.context_parallel_size = 1
    return cfg


def llama3_8b_pretrain_4gpu_h100_bf16_config():
    return tuned(base_config())


def needs_an_argument_config(size):
    return base_config(size)
"""


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    folder = tmp_path / "src/megatron/bridge/recipes"
    (tmp_path / ".git").mkdir()
    folder.mkdir(parents=True)
    (folder / "base.py").write_text(BASE, encoding="utf-8")
    path = folder / "llama.py"
    path.write_text(RECIPES, encoding="utf-8")
    return path


def test_each_function_is_a_recipe(recipes: Path) -> None:
    first, second, third = read_recipe(recipes)
    assert first.layout is not None
    assert (first.title, first.model, first.precision) == (
        "llama3_8b_pretrain_8gpu_h100_bf16_config",
        "llama3-8b",
        "bf16",
    )
    assert (first.layout.tensor_parallel, first.layout.data_parallel, first.layout.sequence_parallel) == (2, 4, True)
    assert (first.seq_length, first.global_batch_size, first.layout.micro_batch_size) == (8192, 128, 1)
    assert second.layout is not None
    assert (second.layout.pipeline_parallel, second.layout.virtual_stages) == (2, 2)
    assert second.layout.chunk_layers == (9, 8, 8, 7)
    # What the machine decides is asked for, not guessed.
    assert third.layout is None
    assert [unknown.name for unknown in third.unknowns if unknown.affects] == ["model.context_parallel_size"]


def test_what_training_lays_over_counts(recipes: Path) -> None:
    first = read_recipe(recipes)[0]
    assert {name: first.options[name] for name in ("gradient_dtype", "overlap_grad_reduce", "tp_comm_overlap")} == {
        "gradient_dtype": "bf16",
        "overlap_grad_reduce": "true",
        "tp_comm_overlap": "true",
    }
    assert first.options["cuda_graphs"] == "attention"
    assert first.options["attention_dropout"] == "false"


def test_settings_replace_fields_as_on_a_command_line(recipes: Path) -> None:
    asked = {"model.tensor_model_parallel_size": "4", "train.micro_batch_size": "2", "other": "1"}
    recipe = read_recipe(recipes, asked)[0]
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.micro_batch_size) == (4, 2)
    unused = [remark.message for remark in recipe.remarks if remark.rule == "unused-setting"]
    assert unused == ["--set other=1: nothing in the file depends on it"]
    typing_error = read_recipe(recipes, {"model.tensor_model_paralel_size": "4"})[0]
    assert any("tensor_model_paralel_size is not read" in remark.message for remark in typing_error.remarks)
    for text in ("[", "{a: 1}"):
        with pytest.raises(InputError, match=r"^--set model.seq_length=.*: must be a text, a number, true"):
            read_recipe(recipes, {"model.seq_length": text})


def test_each_value_has_the_line_that_sets_it(recipes: Path) -> None:
    second = read_recipe(recipes)[1]
    place = second.places["pp"]
    assert (Path(place.file).name, RECIPES.splitlines()[place.line - 1].strip()) == (
        "llama.py",
        "cfg.model.pipeline_model_parallel_size = 2",
    )
    place = second.places["tp"]
    assert (Path(place.file).name, BASE.splitlines()[place.line - 1].strip()) == (
        "base.py",
        "cfg.model.tensor_model_parallel_size = size",
    )


def test_a_recipe_of_other_devices_under_a_name_of_its_own_counts(recipes: Path) -> None:
    named = "\n\nllama3_8b_pretrain_8gpu_b200_bf16_config = llama3_8b_pretrain_8gpu_h100_bf16_config\n"
    other = recipes.with_name("others.py")
    text = "from megatron.bridge.recipes.llama import llama3_8b_pretrain_8gpu_h100_bf16_config"
    other.write_text(f"{text}{named}", encoding="utf-8")
    (found,) = read_recipe(other)
    assert found.title == "llama3_8b_pretrain_8gpu_b200_bf16_config"
    assert found.layout == read_recipe(recipes)[0].layout


TOWER = """
from megatron.bridge.recipes.base import base_config
from megatron.bridge import AutoBridge
from megatron.bridge.data.builders import MockVLMSFTDatasetConfig


def qwen3_vl_30b_a3b_pretrain_8gpu_h100_bf16_config():
    cfg = base_config(1)
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-VL-30B-A3B-Instruct").to_megatron_provider()
    cfg.model.expert_model_parallel_size = 8
    cfg.model.seq_length = 4096
    cfg.train.micro_batch_size = 1
    cfg.dataset = MockVLMSFTDatasetConfig(seq_length=4096, num_images=2)
    return cfg
"""


@pytest.mark.parametrize("name", ["Qwen3-VL-30B-A3B-Instruct", "Qwen3.5-35B-A3B"])
def test_a_vision_tower_is_trained(recipes: Path, name: str) -> None:
    path = recipes.with_name("vision.py")
    path.write_text(TOWER.replace("Qwen3-VL-30B-A3B-Instruct", name), encoding="utf-8")
    recipe = read_recipe(path)[0]
    assert recipe.model in {"qwen3-vl-30b-a3b", "qwen3.5-vl-35b-a3b"}
    assert recipe.encoder_training == "trained"


PARTIAL = """
import nemo_run as run
import torch
from nemo import lightning as nl
from nemo.collections.llm.gpt.model.llama import Llama31Config8B, LlamaModel


def trainer(tensor_parallelism=1, num_nodes=1, num_gpus_per_node=8, callbacks=None):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=tensor_parallelism,
        context_parallel_size=2,
        sequence_parallel=tensor_parallelism > 1,
        ckpt_async_save=True,
        ddp=run.Config(DistributedDataParallelConfig, grad_reduce_in_fp32=True, data_parallel_sharding_strategy="a"),
        fsdp=None,
    )
    plugins = run.Config(MegatronMixedPrecision, precision="bf16-mixed", params_dtype=torch.bfloat16)
    return run.Config(
        nl.Trainer,
        devices=num_gpus_per_node,
        num_nodes=num_nodes,
        plugins=plugins,
        strategy=strategy,
        callbacks=callbacks,
    )


@run.cli.factory(target=pretrain, name="llama31_8b")
def pretrain_recipe(dir=None, num_nodes=2, num_gpus_per_node=8, performance_mode=False, fn=pretrain):
    recipe = run.Partial(
        fn,
        model=run.Config(LlamaModel, config=run.Config(Llama31Config8B)),
        trainer=trainer(2, num_nodes=num_nodes, num_gpus_per_node=num_gpus_per_node, callbacks=[]),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=512, micro_batch_size=1),
        optim=run.Config(MegatronOptimizerModule, config=run.Config(OptimizerConfig, use_distributed_optimizer=True)),
    )
    if performance_mode:
        recipe.trainer.plugins.grad_reduce_in_fp32 = False
        recipe.trainer.callbacks.extend([run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True)])
    return recipe
"""


def test_recipes_of_nemo_2_are_read_with_their_arguments_and_fields(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    path = tmp_path / "llama31_8b.py"
    path.write_text(PARTIAL, encoding="utf-8")
    (recipe,) = read_recipe(path)
    assert recipe.layout is not None
    assert (recipe.title, recipe.model, recipe.precision) == ("llama31_8b pretrain_recipe", "llama3.1-8b", "bf16")
    assert (recipe.nodes, recipe.devices_per_node, recipe.global_batch_size, recipe.seq_length) == (2, 8, 512, 8192)
    assert (recipe.layout.tensor_parallel, recipe.layout.context_parallel, recipe.layout.zero_stage) == (2, 2, 1)
    assert not [remark for remark in recipe.remarks if remark.severity == "error"]
    place = recipe.places["tp"]
    assert PARTIAL.splitlines()[place.line - 1].strip() == "tensor_model_parallel_size=tensor_parallelism,"
    asked = {"num_nodes": "4", "performance_mode": "true", "trainer.strategy.tensor_model_parallel_size": "4", "x": "1"}
    (recipe,) = read_recipe(path, asked)
    assert recipe.layout is not None
    assert (recipe.nodes, recipe.layout.tensor_parallel) == (4, 4)
    assert (recipe.options["gradient_dtype"], recipe.options["tp_comm_overlap"]) == ("bf16", "true")
    unused = [remark.message for remark in recipe.remarks if remark.rule == "unused-setting"]
    assert unused == ["--set x=1: nothing in the file depends on it"]


def test_other_python_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import os\nos.remove('everything')\n", encoding="utf-8")
    with pytest.raises(UnsupportedError, match="Python is never run; read are functions that return"):
        read_recipe(path)
    path.write_text("# megatron.bridge\ndef a_config(:\n", encoding="utf-8")
    with pytest.raises(InputError, match="no Python that can be read"):
        read_recipe(path)


@pytest.mark.parametrize(
    ("imports", "hint"),
    [
        ("from trl import SFTTrainer\nfrom unsloth import FastLanguageModel", " --framework torch --stack unsloth"),
        ("from transformers import AutoModelForCausalLM\nfrom trl import SFTTrainer", " --framework torch --stack trl"),
        ("import transformers", " --framework torch --stack transformers"),
        ("import mylibrary", ""),
    ],
)
def test_a_script_of_a_library_is_refused_with_what_to_ask_instead(imports: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{imports}\ntrainer.train()\n", encoding="utf-8")
    with pytest.raises(UnsupportedError, match=f"simulate estimate --model NAME{hint}") as refused:
        read_recipe(path)
    assert ("--method full|lora|qlora" in str(refused.value)) == bool(hint)


VALUES = {
    "[2 * n for n in range(4) if n % 2]": [2, 6],
    "{**{'a': 1}, 'b': 2}['b']": 2,
    "f'{1 + 1}x'.upper()": "2X",
    "'a' if not [] else 'b'": "a",
    "[0] * 2 + [1]": [0, 0, 1],
    "divmod(7, 2)": (3, 1),
    "(lambda a, b=2: a * b)(3)": 6,
    "1 < 2 <= 2": True,
    "None or 'x'": "x",
    "isinstance('a', str)": True,
}
OPEN = ("torch.cuda.is_available()", "open('x').read()", "'a' * 10**9", "[0] * 10**9", "range(10**9)", "9 ** 9", "x[1]")


@pytest.mark.parametrize("text", [*VALUES, *OPEN])
def test_expressions(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"import torch\nvalue = {text}\nflag = 1 if value else 2\n", encoding="utf-8")
    names = PythonReader().module(path).names
    if text in VALUES:
        assert names["value"] == VALUES[text]
    else:
        assert isinstance(names["value"], OpenValue | Outside | Instance)
        assert isinstance(names["flag"], OpenValue)


@pytest.mark.parametrize(
    "text",
    [
        "def f(n):\n    return f(n + 1)\nvalue = f(0)",
        "def f(n):\n    return [f(n), f(n)]\nvalue = f(0)",
        "value = " + "(" * 5000 + ")" * 5000,
        "value = " + "-" * 5000 + "1",
        "for a in range(9999):\n  for b in range(9999):\n    for c in range(9999):\n      value = a",
        "value = 'a'\nfor n in range(9999):\n  value = value + value",
    ],
)
def test_hostile_files_end_in_one_line_or_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(text, encoding="utf-8")
    with limited(str(path)), reading_within(tmp_path, {}), contextlib.suppress(InputError):
        PythonReader().module(path)
