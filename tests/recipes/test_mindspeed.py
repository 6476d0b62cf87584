"""MindSpeed's own flags, each of which was once passed over or mistaken."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.answers.models import recipe_model
from simulator.cost.operations.sums import total_parameters
from simulator.errors import InputError
from simulator.evidence.calibration.store import coverage_of
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.question.specs.stacks import releases
from simulator.recipes.check.judge import check_recipe
from simulator.recipes.check.verdict import Checked
from simulator.recipes.readers.read import read_recipe
from tests.recipes.seeds import about, rules

SHAPE = """--use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32
 --swiglu --untie-embeddings-and-output-weights --tokenizer-type PretrainedFromHF
 --tokenizer-name-or-path /data/llama-2-7b-hf/ --make-vocab-size-divisible-by 1"""
RUN = (
    " --micro-batch-size 1 --global-batch-size 32 --seq-length 4096 --bf16 --use-flash-attn --disable-bias-linear"
    " --normalization RMSNorm --position-embedding-type rope"
)
BASE = SHAPE + RUN
LATENT = (
    """--use-mcore-models --num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16
 --swiglu --untie-embeddings-and-output-weights --vocab-size 102400 --multi-head-latent-attention --kv-lora-rank 512
 --v-head-dim 128 --qk-layernorm --num-experts 64 --moe-router-topk 6 --n-shared-experts 2
 --moe-intermediate-size 1408 --spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec"""
    + RUN
)
TOLD_APART = "--attention-mask-type general --reset-attention-mask"
ULYSSES = "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo"
OLD_NAMES = "--qk-nope-head-dim 128 --qk-rope-head-dim 64"
NEW_NAMES = "--qk-head-dim 128 --qk-pos-emb-head-dim 64"


def read(flags: str, folder: Path) -> Recipe:
    file = folder / "run.sh"
    file.write_text(f"\ntorchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {' '.join(flags.split())}\n")
    (recipe,) = read_recipe(file)
    return recipe


def layout(flags: str, folder: Path) -> Layout:
    found = read(f"{BASE} {flags}", folder).layout
    assert found is not None
    return found


def judged(flags: str, folder: Path, hardware: str = "ascend-910b-64g") -> Checked:
    return check_recipe(read(f"{BASE} {flags}", folder), question_of({"hardware": hardware}), Gates())


def test_base_is_read_whole(tmp_path: Path) -> None:
    recipe = read(BASE, tmp_path)
    assert recipe.remarks == ()
    assert (recipe.model, recipe.model_fields) == ("llama-2-7b", {})


def test_adapters(tmp_path: Path) -> None:
    targets = "--lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2"
    recipe = read(f"{BASE} --lora-r 16 --lora-alpha 32 {targets}", tmp_path)
    assert (recipe.lora_rank, recipe.remarks) == (16, ())
    some = read(f"{BASE} --lora-r 16 --lora-target-modules linear_qkv", tmp_path)
    assert (some.options["adapter_targets"], about(some, "not-modelled")) == ("q+k+v", [])
    other = read(f"{BASE} --lora-r 16 --lora-target-modules linear_qkv other", tmp_path)
    assert about(other, "not-modelled") == ["LoRA on linear_qkv other: its layers are not known"]


@pytest.mark.parametrize(
    "flags",
    [
        "--tp-2d",
        "--stage prm",
        "--stage ppo",
        "--cla-share-factor 2",
        "--spec mindspeed_llm.tasks.models.spec.deepseek4_spec layer_spec",
    ],
)
def test_what_may_turn_the_verdict_leaves_none(flags: str, tmp_path: Path) -> None:
    found = judged(flags, tmp_path)
    assert (found.outcome, found.passed, found.estimate) == ("not_modelled", False, None)
    assert found.blame is not None
    assert found.blame.line == 2
    assert flags.split(maxsplit=1)[0].lstrip("-") in found.reasons[0].lower() or "--qlora" in found.reasons[0]


def test_shorter_samples_leave_what_fits(tmp_path: Path) -> None:
    flags = "--tensor-model-parallel-size 8 --sequence-parallel --stage sft --variable-seq-lengths"
    assert judged(flags, tmp_path).outcome == "fits"
    large = judged(f"{flags} --micro-batch-size 64 --global-batch-size 64", tmp_path)
    assert large.outcome == "depends"
    assert "samples may be shorter" in large.reasons[0]
    # The state alone is over the capacity: shorter samples change nothing.
    assert judged(flags.replace("size 8", "size 1"), tmp_path).outcome == "does_not_fit"
    assert judged("--stage sft", tmp_path).outcome == "does_not_fit"


def test_the_optimizer_is_swapped(tmp_path: Path) -> None:
    assert layout("--swap-optimizer --use-distributed-optimizer", tmp_path).offload == "optimizer_tensorwise"


def test_layers_are_listed(tmp_path: Path) -> None:
    assert layout("--pipeline-model-parallel-size 4 --num-layer-list 7,9,9,7", tmp_path).stage_layers == (7, 9, 9, 7)
    assert layout("--pipeline-model-parallel-size 4 --num-layer-list 8,8,8,8", tmp_path).stage_layers == ()
    with pytest.raises(InputError, match=r"run\.sh:2: --num-layer-list: must list 2 numbers"):
        layout("--pipeline-model-parallel-size 2 --num-layer-list 7,9,9,7", tmp_path)


def test_layers_that_do_nothing_keep_their_place(tmp_path: Path) -> None:
    recipe = read(
        f"{BASE.replace('layers 32', 'layers 34')} --pipeline-model-parallel-size 2 --noop-layers 0,33", tmp_path
    )
    assert (recipe.model, recipe.model_fields) == ("llama-2-7b", {})
    assert recipe.layout is not None
    assert recipe.layout.stage_layers == ()
    one = read(
        f"{BASE.replace('layers 32', 'layers 34')} --pipeline-model-parallel-size 2 --noop-layers 33,32", tmp_path
    )
    assert one.layout is not None
    assert one.layout.stage_layers == (17, 15)
    chunks = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 8 --noop-layers 3"
    several = read(f"{BASE} {chunks}", tmp_path).layout
    assert several is not None
    assert (several.stage_layers, several.chunk_layers) == ((15, 16), (7, 8, 8, 8))


@pytest.mark.parametrize(
    ("count", "per_rank", "expected"),
    [
        (4, "", ("block", 4, ())),
        (4, "--enable-recompute-layers-per-pp-rank", ("block", 2, ())),
        (3, "--enable-recompute-layers-per-pp-rank", ("list", 1, (0, 1, 8, 9, 16, 24))),
        (40, "", ("block", 8, ())),
    ],
)
def test_recomputed_layers_are_of_a_chunk_or_of_a_rank(
    count: int, per_rank: str, expected: tuple[str, int, tuple[int, ...]], tmp_path: Path
) -> None:
    full = f"--recompute-granularity full --recompute-method block --recompute-num-layers {count}"
    cut = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 8"
    found = layout(f"{full} {cut} {per_rank}", tmp_path)
    assert (found.recompute_method, found.recompute_layers, found.recompute_layer_list) == expected


@pytest.mark.parametrize("names", [OLD_NAMES, NEW_NAMES])
@pytest.mark.parametrize("layers", ["--first-k-dense-replace 1 --moe-layer-freq 1", "--moe-layer-freq [0]+[1]*26"])
def test_latent_attention_and_experts_by_both_names(names: str, layers: str, tmp_path: Path) -> None:
    recipe = read(f"{LATENT} {names} {layers.replace('[0]+[1]*26', repr('[0]+[1]*26'))}", tmp_path)
    assert (recipe.model, recipe.model_fields) == ("deepseek-v2-lite", {})
    assert "not-modelled" not in rules(recipe)
    assert check_recipe(recipe, question_of({"hardware": "ascend-910b-64g"}), Gates()).outcome == "does_not_fit"


@pytest.mark.parametrize(
    ("freq", "layers"),
    [
        ("2", "10" * 13 + "1"),
        ("[1]+[0]*26", "1" + "0" * 26),
        ("([0,1]*13)+[0]", None),
        ("[0,1]*13+[0]", "01" * 13 + "0"),
    ],
)
def test_experts_in_other_layers(freq: str, layers: str | None, tmp_path: Path) -> None:
    recipe = read(f"{LATENT} {NEW_NAMES} --moe-layer-freq '{freq}'", tmp_path)
    if layers is None:
        assert "not-modelled" in rules(recipe)
        return
    expected = tuple("experts" if digit == "1" else "gated" for digit in layers)
    assert recipe.model_fields["feed_forwards"] == expected
    found = check_recipe(recipe, question_of({"hardware": "ascend-910b-64g"}), Gates())
    assert found.case is not None
    assert sum(kind.routed for kind in found.case.scenario.model.layers) == layers.count("1")


@pytest.mark.parametrize("freq", ["[0]*27", "[1]*999999", "([1]", "__import__", "[1]*9"])
def test_lists_of_other_layers_are_not_modelled(freq: str, tmp_path: Path) -> None:
    recipe = read(f"{LATENT} {NEW_NAMES} --moe-layer-freq '{freq}'", tmp_path)
    assert any("of which some have experts" in message for message in about(recipe, "not-modelled"))


def test_experts_over_the_tensor_parallel_group(tmp_path: Path) -> None:
    sizes = "--tensor-model-parallel-size 2 --expert-model-parallel-size 4 --sequence-parallel"
    split = read(f"{LATENT} {NEW_NAMES} {sizes}", tmp_path).layout
    whole = read(f"{LATENT} {NEW_NAMES} {sizes} --moe-tp-extend-ep", tmp_path).layout
    assert split is not None
    assert whole is not None
    assert (split.expert_parallel, split.expert_tensor_parallel) == (4, 2)
    assert (whole.expert_parallel, whole.expert_tensor_parallel) == (8, 1)


GROUPS = "--group-query-attention --num-query-groups"
HYBRID = "--context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2"
LATER = "--pad-vocab-size-to 32000"  # a flag of v2.3
LATER_CORE = "--recompute-modules core_attn"  # a flag of Megatron's core 0.12
FIRST_OF_LLM_2_1 = "--mla-fa-divide-qk"  # a flag of MindSpeed-LLM v2.1, on core 0.8


@pytest.mark.parametrize(
    ("flags", "exchange", "repeated"),
    [
        ("--context-parallel-algo ulysses_cp_algo", "all_to_all", False),
        (f"{GROUPS} 8 --context-parallel-algo ulysses_cp_algo", "all_to_all", True),
        (f"{LATER} --context-parallel-algo ulysses_cp_algo", "all_to_all", False),
        ("--context-parallel-algo megatron_cp_algo", None, False),
        (f"{GROUPS} 8 {LATER} --context-parallel-algo ulysses_cp_algo", "all_to_all", False),
        (f"{GROUPS} 2 {LATER} --context-parallel-algo ulysses_cp_algo", "all_to_all", True),
        (f"{GROUPS} 2 {LATER} {HYBRID}", "all_to_all_ring", False),
        (f"{GROUPS} 1 {LATER} {HYBRID}", "all_to_all_ring", True),
    ],
)
def test_how_context_parallelism_exchanges(flags: str, exchange: str | None, repeated: bool, tmp_path: Path) -> None:
    recipe = read(f"{BASE} --context-parallel-size 4 {flags}", tmp_path)
    assert recipe.options.get("cp_communication") == exchange
    assert ("repeat_kv" in recipe.options) == repeated
    assert "not-modelled" not in rules(recipe)


@pytest.mark.parametrize(
    ("flags", "exchange", "assumed"),
    [
        ("--context-parallel-size 4", "all_to_all", True),
        (f"--context-parallel-size 4 {FIRST_OF_LLM_2_1}", "all_to_all", True),
        (f"--context-parallel-size 4 {LATER}", None, False),
        (f"--context-parallel-size 4 {LATER_CORE}", None, False),
        # No heads to exchange for: MindSpeed up to v2.0 ends there.
        ("--context-parallel-size 3", None, False),
        ("--context-parallel-size 8 --tensor-model-parallel-size 8 --sequence-parallel", None, False),
    ],
)
def test_the_default_exchange_is_the_releases(flags: str, exchange: str | None, assumed: bool, tmp_path: Path) -> None:
    recipe = read(f"{BASE} {flags}", tmp_path)
    assert recipe.options.get("cp_communication") == exchange
    assert ("release-assumed" in rules(recipe)) == assumed


def test_repeated_heads_follow_the_default_exchange(tmp_path: Path) -> None:
    told = read(f"{BASE} {GROUPS} 8 --context-parallel-size 4 --context-parallel-algo ulysses_cp_algo", tmp_path)
    left_out = read(f"{BASE} {GROUPS} 8 --context-parallel-size 4", tmp_path)
    assert left_out.options == told.options
    assert left_out.options["repeat_kv"] == "true"


def test_a_flag_is_as_old_as_its_first_definition(tmp_path: Path) -> None:
    # Megatron's core has it since 0.5; MindSpeed-LLM defines it again from v2.2 on.
    assert read(f"{BASE} --context-parallel-size 2", tmp_path).options["warm_up_whole_batch"] == "true"


def test_heads_that_are_repeated_take_more_and_are_not_refused(tmp_path: Path) -> None:
    exchange = "--use-distributed-optimizer --context-parallel-algo ulysses_cp_algo --context-parallel-size"
    needs = []
    for groups in (2, 8):
        result = judged(f"{GROUPS} {groups} {exchange} 8 {LATER} --micro-batch-size 4", tmp_path)
        assert result.outcome == "fits"
        assert result.estimate is not None
        needs.append(result.estimate.memory.parts_bytes["activations"])
    # Of 4 x 512 tokens in 32 layers, in widths of q: q, k and v; or the projection, q and k.
    wide, narrow = 3, 1 + 2 * 8 / 32 + 1 + 8 / 32
    assert needs[0] - needs[1] == (wide - narrow) * 4096 * 2 * 4 * 512 * 32
    refused = judged(f"{GROUPS} 4 {exchange} 3 {LATER}", tmp_path)
    assert refused.outcome != "fits"


def test_the_older_models_fuse_what_they_are_told(tmp_path: Path) -> None:
    old = f"{BASE.replace('--use-mcore-models', '--use-fused-rmsnorm')}"
    options = read(old, tmp_path).options
    assert (options["fused_rms_norm"], options["fused_swiglu"]) == ("true", "false")
    assert "fused_rms_norm" not in read(f"{BASE} --use-fused-rmsnorm", tmp_path).options


def test_the_tokenizer_decides_the_vocabulary(tmp_path: Path) -> None:
    assert read(f"{BASE} --vocab-size 131072", tmp_path).model_fields == {}
    assert read(f"{BASE} --padded-vocab-size 131072", tmp_path).model_fields == {"vocab_size": 131072}


def test_the_allocator_of_the_device(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    line = f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {' '.join(BASE.split())}\n"
    file.write_text(f"export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True\n{line}")
    (recipe,) = read_recipe(file)
    assert recipe.options["expandable_segments"] == "true"


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--swap-attention", {"swapped_attention": "true"}),
        ("--recompute-activation-function", {"recomputed_activation_share": "1"}),
        (
            "--recompute-activation-function --recompute-activation-function-num-layers 8",
            {"recomputed_activation_share": "0.25"},
        ),
        ("--recompute-norm --recompute-norm-num-layers 16", {"recomputed_norm_share": "0.5"}),
        ("--moe-zero-memory level0", {"recomputed_expert_share": "0.7"}),
        ("--moe-zero-memory level1 --moe-zero-memory-num-layers 16", {"recomputed_expert_share": "0.45"}),
        ("--stage dpo --is-pairwise-dataset", {"frozen_reference": "true", "sequences_per_sample": "2"}),
        ("--stage simpo --is-pairwise-dataset", {"sequences_per_sample": "2"}),
        (
            "--stage orm --is-pairwise-dataset",
            {"score_head": "true", "unused_output_layer": "true", "sequences_per_sample": "2"},
        ),
        (
            "--lora-r 8 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2 --qlora",
            {"quantised_base": "true"},
        ),
        (
            "--position-embedding-type alibi --square-alibi-mask --fill-neg-inf --use-mcore-models",
            {"position_bias_tables": "3"},
        ),
        (
            "--position-embedding-type alibi --use-flash-attn",
            {"attention_mask": "layers", "position_bias_tables": "1"},
        ),
        ("--attention-mask-type general", {"attention_mask": "sequence"}),
        ("--reuse-fp32-param", {"kept_boundaries": "true", "attention_mask": "compressed"}),
        # --fix-sub-seq-length is of v26, --swap-optimizer-times of v2.3.
        (f"{TOLD_APART} --fix-sub-seq-length 4096", {"attention_mask": "compressed"}),
        (f"{TOLD_APART} {ULYSSES} --fix-sub-seq-length 4096", {"attention_mask": "compressed"}),
        (f"{TOLD_APART} {ULYSSES} --pad-vocab-size-to 32000", {"attention_mask": "compressed"}),
        (f"{TOLD_APART} --pad-vocab-size-to 32000", {"attention_mask": "sequence"}),
        (
            f"{TOLD_APART} --fix-sub-seq-length 4096 {ULYSSES.replace('ulysses', 'megatron')}",
            {"attention_mask": "sequence"},
        ),
        ("--stage sft --no-pad-to-seq-lengths", {"kept_boundaries": "false"}),
        ("--moe-alltoall-overlap-comm", {"kept_dispatches": "3"}),
    ],
)
def test_what_is_kept_done_again_and_trained(flags: str, options: dict[str, str], tmp_path: Path) -> None:
    recipe = read(f"{BASE} {flags}", tmp_path)
    assert options.items() <= recipe.options.items()
    assert not about(recipe, "unknown-flag")


@pytest.mark.parametrize(
    ("runtime", "never", "outcome"),
    [("pytorch", False, "fits"), ("mindspore", True, "fits"), ("other", None, "not_modelled")],
)
def test_a_runtime_of_no_measured_run_widens_the_range(
    runtime: str, never: bool | None, outcome: str, tmp_path: Path
) -> None:
    spread = "--tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer"
    result = judged(f"{spread} --swap-attention --ai-framework {runtime}", tmp_path)
    assert result.outcome == outcome
    assert result.case is not None
    run = (result.case.scenario, result.case.layout)
    assert never is None or coverage_of([run], sources=1).distances(run[0])(run[1]).stack == never


def test_a_mask_that_only_early_releases_make_leaves_no_firm_verdict(tmp_path: Path) -> None:
    flags = f"{TOLD_APART} {ULYSSES} --seq-length 262144 --recompute-granularity full --recompute-method uniform"
    result = judged(f"{flags} --tensor-model-parallel-size 4 --sequence-parallel --recompute-num-layers 1", tmp_path)
    assert result.outcome == "not_modelled"
    assert "before v2.3" in result.reasons[0]


def test_alibi_without_the_flash_kernel_has_no_mask_of_its_own(tmp_path: Path) -> None:
    flags = f"{BASE.replace('--use-flash-attn', '')} --position-embedding-type alibi"
    assert read(flags, tmp_path).options["attention_mask"] == "compressed"


@pytest.mark.parametrize(
    ("flags", "release"),
    [
        ("--reuse-fp32-param", "mindspeed-v2.0"),
        ("--reuse-fp32-param --moe-router-num-groups 4", "mindspeed-v2.2"),
        ("--reuse-fp32-param --transformer-impl local", "mindspeed-v26"),
        ("--reuse-fp32-param --fix-sub-seq-length 4096", "mindspeed-v26"),
    ],
)
def test_the_release_is_the_oldest_that_has_the_flags(flags: str, release: str, tmp_path: Path) -> None:
    options = read(f"{BASE} {flags}", tmp_path).options
    assert releases()[release].keys() <= options.keys()
    assert options["largest_tensor_step"] == str(releases()[release]["largest_tensor_step"]).lower()
    assert options["loss_bytes_per_logit"] == str(releases()[release]["loss_bytes_per_logit"])


def test_a_conversion_of_weights_is_no_launch(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    convert = "python convert_ckpt_v2.py --num-layers 4 --load-model-type hf"
    train = f"torchrun --nproc_per_node 8 pretrain_gpt.py {' '.join(BASE.split())}"
    file.write_text(f"{convert}\npython ./preprocess_data.py --seq-length 4096 --workers 4\n{train}\n")
    (recipe,) = read_recipe(file)
    assert recipe.model == "llama-2-7b"


def test_the_file_of_a_tokenizer_says_more_than_its_class(tmp_path: Path) -> None:
    tokenizer = "--tokenizer-type Llama2Tokenizer --tokenizer-model /data/baichuan2-13B-hf/tokenizer.model"
    flags = BASE.replace("--tokenizer-type PretrainedFromHF", "").replace(
        "--tokenizer-name-or-path /data/llama-2-7b-hf/", tokenizer
    )
    assert read(flags, tmp_path).model_fields["vocab_size"] == 125696


def test_the_buffer_of_the_groups(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    launch = f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {' '.join(BASE.split())}"
    file.write_text(f"export HCCL_BUFFSIZE=400\n{launch}\n")
    (recipe,) = read_recipe(file)
    assert recipe.options["communicator_buffer_mib"] == "400"


def test_an_unknown_tokenizer_makes_no_model_of_equal_sizes(tmp_path: Path) -> None:
    other = read(f"{BASE.replace('llama-2-7b-hf', 'somebody')} --add-qkv-bias", tmp_path)
    assert other.model is None
    assert "no-vocabulary" in rules(other)
    named = read(BASE.replace("llama-2-7b-hf", "somebody"), tmp_path)
    assert (named.model, "no-vocabulary" in rules(named)) == (None, True)
    # A path that names nobody leaves the model of these sizes, and says whose vocabulary it is.
    unsaid = read(BASE.replace("llama-2-7b-hf", "tokenizer"), tmp_path)
    assert (unsaid.model, "vocabulary-assumed" in rules(unsaid)) == ("llama-2-7b", True)
    qwen = read(f"{BASE.replace('llama-2-7b-hf', 'qwen-7b')} --add-qkv-bias", tmp_path)
    assert qwen.model_fields["vocab_size"] == 151851


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--reuse-fp32-param", {"master_weight_dtype": "bf16"}),
        ("--o2-optimizer", {"master_weights": "false"}),
        ("--o2-gradient", {"gradient_dtype": "bf16"}),
        ("--no-gradient-accumulation-fusion", {"fused_gradient_accumulation": "false"}),
    ],
)
def test_leaner_state(flags: str, options: dict[str, str], tmp_path: Path) -> None:
    recipe = read(f"{BASE} {flags}", tmp_path)
    assert options.items() <= recipe.options.items()
    assert recipe.remarks == ()


def test_kernels_are_read(tmp_path: Path) -> None:
    plain = read(BASE, tmp_path).options
    assert (plain["tp_comm_overlap"], plain["fused_rotary"]) == ("false", "false")
    for name in ("--use-mc2", "--use-ascend-mc2"):
        split = f"--tensor-model-parallel-size 8 --sequence-parallel {name} --use-fused-rotary-pos-emb"
        found = read(f"{BASE} {split}", tmp_path)
        assert (found.options["tp_comm_overlap"], found.options["fused_rotary"]) == ("true", "true")
        assert about(found, "not-modelled") == []


def test_experts_one_by_one_are_read_of_the_releases_that_slice_them(tmp_path: Path) -> None:
    routed = "--num-experts 8 --moe-router-topk 2 --moe-permutation-async-comm --moe-token-dispatcher-type allgather"
    found = read(f"{BASE} {routed}", tmp_path).options
    assert (found["sliced_experts"], found["indexed_dispatch"]) == ("true", "true")
    assert read(f"{BASE} {routed} --moe-grouped-gemm", tmp_path).options["sliced_experts"] == "false"
    # From core 0.9 on the outputs are joined once.
    later = read(f"{BASE} {routed} --transformer-impl local", tmp_path).options
    assert later.get("sliced_experts", "false") == "false"


PLM = (
    """--use-mcore-models --num-layers 32 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16
 --vocab-size 151936 --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
 --v-head-dim 128 --squared-relu --spec mindspeed_llm.tasks.models.spec.plm_spec layer_spec"""
    + RUN
)


def test_layers_of_plm_are_what_their_flags_say(tmp_path: Path) -> None:
    """Latent attention without compressed queries, and a network of two products: 1.83B parameters, as PLM-1.8B has."""
    recipe = read(PLM, tmp_path)
    assert "not-modelled" not in rules(recipe)
    model, _ = recipe_model(recipe, None, {}, None)
    assert model is not None
    attention = 2048 * 16 * 192 + 2048 * (512 + 64) + 512 * 16 * (128 + 128) + 16 * 128 * 2048 + 512
    layer = attention + 2 * 2048 * 8192 + 2 * 2048
    assert total_parameters(model) == 32 * layer + 2048 + 151936 * 2048


@pytest.mark.parametrize(("flag", "gated"), [("", True), ("--fc-type gate_up", True), ("--fc-type up_down", False)])
def test_a_network_whose_gate_is_taken_away(flag: str, gated: bool, tmp_path: Path) -> None:
    model, _ = recipe_model(read(f"{BASE} {flag}", tmp_path), None, {}, None)
    assert model is not None
    assert model.gated is gated
