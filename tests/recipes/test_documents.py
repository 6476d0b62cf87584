"""NeMo, Megatron-Bridge, torchtitan and DeepSpeed, and files that are no recipes."""

from pathlib import Path

import pytest

from simulator.errors import InputError, UnsupportedError
from simulator.recipes.read import read_recipe
from simulator.recipes.recipe import Recipe
from simulator.scenario.layout import Layout
from tests.recipes.seeds import DATA, rules


def titan(folder: Path, *changes: tuple[str, str]) -> Recipe:
    text = (DATA / "torchtitan.toml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "t.toml"
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


def test_nemo() -> None:
    (recipe,) = read_recipe(DATA / "nemo.yaml")
    assert (recipe.framework, recipe.dialect, recipe.model) == ("megatron", "nemo-yaml", "llama-2-70b")
    assert (recipe.nodes, recipe.devices_per_node, recipe.precision) == (4, 8, "fp8")
    assert (recipe.seq_length, recipe.global_batch_size) == (4096, 512)
    assert recipe.layout == Layout(
        tensor_parallel=4,
        pipeline_parallel=4,
        virtual_stages=5,
        sequence_parallel=True,
        zero_stage=1,
        recompute="selective",
    )
    assert recipe.options == {
        "tp_comm_overlap": "true",
        "overlap_grad_reduce": "true",
        "overlap_param_gather": "false",
        "fused_cross_entropy": "false",
    }
    lines = (DATA / "nemo.yaml").read_text(encoding="utf-8").splitlines()
    assert "tensor_model_parallel_size" in lines[recipe.places["tp"].line - 1]
    assert recipe.remarks == ()


def test_megatron_bridge() -> None:
    (recipe,) = read_recipe(DATA / "bridge.yaml")
    assert (recipe.model, recipe.precision, recipe.global_batch_size) == ("llama3.1-8b", "fp8", 128)
    assert recipe.layout == Layout(
        tensor_parallel=2, sequence_parallel=True, micro_batch_size=2, zero_stage=1, recompute="full"
    )
    assert recipe.remarks == ()


def test_torchtitan(tmp_path: Path) -> None:
    recipe = titan(tmp_path)
    assert (recipe.framework, recipe.dialect, recipe.model) == ("torch", "torchtitan-toml", "llama3-8b")
    assert (recipe.seq_length, recipe.gradient_accumulation_steps, recipe.precision) == (8192, 4, "fp8")
    assert recipe.layout == Layout(
        tensor_parallel=2,
        pipeline_parallel=2,
        virtual_stages=2,
        sequence_parallel=True,
        zero_stage=3,
        recompute="full",
        recompute_method="list",
        recompute_layer_list=tuple(range(1, 32, 2)),
    )
    assert recipe.options == {"foreach_optimizer": "false"}
    assert recipe.remarks == ()


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (("pipeline_parallel_degree = 2", "pipeline_parallel_degree = 1"), "micro_batch_size", 4),
        (('"Interleaved1F1B"', '"1F1B"'), "virtual_stages", 1),
        (("data_parallel_shard_degree = -1", "data_parallel_shard_degree = 1"), "zero_stage", 0),
        (("context_parallel_degree = 1", 'fsdp_reshard_after_forward = "never"'), "zero_stage", 2),
        (('mode = "selective"', 'mode = "none"'), "recompute", "none"),
        (('mode = "selective"', 'mode = "full"'), "recompute_method", "uniform"),
        (('option = "2"', 'option = "op"'), "recompute", "selective"),
        (("context_parallel_degree = 1", "context_parallel_degree = 4"), "context_parallel", 4),
    ],
)
def test_torchtitan_layout(change: tuple[str, str], field: str, value: object, tmp_path: Path) -> None:
    assert getattr(titan(tmp_path, change).layout, field) == value


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (('flavor = "8B"', 'flavor = "9000B"'), "unknown-model"),
        (('name = "AdamW"', 'name = "Muon"'), "not-modelled"),
        (('option = "2"', 'option = "op"'), "not-modelled"),
        (('"Interleaved1F1B"', '"ZBVZeroBubble"'), "not-modelled"),
        (("context_parallel_degree = 1", "tensor_paralel_degree = 1"), "unknown-flag"),
    ],
)
def test_torchtitan_remarks(change: tuple[str, str], rule: str, tmp_path: Path) -> None:
    assert rule in rules(titan(tmp_path, change))


def test_deepspeed() -> None:
    (recipe,) = read_recipe(DATA / "trainer" / "run.sh")
    assert (recipe.framework, recipe.dialect, recipe.model) == ("torch", "deepspeed-shell", "qwen2.5-7b")
    assert (recipe.nodes, recipe.devices_per_node, recipe.precision) == (1, 8, "bf16")
    assert (recipe.seq_length, recipe.gradient_accumulation_steps) == (4096, 8)
    assert recipe.layout == Layout(micro_batch_size=2, zero_stage=3, recompute="full", offload="optimizer_tensorwise")
    assert recipe.options["master_weights"] == "true"
    assert recipe.places["zero_stage"].file.endswith("zero3.json")
    assert recipe.places["zero_stage"].line == 4
    assert rules(recipe) == {"assumed-unset"}


@pytest.mark.parametrize(
    ("flags", "stage", "options"),
    [
        ("", 0, {}),
        ("--fsdp 'full_shard auto_wrap'", 3, {}),
        ("--fsdp shard_grad_op --torch_dtype bfloat16 --flash_attn off", 2, {"flash_attention": "false"}),
    ],
)
def test_trainer_without_deepspeed(flags: str, stage: int, options: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    base = "--model_name_or_path x/llama-2-7b-hf --per_device_train_batch_size 1 --bf16 --use_lora --lora_r 4"
    file.write_text(f"torchrun --nproc_per_node 8 train.py {base} {flags}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert (recipe.dialect, recipe.model, recipe.lora_rank) == ("trainer-shell", "llama-2-7b", 4)
    assert recipe.layout is not None
    assert recipe.layout.zero_stage == stage
    assert options.items() <= recipe.options.items()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.sh", b"\x7fELF\0\0\0", "a binary file"),
        ("x.sh", b"caf\xe9 torchrun", "not UTF-8"),
        ("x.sh", b"", "starts no training"),
        ("x.sh", b"echo hello\n", "starts no training"),
        ("x.sh", b"if [ a = b ]; then\n", "is missing"),
        ("x.sh", b"exit 1\ntorchrun t.py\n", "x.sh:1: the script ends here"),
        ("x.yaml", b"a: [1, 2\n", "not valid YAML"),
        ("x.yaml", b"a: &x 1\nb: *x\n", "aliases"),
        ("x.yaml", b"a: 1\n", "no recipe of a framework that is read"),
        ("x.json", b"[1]", "must hold a mapping"),
        ("x.json", b"{", "not valid JSON"),
        ("x.toml", b"a = ", "not valid TOML"),
        ("x.toml", b"a = " + b"[" * 5000, "not valid TOML"),
        ("x.md", b"torchrun\n", "not a recipe"),
        ("x.sh", b"x" * (50 << 20), "too large"),
        ("x.yaml", b"x" * (50 << 20), "too large"),
        ("x.toml", b"x" * (2 << 20), "too large"),
    ],
    ids=range(17),
)
def test_no_recipe(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_recipe(file)
    assert str(caught.value).startswith(str(file))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.json", '{"zero_optimization": {"stage": 3}}', "names no model"),
        ("x.json", '{"model_type": "llama"}', "no recipe"),
        ("x.py", "print(1)", "never run"),
        ("x.sh", "accelerate launch train.py", "'accelerate': flags of no framework"),
        ("x.sh", "llamafactory-cli train x.yaml", "'llamafactory-cli'"),
        ("x.sh", "torchrun train.py --alpha 1", "'train.py'"),
    ],
)
def test_unsupported(name: str, data: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(data, encoding="utf-8")
    with pytest.raises(UnsupportedError, match=message):
        read_recipe(file)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.sh", tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(InputError):
            read_recipe(path)
    with pytest.raises(InputError, match="NUL"):
        read_recipe("a\0b.sh")


def test_windows_line_ends_and_other_names(tmp_path: Path) -> None:
    text = (DATA / "megatron-arrays.sh").read_text(encoding="utf-8")
    file = tmp_path / "launch.job"
    file.write_bytes(text.replace("\n", "\r\n").encode())
    (recipe,) = read_recipe(file)
    assert recipe.places["tp"].line == 5


def test_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text((DATA / "megatron-arrays.sh").read_text(encoding="utf-8"), encoding="utf-8")
    (recipe,) = read_recipe(file, {"NOTHING": "1"}, {"NODES": "8"})
    assert recipe.nodes == 8
    assert "unused-setting" in rules(recipe)
    with pytest.raises(InputError, match="--set"):
        read_recipe(file, {"a=b": "1"})


def test_fp32_of_torchtitan_and_nemo(tmp_path: Path) -> None:
    wide = 'seq_len = 8192\nmixed_precision_param = "float32"'
    assert titan(tmp_path, ("seq_len = 8192", wide), ('converters = ["float8"]', "")).precision == "fp32"
    text = (DATA / "nemo.yaml").read_text(encoding="utf-8").replace("  fp8: true\n", "")
    for word, precision in (("32-true", "fp32"), ("bf16", "bf16"), ("null", None)):
        file = tmp_path / "nemo.yaml"
        file.write_text(text.replace("precision: bf16", f"precision: {word}"), encoding="utf-8")
        (recipe,) = read_recipe(file)
        assert recipe.precision == precision
        assert "full-precision" not in rules(recipe)


@pytest.mark.parametrize(
    ("text", "options", "refused"),
    [
        ('"offload_param": {"device": "cpu"}', {"offload_parameters": "true"}, False),
        ('"offload_param": {"device": "none"}', {}, False),
        ('"offload_param": {"device": "nvme"}', {"offload_parameters": "true"}, True),
        ('"offload_optimizer": {"device": "cpu", "ratio": 0.3}', {"offload_fraction": "0.3"}, False),
    ],
)
def test_what_deepspeed_moves_to_the_host(text: str, options: dict[str, str], refused: bool, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(f'{{"zero_optimization": {{"stage": 3, {text}}}}}', encoding="utf-8")
    file = tmp_path / "run.sh"
    base = "--model_name_or_path x/llama-2-7b-hf --per_device_train_batch_size 1 --bf16 --deepspeed ds.json"
    file.write_text(f"deepspeed --num_gpus 8 train.py {base}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    kept = {"parameter_dtype", "master_weights", "gradient_dtype", "foreach_optimizer"}
    assert {name: value for name, value in recipe.options.items() if name not in kept} == options
    assert ("not-modelled" in rules(recipe)) is refused


@pytest.mark.parametrize(
    ("degrees", "replicas", "options"),
    [
        ("data_parallel_shard_degree = 8", 8, {}),
        ("data_parallel_shard_degree = 4\ndata_parallel_replicate_degree = 2", 8, {"sharding_degree": "4"}),
        ("data_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8", 8, {}),
        ("data_parallel_shard_degree = -1", 1, {}),
    ],
)
def test_replicas_of_torchtitan(degrees: str, replicas: int, options: dict[str, str], tmp_path: Path) -> None:
    recipe = titan(tmp_path, ("data_parallel_shard_degree = -1", degrees))
    assert recipe.layout is not None
    assert recipe.layout.data_parallel == replicas
    assert ("dp" in recipe.places) is ("-1" not in degrees)
    assert {name: text for name, text in recipe.options.items() if name == "sharding_degree"} == options


def test_torchtitan_s_open_groups_are_not_modelled(tmp_path: Path) -> None:
    degrees = "data_parallel_shard_degree = -1\ndata_parallel_replicate_degree = 2"
    assert "not-modelled" in rules(titan(tmp_path, ("data_parallel_shard_degree = -1", degrees)))
