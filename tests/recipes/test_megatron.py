"""Megatron command lines as recipes."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import InputError, NoRecipeError, UnsupportedError
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.question.specs.documents import validated
from simulator.question.specs.model import ModelSpec
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.readers.read import read_recipe
from tests.recipes.seeds import DATA, about, rules

SHAPE = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
 --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --max-position-embeddings 8192
 --vocab-size 128256 --normalization RMSNorm --disable-bias-linear --position-embedding-type rope"""
FIRST_AND_LAST = (
    "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 7"
)
BASE = SHAPE + " --micro-batch-size 2 --global-batch-size 64 --seq-length 4096 --bf16"


def read(flags: str, folder: Path, before: str = "", **settings: str) -> Recipe:
    file = folder / "run.sh"
    words = " ".join(flags.split())
    file.write_text(f"{before}\ntorchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {words}\n", encoding="utf-8")
    (recipe,) = read_recipe(file, settings)
    return recipe


def layout(flags: str, folder: Path) -> Layout:
    found = read(f"{BASE} {flags}", folder).layout
    assert found is not None
    return found


def test_two_stages_may_both_have_their_own_layers(tmp_path: Path) -> None:
    ends = "--decoder-first-pipeline-num-layers 12 --decoder-last-pipeline-num-layers 20"
    assert layout(f"--pipeline-model-parallel-size 2 {ends}", tmp_path).stage_layers == (12, 20)


def test_base(tmp_path: Path) -> None:
    recipe = read(BASE, tmp_path)
    assert recipe.model == "llama3-8b"
    assert recipe.model_fields == {}
    assert (recipe.seq_length, recipe.global_batch_size, recipe.precision) == (4096, 64, "bf16")
    assert (recipe.nodes, recipe.devices_per_node) == (2, 8)
    assert recipe.layout == Layout(micro_batch_size=2, zero_stage=0)
    assert (recipe.framework, recipe.dialect, recipe.title) == ("megatron", "megatron-shell", "pretrain_gpt.py")
    assert recipe.remarks == ()


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--tensor-model-parallel-size 4", "tensor_parallel", 4),
        ("--pipeline-model-parallel-size=8", "pipeline_parallel", 8),
        ("--context-parallel-size 2", "context_parallel", 2),
        ("--sequence-parallel", "sequence_parallel", True),
        ("--use-distributed-optimizer", "zero_stage", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", "zero_stage", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", "zero_stage", 0),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero_stage", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "zero_stage", 3),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2", "virtual_stages", 4),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2", "virtual_stages", 2),
        (FIRST_AND_LAST, "stage_layers", (5, 10, 10, 7)),
        ("--recompute-activations", "recompute", "selective"),
        ("--recompute-granularity selective", "recompute", "selective"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", "recompute_layers", 4),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 4", "recompute_method", "block"),
        ("--cpu-offloading --cpu-offloading-num-layers 2", "offload", "activations"),
        ("--cpu-offloading-num-layers 31", "offload", "activations"),
        ("--cpu-offloading-num-layers 0", "offload", "none"),
        ("--optimizer-cpu-offload", "offload", "optimizer_tensorwise"),
        ("--optimizer hybridadam --optimizer-offload-policy static", "offload", "optimizer_tensorwise"),
        ("--expert-model-parallel-size 4", "expert_parallel", 4),
    ],
)
def test_layout(flags: str, field: str, value: object, tmp_path: Path) -> None:
    assert getattr(layout(flags, tmp_path), field) == value


@pytest.mark.parametrize(
    ("flags", "before", "options"),
    [
        ("--tp-comm-overlap", "", {"tp_comm_overlap": "true"}),
        ("", "", {"tp_comm_overlap": "false", "overlap_grad_reduce": "false", "expandable_segments": "false"}),
        (
            "--overlap-grad-reduce --overlap-param-gather",
            "",
            {"overlap_grad_reduce": "true", "overlap_param_gather": "true"},
        ),
        ("--no-overlap-p2p-communication", "", {"overlap_p2p": "false"}),
        ("--cross-entropy-loss-fusion", "", {"fused_cross_entropy": "true"}),
        ("", "export PYTORCH_CUDA_ALLOC_CONF=a:1,expandable_segments:True", {"expandable_segments": "true"}),
        ("", "export CUDA_LAUNCH_BLOCKING=1", {"blocking_launches": "true"}),
        ("", "export CUBLAS_WORKSPACE_CONFIG=:4096:8", {"deterministic_kernels": "products"}),
        ("--deterministic-mode", "export CUBLAS_WORKSPACE_CONFIG=:4096:8", {"deterministic_kernels": "all"}),
        ("--cross-entropy-fusion-impl te", "", {"fused_loss_bytes_per_logit": "2"}),
        ("--num-experts 8", "", {"grouped_experts": "false"}),
        (
            "--transformer-impl local --no-masked-softmax-fusion",
            "",
            {"flash_attention": "false", "attention_matrix_bytes": "4"},
        ),
        (
            "--tensor-model-parallel-size 2 --no-async-tensor-model-parallel-allreduce",
            "",
            {"overlap_tensor_gradients": "false"},
        ),
        ("--grad-reduce-in-bf16", "", {"gradient_dtype": "bf16"}),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", "", {"offload_fraction": "0.5"}),
        (
            "--moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity",
            "",
            {"expert_imbalance": "1.25"},
        ),
        ("--use-precision-aware-optimizer --main-params-dtype fp16", "", {"master_weight_dtype": "bf16"}),
        ("--transformer-impl local", "", {"flash_attention": "false"}),
        (
            "--use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            "",
            {"gradient_dtype": "bf16", "optimizer_dtype": "bf16"},
        ),
        ("", "export NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0", {"flash_attention": "false"}),
        ("--context-parallel-size 2 --cp-comm-type a2a", "", {"cp_communication": "all_to_all"}),
    ],
)
def test_options(flags: str, before: str, options: dict[str, str], tmp_path: Path) -> None:
    found = read(f"{BASE} {flags}", tmp_path, before).options
    assert options.items() <= found.items()
    assert ("flash_attention" in found) == ("flash_attention" in options)


@pytest.mark.parametrize(
    ("flags", "precision"),
    [("--bf16", "bf16"), ("--fp16", "fp16"), ("--bf16 --fp8-format hybrid", "fp8"), ("", "fp32")],
)
def test_precision(flags: str, precision: str, tmp_path: Path) -> None:
    recipe = read(f"{SHAPE} --seq-length 8 --global-batch-size 8 {flags}", tmp_path)
    assert recipe.precision == precision
    assert ("full-precision" in rules(recipe)) == (precision == "fp32")


def test_a_shape_of_no_shipped_model(tmp_path: Path) -> None:
    recipe = read(BASE.replace("--num-layers 32", "--num-layers 12"), tmp_path)
    assert recipe.model is None
    spec = validated("own", ModelSpec, {"name": "own", **recipe.model_fields})
    assert (spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim) == (12, 8, 128)
    assert spec.vocab_size == 128256


@pytest.mark.parametrize(
    "sizes", ["--qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128", "--v-head-dim 128", ""]
)
def test_experts_and_latent_attention(sizes: str, tmp_path: Path) -> None:
    recipe = read(
        sizes
        + """ --num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16 --swiglu --bf16
        --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816
        --moe-layer-freq ([0]*1+[1]*26) --multi-latent-attention --kv-lora-rank 512
        --untie-embeddings-and-output-weights --vocab-size 102400
        --tensor-model-parallel-size 2 --expert-model-parallel-size 8 --sequence-parallel --seq-length 4096
        --global-batch-size 8 --disable-bias-linear --normalization RMSNorm --position-embedding-type rope""".replace(
            "([0]*1+[1]*26)", "'([0]*1+[1]*26)'"
        ),
        tmp_path,
    )
    assert recipe.model == "deepseek-v2-lite"
    assert recipe.model_fields == {}
    assert recipe.layout is not None
    assert (recipe.layout.expert_parallel, recipe.layout.expert_tensor_parallel) == (8, 2)


@pytest.mark.parametrize(("tp", "vocabulary"), [(1, {}), (4, {"vocab_size": 128512})])
def test_vocabulary_is_padded(tp: int, vocabulary: dict[str, int], tmp_path: Path) -> None:
    flags = BASE.replace("--vocab-size 128256", "--patch-tokenizer-type LLama3Tokenizer --extra-vocab-size 256")
    assert read(f"{flags} --tensor-model-parallel-size {tp}", tmp_path).model_fields == vocabulary


@pytest.mark.parametrize(
    ("flags", "rule", "text"),
    [
        ("--tensor-model-parallel-size 2", "no-sequence-parallel", "tensor parallel 2"),
        ("--fp16", "contradiction", "--bf16 and --fp16"),
        ("--recompute-activations --recompute-granularity full", "contradiction", "full counts"),
        ("--recompute-method uniform", "contradiction", "no effect"),
        ("--cpu-offloading-num-layers 2", "not-modelled", "activations of 2 layers only"),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", "not-modelled", "FSDP of gradients"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "upper-bound", "room is left"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy all", "not-modelled", "allowed are no_shard, optim"),
        ("--use-megatron-fsdp", "not-modelled", "where it is absent, the version decides"),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --pipeline-model-parallel-size 2",
            "not-modelled",
            "pipeline",
        ),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim --megatron-fsdp-main-params-dtype bf16",
            "not-modelled",
            "main-params-dtype bf16: only the types of other flags",
        ),
        ("--use-nccl-ub", "not-modelled", "--use-nccl-ub: these buffers are not priced"),
        ("--fp8-format hybrid --first-last-layers-bf16", "not-modelled", "does not start with it and delayed scaling"),
        ("--optimizer soap", "not-modelled", "soap is not priced; priced are adamw, sgd_momentum, lion, muon"),
        ("--seq-length 2048", "repeated-flag", "'4096' on line 2, then '2048' on line 2"),
        ("--recompute-activation", "unknown-flag", "did you mean 'recompute_activations'?"),
        ("--fancy-kernel-fusion", "unknown-flag", "--fancy-kernel-fusion is not read"),
        ("--rampup-batch-size 1 1 1", "not-modelled", "ramp"),
        ("--moe-layer-freq x --num-experts 8", "not-modelled", "of which some have experts"),
        ("--num-experts 8 8 16", "not-modelled", "unequal numbers of experts"),
        ("--recompute-granularity selective --recompute-modules router", "not-modelled", "allowed are core_attn,"),
        ("--enable-zero-bubble", "unknown-flag", "--enable-zero-bubble is not read"),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6", "no-even-share", "no even share"),
        ("--optimizer hybridadam --optimizer-offload-policy auto", "not-modelled", "during the run"),
        # Up to core_v0.15.2 the flag itself switches post-training on.
        ("--export-force-local-attention", "not-modelled", "the exported model's own layers"),
        ("--enable-gpt-oss --modelopt-enabled", "not-modelled", "--enable-gpt-oss: layers of this kind"),
        ("--enable-gpt-oss --load $WEIGHTS", "not-modelled", "--enable-gpt-oss: layers of this kind"),
    ],
)
def test_remarks(flags: str, rule: str, text: str, tmp_path: Path) -> None:
    recipe = read(f"{BASE} {flags}", tmp_path)
    assert any(text in message for message in about(recipe, rule))
    assert all(remark.place is None or remark.place.line == 2 for remark in recipe.remarks)


@pytest.mark.parametrize(
    ("flags", "modules"),
    [
        ("--recompute-granularity selective", ("core_attn",)),
        ("--recompute-granularity selective --recompute-modules moe_act layernorm", ("layernorm", "moe_act")),
        ("--recompute-activations --recompute-modules mla_up_proj mlp", ("mla_up_proj", "mlp")),
        ("--moe-layer-recompute", ("core_attn", "moe")),
    ],
)
def test_modules_of_selective_recompute(flags: str, modules: tuple[str, ...], tmp_path: Path) -> None:
    layout = read(f"{BASE} {flags}", tmp_path).layout
    assert layout is not None
    assert (layout.recompute, layout.recompute_modules) == ("selective", modules)


@pytest.mark.parametrize(
    ("flags", "dispatch"),
    [
        ("", "allgather"),
        ("--moe-token-dispatcher-type alltoall", "alltoall"),
        ("--moe-token-dispatcher-type allgather", "allgather"),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
    ],
)
def test_dispatchers(flags: str, dispatch: str | None, tmp_path: Path) -> None:
    recipe = read(f"{BASE} --num-experts 8 --moe-router-topk 2 {flags}", tmp_path)
    assert recipe.options.get("expert_dispatch") == dispatch
    assert "expert_dispatch" not in read(BASE, tmp_path).options
    assert "overlap_expert_exchange" not in recipe.options
    overlapped = read(f"{BASE} --num-experts 8 {flags} --overlap-moe-expert-parallel-comm", tmp_path)
    assert overlapped.options["overlap_expert_exchange"] == "true"


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ("--swiglu", "", {"gated": False, "activation": "gelu"}),
        ("--swiglu", "--squared-relu", {"gated": False, "activation": "squared_relu"}),
        ("--swiglu", "--quick-geglu", {"activation": "gelu"}),
        ("--normalization RMSNorm", "", {"norm": "layer_norm"}),
        ("--position-embedding-type rope", "", {"rotary": False, "learned_positions": 8192}),
        ("--position-embedding-type rope", "--position-embedding-type none", {"rotary": False}),
        ("--position-embedding-type rope", "--use-rotary-position-embeddings", {}),
        (
            "--disable-bias-linear",
            "",
            {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
        ),
        ("--disable-bias-linear", "--disable-bias-linear --add-qkv-bias", {"attention_bias": True}),
    ],
)
def test_what_layers_are_made_of(old: str, new: str, fields: dict[str, object], tmp_path: Path) -> None:
    recipe = read(BASE.replace(old, new), tmp_path)
    assert recipe.model_fields == fields
    assert recipe.remarks == ()


def test_a_gpt_of_its_own_size_is_priced(tmp_path: Path) -> None:
    """Megatron's defaults alone: no gate, LayerNorm, biases, learned positions."""
    flags = """--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --max-position-embeddings 1024
 --seq-length 1024 --micro-batch-size 4 --global-batch-size 64 --fp16 --vocab-file v --merge-file m"""
    found = check_recipe(read(flags, tmp_path), question_of({"hardware": "h100-sxm-80g"}), Gates())
    assert found.case is not None
    model = found.case.scenario.model
    assert (model.intermediate_size, model.vocab_size, model.gated, model.tie_word_embeddings) == (
        4096,
        50304,
        False,
        True,
    )
    assert found.outcome == "fits"


def test_models_with_an_encoder_are_not_modelled(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"torchrun --nproc_per_node 8 pretrain_bert.py {' '.join(BASE.split())}\n")
    (recipe,) = read_recipe(file)
    assert check_recipe(recipe, question_of({"hardware": "h100-sxm-80g"}), Gates()).outcome == "not_modelled"


def test_all_offloaded_layers_and_adam_are_silent(tmp_path: Path) -> None:
    flags = "--cpu-offloading --cpu-offloading-num-layers 31 --optimizer adam"
    assert read(f"{BASE} {flags}", tmp_path).remarks == ()


def test_irrelevant_flags_are_silent(tmp_path: Path) -> None:
    flags = "--lr 1e-4 --wandb-project x --log-batch-size-to-tensorboard --save out --data-path d --seed 3 --min-lr 1"
    assert read(f"{BASE} {flags}", tmp_path).remarks == ()


@pytest.mark.parametrize("flags", ["--tensor-model-parallel-size two", "--micro-batch-size 0", "--seq-length"])
def test_bad_numbers(flags: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"run\.sh:2: {flags.split(maxsplit=1)[0]}: .*must be a whole number"):
        read(f"{BASE} {flags}", tmp_path)


def test_unknown_flags_on_some_paths(tmp_path: Path) -> None:
    before = """if [ $1 = a ]; then o="--sequence-parallel --bf16 --seq-length 8"; else o="--bf16 --seq-length 8"; fi"""
    recipe = read(f"{SHAPE} --tensor-model-parallel-size 2 $o --global-batch-size 8", tmp_path, before)
    assert recipe.precision == "bf16"
    assert recipe.seq_length == 8
    assert recipe.layout is None
    assert [(unknown.name, unknown.affects) for unknown in recipe.unknowns] == [("1", ("sequence_parallel",))]


def test_arrays() -> None:
    (recipe,) = read_recipe(DATA / "megatron-arrays.sh")
    assert recipe.model == "llama3-8b"
    assert (recipe.nodes, recipe.devices_per_node, recipe.global_batch_size) == (2, 8, 128)
    assert recipe.precision == "fp8"
    assert recipe.layout == Layout(
        tensor_parallel=2, pipeline_parallel=4, virtual_stages=2, sequence_parallel=True, zero_stage=1
    )
    assert recipe.places["tp"].line == 5
    assert rules(recipe) == {"assumed-unset", "exit-path"}
    (other,) = read_recipe(DATA / "megatron-arrays.sh", {"1": "--tp", "2": "1", "NODES": "4", "-d $DATA": "true"})
    assert other.layout is not None
    assert other.layout.tensor_parallel == 1
    assert other.nodes == 4


def test_parameters() -> None:
    (recipe,) = read_recipe(DATA / "pai-parameters.sh")
    assert recipe.layout is None
    needed = {unknown.name: unknown.affects for unknown in recipe.unknowns}
    assert needed["4"] == ("layers_per_virtual_stage", "pp")
    assert needed["5"] == ("recompute", "recompute_layers", "recompute_method")
    given = dict(zip("12345", ("single", "14B", "1", "4", "full"), strict=True))
    (recipe,) = read_recipe(DATA / "pai-parameters.sh", given)
    assert recipe.model == "qwen2.5-14b"
    assert recipe.layout == Layout(
        pipeline_parallel=4, virtual_stages=2, zero_stage=1, recompute="full", recompute_layers=2
    )
    assert recipe.unknowns == ()


@pytest.mark.parametrize(
    ("launch", "nodes", "devices"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8", 4, 8),
        ("torchrun", 1, 1),
        ("torchrun --nnodes 1:3 --nproc_per_node 4", 3, 4),
        ("CUDA_VISIBLE_DEVICES=0,1,2 torchrun --nproc_per_node gpu", 1, 3),
        ("torchrun --nproc_per_node gpu", 1, None),
        ("deepspeed --num_gpus 4 --num_nodes 2", 2, 4),
        ("deepspeed --hostfile hosts --num_gpus 4", None, 4),
        ("deepspeed --force_multi --num_nodes=2 --hostfile hosts --num_gpus 4", 2, 4),
        ("python", 1, 1),
    ],
)
def test_cluster(launch: str, nodes: int | None, devices: int | None, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"{launch} pretrain_gpt.py {' '.join(BASE.split())}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert (recipe.nodes, recipe.devices_per_node) == (nodes, devices)
    missing = {affected for unknown in recipe.unknowns for affected in unknown.affects}
    assert ("nodes" in missing) == (nodes is None)
    # Where neither launcher nor environment says, all devices of a node are meant.
    assert "devices_per_node" not in missing


def test_several_launches_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    words = " ".join(BASE.split())
    file.write_text(
        f"for tp in 1 2; do torchrun p.py {words} --tensor-model-parallel-size $tp; done\n", encoding="utf-8"
    )
    found = [recipe.layout.tensor_parallel for recipe in read_recipe(file) if recipe.layout]
    assert found == [1, 2]


def test_other_launches_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("torchrun own.py --x 1\n", encoding="utf-8")
    with pytest.raises(UnsupportedError, match="flags of no framework that is read"):
        read_recipe(file)
    file.write_text("python own.py --x 1\n", encoding="utf-8")
    with pytest.raises(NoRecipeError, match=r"own.py is started alone, and nothing says that it trains"):
        read_recipe(file)
    file.write_text(f"python own.py --x 1\ntorchrun p.py {' '.join(BASE.split())}\n", encoding="utf-8")
    assert len(read_recipe(file)) == 1


@pytest.mark.parametrize(
    ("schedule", "batch", "priced"),
    [
        ('"0:384 200B:768 400B:1152"', 1152, True),
        ('"0:768 2.4B:320"', 768, True),
        ("0:16", 16, True),
        ('"0:16 soon:32"', None, False),
        ('""', None, False),
    ],
)
def test_a_batch_in_steps(schedule: str, batch: int | None, priced: bool, tmp_path: Path) -> None:
    """The largest is priced: fewer micro batches keep no more in flight."""
    flags = " ".join(BASE.replace("--global-batch-size 64", "").split())
    file = tmp_path / "run.sh"
    file.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags} --step-batch-size-schedule {schedule}\n")
    (recipe,) = read_recipe(file)
    assert recipe.global_batch_size == batch
    said = {remark.severity for remark in recipe.remarks if "schedule" in remark.message}
    assert said == ({"warning"} if priced else {"error"})


def test_the_folder_of_a_script_tells_what_it_trains(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    for script, other in (("examples/mimo/train.py", True), ("xiaomimimo/train.py", False), ("mimo/x/train.py", False)):
        file.write_text(f"torchrun --nproc_per_node 8 {script} {' '.join(BASE.split())}\n")
        (recipe,) = read_recipe(file)
        assert any("an encoder" in remark.message for remark in recipe.remarks) == other


@pytest.mark.parametrize(("tokenizer", "model"), [("OwnTokenizer", None), ("LLama2Tokenizer", "llama-2-7b")])
def test_a_tokenizer_that_is_not_known_makes_no_model_of_equal_sizes(
    tokenizer: str, model: str | None, tmp_path: Path
) -> None:
    flags = f"""--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu
     --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm --seq-length 4096 --bf16
     --max-position-embeddings 4096 --micro-batch-size 1 --patch-tokenizer-type {tokenizer}
     --position-embedding-type rope"""
    recipe = read(flags, tmp_path)
    assert recipe.model == model
    assert ("no-vocabulary" in rules(recipe)) == (model is None)
    # Pai takes it from the weights.
    named = read(f"{flags} --load /mnt/Baichuan2-7B-Base-to-mg-tp2-pp1", tmp_path)
    assert (model or named.model_fields["vocab_size"]) == (model or 125696)


@pytest.mark.parametrize(
    ("load", "vocabulary"), [("", 151680), ("--load $1", 151680), ("--load /x/Qwen2.5-7B", 152064)]
)
def test_a_tokenizer_of_one_vocabulary_whatever_the_weights(load: str, vocabulary: int, tmp_path: Path) -> None:
    flags = SHAPE.replace("--vocab-size 128256", "--patch-tokenizer-type Qwen2Tokenizer").replace(
        "layers 32", "layers 12"
    )
    recipe = read(f"{flags} --micro-batch-size 1 --seq-length 4096 --bf16 {load}", tmp_path)
    assert recipe.model_fields["vocab_size"] == vocabulary


@pytest.mark.parametrize("kind", ["megatron", "huggingface"])
def test_a_model_that_transformers_builds_is_told(kind: str, tmp_path: Path) -> None:
    recipe = read(f"{BASE} --use-distributed-optimizer --transformer-type {kind}", tmp_path)
    assert rules(recipe) == ({"not-modelled"} if kind == "huggingface" else set())
    result = check_recipe(recipe, question_of({"hardware": "h200-sxm"}), Gates())
    assert (result.outcome, result.passed) == (("not_modelled", False) if kind == "huggingface" else ("fits", True))
    assert (result.blame.line if result.blame else None) == (2 if kind == "huggingface" else None)


def test_the_keys_of_verl_are_no_keys_of_nemo(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    keys = "trainer.nnodes=1 data.train_batch_size=8 actor_rollout_ref.actor.strategy=megatron"
    file.write_text(f"python verl_entrypoint.py {keys}\n", encoding="utf-8")
    with pytest.raises(UnsupportedError, match="flags of no framework"):
        read_recipe(file)


def test_tensor_parallel_experts_of_a_model_that_has_none(tmp_path: Path) -> None:
    flags = f"{BASE} --tensor-model-parallel-size 2 --sequence-parallel"
    plain = check_recipe(read(flags, tmp_path), question_of({"hardware": "h200-sxm"}), Gates())
    result = check_recipe(
        read(f"{flags} --expert-tensor-parallel-size 4", tmp_path), question_of({"hardware": "h200-sxm"}), Gates()
    )
    assert result.outcome == plain.outcome == "fits"
    assert result.estimate is not None
    assert plain.estimate is not None
    assert result.estimate.memory == plain.estimate.memory
    refused = check_recipe(
        read(f"{flags} --expert-model-parallel-size 4", tmp_path), question_of({"hardware": "h200-sxm"}), Gates()
    )
    assert refused.outcome == "refused"
    own = question_of({"hardware": "h200-sxm", "expert_tensor_parallel": 2})
    assert check_recipe(read(flags, tmp_path), own, Gates()).outcome == "refused"


@pytest.mark.parametrize(("more", "groups"), [("", (0, 0)), ("--moe-router-group-topk 4", (8, 4))])
def test_groups_of_experts_without_a_number_for_a_token(more: str, groups: tuple[int, int], tmp_path: Path) -> None:
    recipe = read(f"{BASE} --num-experts 64 --moe-router-topk 4 --moe-router-num-groups 8 {more}", tmp_path)
    assert (recipe.model_fields["n_group"], recipe.model_fields["topk_group"]) == groups
    assert check_recipe(recipe, question_of({"hardware": "h200-sxm"}), Gates()).outcome != "unreadable"
