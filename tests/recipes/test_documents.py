"""NeMo, Megatron-Bridge, torchtitan and DeepSpeed, and files that are no recipes."""

import os
import shutil
from pathlib import Path

import pytest

from simulator.errors import InputError, NoRecipeError, UnsupportedError
from simulator.question.frameworks.stacks import stacks_of
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.recipes.readers.read import read_recipe
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
        # NeMo's own shares are 0.1.
        "attention_dropout": "true",
        "hidden_dropout": "true",
    }
    lines = (DATA / "nemo.yaml").read_text(encoding="utf-8").splitlines()
    assert "tensor_model_parallel_size" in lines[recipe.places["tp"].line - 1]
    assert [remark.rule for remark in recipe.remarks] == ["vocabulary-assumed"]


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
        stage_layers=(16, 16),
        chunk_layers=(8, 9, 8, 7),
        sequence_parallel=True,
        zero_stage=2,
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
        (("context_parallel_degree = 1", 'fsdp_reshard_after_forward = "always"'), "zero_stage", 3),
        (('option = "2"', 'option = "op"'), "recompute", "operations"),
        (("context_parallel_degree = 1", "context_parallel_degree = 4"), "context_parallel", 4),
        (('"Interleaved1F1B"', '"ZBVZeroBubble"'), "schedule", "zb_v"),
        (('"Interleaved1F1B"', '"interleavedzerobubble"'), "schedule", "zb_h1"),
        (('"Interleaved1F1B"', '"DualPipeV"'), "schedule", "dualpipev"),
    ],
)
def test_torchtitan_layout(change: tuple[str, str], field: str, value: object, tmp_path: Path) -> None:
    assert getattr(titan(tmp_path, change).layout, field) == value


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (('flavor = "8B"', 'flavor = "9000B"'), "unknown-model"),
        (('name = "AdamW"', 'name = "Sophia"'), "upper-bound"),
        (('mode = "selective"', 'mode = "memory_budget"'), "upper-bound"),
        (('"Interleaved1F1B"', '"LoopedBFS"'), "not-modelled"),
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
    assert rules(recipe) == {"hosts-assumed", "assumed-unset"}


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
        ("x.sh", b"exit 1\n", "starts no training"),
        ("x.yaml", b"a: [1, 2\n", "not valid YAML"),
        ("x.yaml", b"a: &x [*x]\n", "no anchor"),
        ("x.yaml", b"a: 1\n", "no recipe of a framework that is read"),
        ("x.json", b"[1]", "starts no training"),
        ("x.yaml", b"kind: Pod\n---\nkind: Service\n", "starts no training"),
        ("x.yaml", b"kind: Job\nspec: {{ .Values.spec }}\n", "a template of Helm"),
        ("x.yaml", b"theme: !!python/name:material.x y\n", "starts no training"),
        ("x.json", b"{", "not valid JSON"),
        ("x.toml", b"a = ", "not valid TOML"),
        ("x.toml", b"a = " + b"[" * 5000, "not valid TOML"),
        ("x.md", b"torchrun\n", "not a recipe"),
        ("x.sh", b"x" * (50 << 20), "too large"),
        ("x.yaml", b"x" * (50 << 20), "too large"),
        ("x.toml", b"x" * (2 << 20), "too large"),
    ],
    ids=range(20),
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
        ("x.py", "print(1)", "never run"),
        ("x.sh", "accelerate launch train.py", "'train.py': flags of no framework"),
        ("x.sh", "xtuner train x.py", "'xtuner'"),
        ("x.sh", "litgpt finetune_adapter --config tiny.yaml", "'litgpt'"),
        ("x.sh", "python3 -m verl.trainer.main_ppo trainer.nnodes=1 data.path=x", "'verl.trainer.main_ppo'"),
        ("x.sh", "torchrun -m verl.trainer.fsdp_sft_trainer data.a=b model.c=d", "'verl.trainer.fsdp_sft_trainer'"),
        ("x.sh", "deepspeed --module openrlhf.cli.train_rm --pretrain x", "'openrlhf.cli.train_rm'"),
        ("x.sh", "python -m openrlhf.cli.train_ppo_ray --pretrain x", "'openrlhf.cli.train_ppo_ray'"),
        ("x.sh", "deepspeed main.py --actor_zero_stage 3", "'step 3 of DeepSpeed-Chat'"),
        ("x.sh", "torchrun train.py --alpha 1", "'train.py'"),
    ],
)
def test_unsupported(name: str, data: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(data, encoding="utf-8")
    with pytest.raises(UnsupportedError, match=message):
        read_recipe(file)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.json", '{"zero_optimization": {"stage": 3}}', "names no model"),
        ("x.json", '{"model_type": "llama"}', "no recipe"),
        ("x.yaml", "a: 1", "no recipe of a framework"),
        ("x.sh", "export A=1", "starts no training"),
        ("x.sh", "tune download meta-llama/Llama-3.1-8B", "starts no training"),
        ("x.sh", "litgpt chat out", "starts no training"),
        ("x.sh", "python3 -m verl.trainer.main_generation trainer.nnodes=1 data.path=x", "starts no training"),
        ("x.sh", "python -m trl.scripts.env", "starts no training"),
        ("x.md", "words", "not a recipe"),
    ],
)
def test_files_that_are_none(name: str, data: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(data, encoding="utf-8")
    with pytest.raises(NoRecipeError, match=message):
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
    narrow = titan(tmp_path, ("float8", "quantize.linear.mx"))
    assert "converters: products in MX formats are not priced" in [remark.message for remark in narrow.remarks]
    text = (DATA / "nemo.yaml").read_text(encoding="utf-8").replace("  fp8: true\n", "")
    for word, precision in (("32-true", "fp32"), ("bf16", "bf16"), ("null", None)):
        file = tmp_path / "nemo.yaml"
        file.write_text(text.replace("precision: bf16", f"precision: {word}"), encoding="utf-8")
        (recipe,) = read_recipe(file)
        assert recipe.precision == precision
        assert "full-precision" not in rules(recipe)


def test_carriage_returns_are_told_of(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    text = "#!/bin/bash\ntorchrun t.py --model_name_or_path q \\\n --per_device_train_batch_size 1 --bf16\n"
    file.write_bytes(text.replace("\n", "\r\n").encode())
    (recipe,) = read_recipe(file)
    (remark,) = (remark for remark in recipe.remarks if remark.rule == "carriage-returns")
    assert (remark.severity, remark.place and remark.place.line) == ("warning", 1)
    assert recipe.layout is not None
    assert recipe.layout.micro_batch_size == 1
    file.write_bytes(text.encode())
    assert "carriage-returns" not in rules(read_recipe(file)[0])


def test_what_is_no_file_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "dir.sh").mkdir()
    for name, problem in (("pipe.sh", "not a regular file"), ("dir.sh", "a folder"), ("no.sh", "no such file")):
        with pytest.raises(InputError, match=problem):
            read_recipe(tmp_path / name)


def run_in(folder: Path, name: str) -> Path:
    """A script that names a configuration file."""
    file = folder / "scripts" / "run.sh"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"CUDA_VISIBLE_DEVICES=0,1,2,3 erniekit train {name}\n", encoding="utf-8")
    return file


def test_a_configuration_file_named_from_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "examples").mkdir()
    shutil.copy(DATA / "ernie-lora.yaml", tmp_path / "examples" / "x.yaml")
    (recipe,) = read_recipe(run_in(tmp_path, "examples/x.yaml"))
    assert recipe.dialect == "paddle-shell"
    assert recipe.places["model"].file.endswith("examples/x.yaml")


@pytest.mark.parametrize("name", ["examples/x.yaml", "/elsewhere/x.yaml", "$ROOT/x.yaml"])
def test_where_a_configuration_file_is_can_be_told(name: str, tmp_path: Path) -> None:
    shutil.copy(DATA / "ernie-lora.yaml", tmp_path / "x.yaml")
    file = run_in(tmp_path, name)
    told = {"ROOT": "/elsewhere"} if "$" in name else {}
    meant = name.replace("$ROOT", "/elsewhere")
    with pytest.raises(InputError, match=rf"run\.sh:1: {meant}: no such file .*--set {meant}=PATH"):
        read_recipe(file, told)
    (recipe,) = read_recipe(file, {**told, meant: str(tmp_path / "x.yaml")})
    assert recipe.model is not None
    assert "unused-setting" not in rules(recipe)


def test_a_file_outside_the_repository_is_not_found_by_name(tmp_path: Path) -> None:
    shutil.copy(DATA / "ernie-lora.yaml", tmp_path / "x.yaml")
    inside = tmp_path / "inside"
    (inside / ".git").mkdir(parents=True)
    with pytest.raises(InputError, match="no such file"):
        read_recipe(run_in(inside, "x.yaml"))


TITAN = 'torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ${CONFIG:-"./t.toml"}'


def test_the_launch_of_torchtitan(tmp_path: Path) -> None:
    shutil.copy(DATA / "torchtitan.toml", tmp_path / "t.toml")
    file = tmp_path / "run.sh"
    flags = '--training.seq_len 4096 --parallelism.tensor_parallel_degree=4 --compile.enable "$@"'
    file.write_text(f"{TITAN} {flags}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert (recipe.dialect, recipe.title, recipe.model) == ("torchtitan-shell", "torchtitan.train", "llama3-8b")
    assert (recipe.nodes, recipe.devices_per_node, recipe.seq_length) == (1, 8, 4096)
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.pipeline_parallel) == (4, 2)
    assert (recipe.places["tp"].file, recipe.places["pp"].file) == (str(file), str(tmp_path / "t.toml"))
    compiled = {"compiled": "true", "fused_cross_entropy": "true", "loss_bytes_per_logit": "4"}
    assert compiled.items() <= recipe.options.items()
    file.write_text(f"{TITAN} $MORE\n", encoding="utf-8")
    (recipe,) = read_recipe(file, {"CONFIG": "t.toml"})
    assert [unknown.affects for unknown in recipe.unknowns] == [("any_other_flag",)]


TRAINER = """torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 --cutoff_len 2048
--per_device_train_batch_size 1 --torch_dtype bfloat16""".replace("\n", " ")


@pytest.mark.parametrize(
    ("flags", "rule", "rank", "recompute"),
    [
        ("--load_in_4bit True", "not-modelled", None, "none"),
        ("--use_peft --lora_r 4 --load_in_8bit", "", 4, "none"),
        ("--load_in_4bit False", "", None, "none"),
        ("--finetuning_type lora", "", 8, "full"),
        ("--finetuning_type lora --lora_rank 64", "", 64, "full"),
        ("--finetuning_type full --disable_gradient_checkpointing", "", None, "none"),
        ("--finetuning_type lora --quantization_bit 8", "", 8, "full"),
        ("--finetuning_type lora --quantization_bit 4", "", 8, "full"),
        ("--finetuning_type freeze", "not-modelled", None, "full"),
        ("--memory_efficient_norm True", "unknown-flag", None, "none"),
        ("--train_adapters_only True", "unknown-flag", None, "none"),
        ("--stage sft --plot_loss --model_type qwen", "", None, "none"),
    ],
)
def test_trainer_flags(flags: str, rule: str, rank: int | None, recompute: str, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"{TRAINER} {flags}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert rules(recipe) == ({rule} if rule else set())
    assert recipe.lora_rank == rank
    assert recipe.layout is not None
    assert recipe.layout.recompute == recompute


def test_what_only_stage_3_reads_refuses_no_stage_2(tmp_path: Path) -> None:
    """LlamaFamily/Llama-Chinese, train/sft/ds_config_zero2.json, keeps the parameters of its stage 2 on the host."""
    offload = '"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}, "unheard_of": 3'
    (tmp_path / "ds.json").write_text(f'{{"zero_optimization": {{"stage": 2,\n{offload}}}}}', encoding="utf-8")
    file = tmp_path / "run.sh"
    base = "--model_name_or_path x/llama-2-7b-hf --per_device_train_batch_size 1 --bf16 --deepspeed ds.json"
    file.write_text(f"deepspeed --num_gpus 8 train.py {base}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert "offload_parameters" not in recipe.options
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.layout.offload) == (2, "optimizer_tensorwise")
    places = {remark.rule: remark.place for remark in recipe.remarks}
    for rule in ("inactive-flag", "unknown-flag"):
        place = places[rule]
        assert place is not None
        assert (Path(place.file).name, place.line) == ("ds.json", 2)


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
    stack = next(known for known in stacks_of("torch") if known.name == "deepspeed")
    eager = ("fused_rms_norm", "composed_norm_bytes", "dense_masks")
    others = {name: value for name, value in recipe.options.items() if name not in (*stack.switches, *eager)}
    assert others == options
    assert ("not-modelled" in rules(recipe)) is refused


@pytest.mark.parametrize(("engine", "copies"), [("--deepspeed ds.json", "false"), ("", "true")])
def test_adapters_of_a_trainer_keep_no_logits(engine: str, copies: str, tmp_path: Path) -> None:
    """transformers 5.24, `compute_loss`, drops the output; DeepSpeed 0.16.4 stores adapters in the compute type."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    base = "--model_name_or_path x/llama-2-7b-hf --per_device_train_batch_size 1 --bf16 --use_peft --lora_r 8"
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 8 train.py {base} {engine}\n", encoding="utf-8")
    (recipe,) = read_recipe(tmp_path / "run.sh")
    assert (recipe.options["adapter_copies"], recipe.options["loss_bytes_per_logit"]) == (copies, "12")


@pytest.mark.parametrize(
    ("text", "switch", "value"),
    [
        ('"stage3_max_live_parameters": 1e8', "live_parameters", "100000000"),
        ('"stage3_max_reuse_distance": 3000000000', "reuse_parameters", "3000000000"),
        ('"stage3_prefetch_bucket_size": "auto"', "prefetch_parameters", "0"),
        ('"reduce_bucket_size": "auto"', "reduction_parameters", "0"),
        ('"reduce_bucket_size": 2e8', "reduction_parameters", "200000000"),
        ('"sub_group_size": 1000000.0', "step_parameters", "1000000"),
        ('"sub_group_size": 1e14', "step_parameters", "999999999999"),
        ('"overlap_comm": true', "reduction_buffers", "2"),
        ('"overlap_comm": false', "reduction_buffers", "1"),
        ('"stage3_max_live_parameters": 1e9}, "optimizer": {"type": "AdamW"', "step_temporaries", "0"),
        ('"stage3_max_live_parameters": 1e9}, "optimizer": {"type": "Lion"', "step_temporaries", "1"),
        ('"stage3_max_live_parameters": "auto"', "live_parameters", "1000000000"),
        ('"memory_efficient_linear": true', "kept_gathers", "false"),
        ('"memory_efficient_linear": false', "kept_gathers", "true"),
        ('"stage3_gather_16bit_weights_on_model_save": true', "saves_on_host", "weights"),
        ('"stage3_gather_16bit_weights_on_model_save": false', "saves_on_host", "none"),
    ],
)
def test_buffers_of_deepspeed(text: str, switch: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(f'{{"zero_optimization": {{"stage": 3, {text}}}}}', encoding="utf-8")
    file = tmp_path / "run.sh"
    base = "--model_name_or_path x/llama-2-7b-hf --per_device_train_batch_size 1 --bf16 --deepspeed ds.json"
    file.write_text(f"deepspeed --num_gpus 8 train.py {base}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert recipe.options[switch] == value
    assert "not-modelled" not in rules(recipe)


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


def test_torchtitan_s_open_groups(tmp_path: Path) -> None:
    """Two replicas of groups whose size the cluster decides; 8-bit gathers."""
    degrees = "data_parallel_shard_degree = -1\ndata_parallel_replicate_degree = 2"
    recipe = titan(tmp_path, ("data_parallel_shard_degree = -1", degrees))
    assert recipe.options["sharding_replicas"] == "2"
    assert "not-modelled" not in rules(recipe)
    gathers = "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n\n[optimizer]"
    assert titan(tmp_path, ("[optimizer]", gathers)).options["fp8_param_gather"] == "true"
