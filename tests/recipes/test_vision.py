"""Recipes of models that read images: what of them is trained, models of two parts, and both ends of their images."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.cost.operations.sums import total_parameters
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.names import variant_name, variants
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked
from simulator.recipes.readers.read import read_recipe
from tests.recipes.test_formats import FACTORY
from tests.recipes.test_tuners import SWIFT

INTERNVL = (
    "torchrun --nproc_per_node=8 internvl/train/internvl_chat_finetune.py --model_name_or_path ./InternVL2_5-2B "
    "--bf16 True --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --max_seq_length 4096"
)
PARTS = "--vision_path a/InternViT-300M-448px --llm_path b/internlm2_5-7b-chat"


def read(folder: Path, name: str, text: str) -> Recipe:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


def judged(folder: Path, name: str, text: str, **values: object) -> Checked:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return check_files([str(file)], question_of({"hardware": "h100-sxm-80g", **values}), Gates())[0]


@pytest.mark.parametrize(
    ("flags", "rank", "training"),
    [
        ("", None, "trained"),
        ("--freeze_backbone True", None, "projector"),
        ("--freeze_backbone True --freeze_mlp True", None, "frozen"),
        ("--freeze_backbone True --freeze_llm True", 1, "projector"),
        ("--freeze_backbone True --freeze_mlp True --freeze_llm True --use_llm_lora 16", 16, "frozen"),
        ("--freeze_backbone True --freeze_llm True --use_llm_lora 16 --use_backbone_lora 8", 16, "lora8"),
    ],
)
def test_internvl_trains_what_is_not_frozen(flags: str, rank: int | None, training: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.sh", f"{INTERNVL} {flags}")
    assert (recipe.model, recipe.seq_length, recipe.lora_rank) == ("internvl2.5-2b", 4096, rank)
    assert (recipe.encoder_training, recipe.layout and recipe.layout.recompute) == (training, "full")


def test_a_model_of_two_parts_and_packed_samples(tmp_path: Path) -> None:
    text = INTERNVL.replace("--model_name_or_path ./InternVL2_5-2B", PARTS).replace("finetune.py", "pretrain.py")
    recipe = read(tmp_path, "x.sh", f"{text} --use_packed_ds True --max_packed_tokens 16384")
    assert (recipe.model, recipe.seq_length) == ("internvl2.5-8b", 16384)
    assert not any(remark.bound == "length" for remark in recipe.remarks)


def test_internvl_on_preferences_has_pairs_and_a_frozen_copy(tmp_path: Path) -> None:
    words = f"{INTERNVL.replace('finetune.py', 'mpo.py')} --loss_type sigmoid,bco_pair --rpo_alpha 1"
    options = read(tmp_path, "x.sh", words).options
    assert (options["sequences_per_sample"], options["frozen_reference"]) == ("2", "true")
    alone, pairs = (judged(tmp_path, "x.sh", text, images="1x448x448").estimate for text in (INTERNVL, words))
    assert alone
    assert pairs
    frozen, both = (each.memory.parts_bytes["encoder"] for each in (alone, pairs))
    encoder = load_model("internvl2.5-2b").encoder
    assert encoder
    assert both - frozen > 2 * encoder.parameters


FACTORY_VL = FACTORY.replace("meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct")
PADDLE_VL = (
    "stage: VL-SFT\nmodel_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\nmax_seq_len: 8192\nfine_tuning: full\n"
    "tensor_model_parallel_size: 1\nsharding: stage1\nper_device_train_batch_size: 1\nbf16: true\n"
)
SWIFT_VL = SWIFT.replace("PROGRAM", "swift").replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-VL-7B-Instruct")


@pytest.mark.parametrize(
    ("name", "text", "training"),
    [
        ("x.yaml", FACTORY_VL, "frozen"),
        ("x.yaml", f"{FACTORY_VL}freeze_vision_tower: false\n", "trained"),
        ("x.yaml", f"{FACTORY_VL}freeze_vision_tower: false\n".replace(": full", ": lora"), "lora8"),
        ("x.yaml", f"{FACTORY_VL}freeze_multi_modal_projector: false\n", "projector"),
        ("x.yaml", PADDLE_VL, "trained"),
        ("x.yaml", f"{PADDLE_VL}freeze_config: freeze_vision freeze_aligner\n", "frozen"),
        ("x.yaml", f"{PADDLE_VL}freeze_config: freeze_vision\n", "projector"),
        ("x.yaml", f"{PADDLE_VL}lora: true\nfreeze_config: freeze_llm\n", "lora8"),
        ("x.sh", SWIFT_VL, "frozen"),
        ("x.sh", f"{SWIFT_VL} --freeze_vit false", "lora8"),
        ("x.sh", f"{SWIFT_VL} --freeze_vit false --tuner_type full", "trained"),
        ("x.sh", f"{SWIFT_VL} --freeze_aligner false", "projector"),
    ],
)
def test_words_that_freeze_parts(name: str, text: str, training: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, name, text)
    assert (recipe.model, recipe.encoder_training) == ("qwen2.5-vl-7b", training)


@pytest.mark.parametrize(
    ("more", "bounded", "refused"),
    [
        ("", True, ""),
        ("packing: true\n", False, ""),
        ("attn_impl: eager\n", True, "keeps its scores"),
        ("freeze_config: freeze_bias\n", True, "other parts"),
    ],
)
def test_samples_and_attention_of_paddle(more: str, *, bounded: bool, refused: str, tmp_path: Path) -> None:
    remarks = read(tmp_path, "x.yaml", f"{PADDLE_VL}{more}").remarks
    assert any(remark.bound == "length" for remark in remarks) == bounded
    messages = [remark.message for remark in remarks if remark.rule == "not-modelled"]
    assert bool(messages) == bool(refused)
    assert all(refused in message for message in messages)


def test_unknown_images_are_priced_at_both_ends(tmp_path: Path) -> None:
    full = judged(tmp_path, "x.sh", f"{INTERNVL} --use_packed_ds True")
    remark = next(remark for remark in full.remarks if remark.bound == "images")
    assert full.outcome == "fits"
    assert "not said: 32 of" in remark.message
    stated = judged(tmp_path, "x.sh", f"{INTERNVL} --use_packed_ds True", images="1x448x448")
    assert full.estimate
    assert stated.estimate
    assert stated.estimate.memory.device_bytes < full.estimate.memory.device_bytes
    assert not any(remark.bound == "images" for remark in stated.remarks)
    asked = {"micro_batch_size": 5, "global_batch_size": 40}
    between = judged(tmp_path, "x.sh", f"{INTERNVL} --use_packed_ds True", **asked)
    assert between.outcome == "longest_does_not_fit"
    assert any("--images NxWxH decides" in reason for reason in between.reasons)


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b", ""),
        ("./pretrained/InternVL2-Llama3-76B/", "internvl2-llama3-76b", ""),
        ("work_dirs/internvl2_5_8b_dynamic_res_stage1", "internvl2.5-8b", "-dynamic-res-stage1"),
        ("Qwen/Qwen3-VL-Embedding-2B", None, ""),
        ("qwen2.5-7b", None, ""),
    ],
)
def test_names_of_models_that_read_images(text: str, name: str | None, rest: str) -> None:
    assert variant_name(text) == (name, rest)


# As Hugging Face counts the parameters of their safetensors, in billions.
COUNTED = {"internvl2-2b": 2.21, "internvl2-8b": 8.08, "internvl2-26b": 25.5, "internvl2-40b": 40.1}
COUNTED |= {"internvl2-llama3-76b": 76.3, "internvl2.5-4b": 3.71, "internvl2.5-38b": 38.4, "internvl2.5-78b": 78.4}
COUNTED |= {"internvl3-9b": 9.14, "internvl3.5-1b": 1.06, "internvl3.5-30b-a3b": 30.8, "llava-1.5-7b": 7.06}
COUNTED |= {"gemma-3-4b": 4.30, "gemma-3-12b": 12.19, "gemma-3-27b": 27.43, "qwen3.5-vl-9b": 9.41}


def test_named_models_have_their_published_parameters() -> None:
    for name in (name for name, row in variants().items() if "type" in row):
        model = load_model(name)
        assert model.encoder
        count = total_parameters(model) + model.encoder.parameters + model.encoder.projector_parameters
        if name in COUNTED:
            assert count / 1e9 == pytest.approx(COUNTED[name], rel=0.003), name


LLAVA = (
    "torchrun --nproc_per_node=8 llava/train/train_mem.py --model_name_or_path ./vicuna-7b-v1.5 --bf16 True "
    "--vision_tower ./InternViT-6B-224px --per_device_train_batch_size 4 --model_max_length 2048"
)


@pytest.mark.parametrize(
    ("flags", "rank", "training"),
    [
        ("", None, "projector"),
        ("--lora_r 32", None, "projector"),
        ("--lora_enable True --lora_r 32", 32, "projector"),
        ("--tune_mm_mlp_adapter True", 1, "projector"),
        ("--lora_enable True --freeze_mm_mlp_adapter True", 64, "frozen"),
    ],
)
def test_llava_never_trains_its_encoder(flags: str, rank: int | None, training: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.sh", f"{LLAVA} {flags}")
    assert (recipe.model, recipe.seq_length) == ("llava-internvit-224px-7b", 2048)
    assert (recipe.lora_rank, recipe.encoder_training) == (rank, training)
    encoder = load_model("llava-internvit-224px-7b").encoder
    assert encoder
    # 48 layers of 3,200 and 12,800 by the class of the repository: 5.9 billion; images of 336 pixels are 576 tokens.
    assert encoder.parameters == 48 * (4 * 3200**2 + 2 * 3200 * 12800 + 8 * 3200 + 12800) + 3200 * (588 + 2 + 577)
    assert encoder.image(1000, 300).tokens == 576


BRIDGED = (
    "torchrun --nproc_per_node 8 pretrain_vlm.py --num-layers 36 --hidden-size 4096 --num-attention-heads 8 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 8 --bf16 --use-bridge --bridge-hf-model $1"
)


@pytest.mark.parametrize(
    ("flags", "model", "training"),
    [
        ("--model-arch qwen3vl", "qwen3-vl-8b", "trained"),
        ("--model-arch qwen3vl --freeze-vision-model", "qwen3-vl-8b", "projector"),
        ("--model-arch gemma3vl", None, ""),
    ],
)
def test_what_a_bridge_builds_has_the_stated_layers_and_width(
    flags: str, model: str | None, training: str, tmp_path: Path
) -> None:
    recipe = read(tmp_path, "x.sh", f"{BRIDGED} {flags}")
    assert (recipe.model, recipe.encoder_training) == (model, training)


def test_an_unset_number_of_nodes_counts_as_unsaid(tmp_path: Path) -> None:
    text = INTERNVL.replace("torchrun", "torchrun --nnodes=$WORLD_SIZE").replace(
        "accumulation_steps 4", "accumulation_steps $((64 / WORLD_SIZE / 8))"
    )
    one, four = judged(tmp_path, "x.sh", text), judged(tmp_path, "x.sh", text, nodes=4)
    assert one.outcome == four.outcome == "fits"
    assert {"devices-counted", "nodes-assumed"} <= {remark.rule for remark in one.remarks}
    assert one.case
    assert four.case
    assert [(each.devices, each.global_batch_size) for each in (one.case.scenario, four.case.scenario)] == [
        (8, 64),
        (32, 64),
    ]
    # Half of a number is no number of nodes.
    halved = judged(tmp_path, "x.sh", text.replace("--nnodes=$WORLD_SIZE", "--nnodes=$((WORLD_SIZE / 2))"))
    assert halved.outcome == "cannot_tell"


LIBRARY = (
    "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe qwen3_vl_8b_{}_config "
    "--step_func qwen3_vl_step checkpoint.pretrained_checkpoint=x train.micro_batch_size=1 "
    "model.tensor_model_parallel_size=4"
)


@pytest.mark.parametrize(
    ("kind", "flags", "rank", "training"),
    [
        ("sft", "", None, "trained"),
        ("sft", "model.freeze_vision_model=True", None, "projector"),
        ("peft", "", 32, "lora32"),
        ("pretrain_mock", "", 1, "projector"),
    ],
)
def test_library_recipes_of_bridge(kind: str, flags: str, rank: int | None, training: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.sh", f"{LIBRARY.format(kind)} {flags} -gb 64 optimizer.lr=1e-5")
    assert (recipe.model, recipe.lora_rank, recipe.encoder_training) == ("qwen3-vl-8b", rank, training)
    assert recipe.layout
    assert (recipe.layout.tensor_parallel, recipe.layout.micro_batch_size, recipe.seq_length) == (4, 1, 4096)
    assert (recipe.global_batch_size, recipe.devices_per_node) == (64, 8)
    assert any(remark.bound == "length" for remark in recipe.remarks) == ("mock" not in kind)
    assert not [remark for remark in recipe.remarks if remark.rule == "unknown-flag"]


@pytest.mark.parametrize(
    ("words", "message"),
    [("--recipe qwen3_vl_8b_sft_config --peft_scheme dora", "--peft_scheme"), ("--recipe glm_45v_sft_config", "cut")],
)
def test_what_is_not_read_of_a_library_recipe(words: str, message: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, "x.sh", f"torchrun run_recipe.py {words}")
    assert any(message in remark.message for remark in recipe.remarks if remark.rule == "not-modelled")


def test_a_library_recipe_that_a_variable_names(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node=8 run_recipe.py --recipe $RECIPE"
    assert "only the run knows which" in judged(tmp_path, "x.sh", text).reasons[0]


def test_a_library_recipe_runs_on_the_job_that_starts_it(tmp_path: Path) -> None:
    """Megatron-Bridge joins the processes that Slurm starts."""
    header = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"
    start = "srun bash -c 'python run_recipe.py --recipe qwen3_vl_8b_sft_config'\n"
    job = read(tmp_path, "job.sh", header + start)
    assert (job.nodes, job.devices_per_node) == (4, 8)


MULTIMODAL = (
    "torchrun --nproc_per_node 8 examples/multimodal/train.py --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --bf16 "
    "--normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 32768 "
    "--position-embedding-type rope --seq-length 576 --decoder-seq-length 1024 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 256 --tensor-model-parallel-size 4 --patch-dim 14 --img-h {0} "
    "--img-w {0} {1}"
)


@pytest.mark.parametrize(
    ("side", "flags", "sizes", "training"),
    [
        # CLIP: 24 layers of 4 x 1024^2 + 2 x 1024 x 4096 and vectors; 336 / 14 = 24 patches on a side.
        (336, "--language-model-type=mistral_7b --freeze-ViT --freeze-LM", (303.5e6, 576), "projector"),
        (
            448,
            "--language-model-type=mistral_7b --vision-model-type internvit300M --pixel-shuffle",
            (304e6, 256),
            "trained",
        ),
    ],
)
def test_a_decoder_behind_an_encoder_of_megatron(
    side: int, flags: str, sizes: tuple[float, int], training: str, tmp_path: Path
) -> None:
    result = judged(tmp_path, "x.sh", MULTIMODAL.format(side, flags))
    assert result.outcome == "fits"
    assert result.case
    encoder = result.case.scenario.model.encoder
    assert encoder
    assert encoder.parameters == pytest.approx(sizes[0], rel=0.01)
    assert encoder.image(side, side).tokens == sizes[1]
    assert result.case.recipe.encoder_training == training
    assert result.case.scenario.seq_length == 1024
    projected = 1024 * (4 if "shuffle" in flags else 1)
    assert encoder.projector_parameters == pytest.approx((projected + 4096) * 14336, rel=0.001)


@pytest.mark.parametrize(
    ("side", "flags", "message"),
    [
        (336, "", "vision models are not priced"),
        (336, "--language-model-type=mistral_7b --vision-model-type vit", "vision models are not priced"),
        ("336 --img-w 224", "--language-model-type=mistral_7b", "of square tiles"),
        (
            336,
            "--language-model-type=mistral_7b --recompute-granularity full --recompute-method uniform",
            "computes again",
        ),
    ],
)
def test_encoders_of_megatron_that_are_refused(side: object, flags: str, message: str, tmp_path: Path) -> None:
    text = MULTIMODAL.format(side, flags).replace("examples/multimodal/train.py", "train.py")
    if isinstance(side, str):
        text = text.replace(f"--img-w {side}", "")
    result = judged(tmp_path, "x.sh", text)
    assert result.outcome == "not_modelled"
    assert message in " ".join(result.reasons)
