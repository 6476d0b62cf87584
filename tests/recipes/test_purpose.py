"""What trains nothing is passed over by what it does; what trains keeps its verdict."""

import json
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.errors import NoRecipeError, UnsupportedError
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe
from tests.recipes.test_megatron import BASE

CONVERTS = "hf2megads_weight_converter.py converts weights or data"
FLAGS = " ".join(BASE.split())
PADDLE = "--model_name_or_path meta-llama/Llama-2-7b --tensor_parallel_degree 2 --per_device_train_batch_size 1 --bf16"


def passed(text: str, folder: Path, name: str = "run.sh") -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    with pytest.raises(NoRecipeError) as caught:
        read_recipe(file)
    return str(caught.value).removeprefix(str(file))


def titles(text: str, folder: Path, name: str = "run.sh") -> list[str]:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return [recipe.title for recipe in read_recipe(file)]


@pytest.mark.parametrize(
    ("program", "does"),
    [
        ("torchrun --nproc_per_node 8 inference.py", "inference.py generates text"),
        ("torchrun inference.py --train-iters 1000", "inference.py generates text"),
        ("torchrun inference_fsdp2.py", "inference_fsdp2.py generates text"),
        ("torchrun generate_text_megatron_llama.py", "generate_text_megatron_llama.py generates text"),
        ("torchrun tools/generate_samples_gpt.py", "generate_samples_gpt.py generates text"),
        ("torchrun hf2_to_x_text_generation.py", "hf2_to_x_text_generation.py generates text"),
        ("python run_predict.py", "run_predict.py generates text"),
        ("torchrun $ROOT/evaluation.py", "evaluation.py evaluates a model"),
        ("deepspeed ../tasks/eval_harness/evaluate.py", "evaluate.py evaluates a model"),
        ("accelerate launch --num_processes 8 lm_evaluate.py", "lm_evaluate.py evaluates a model"),
        ("python tools/run_text_generation_server.py", "run_text_generation_server.py serves a model"),
        ("python convert_ckpt_v2.py", "convert_ckpt_v2.py converts weights or data"),
        ("torchrun hf2megads_weight_converter.py --max_steps 1", CONVERTS),
        ("torchrun quantize.py", "quantize.py quantises weights"),
        ("python merge_lora_weights.py", "merge_lora_weights.py merges weights or data"),
        ("paddleformers-cli export", "paddleformers-cli export writes weights out"),
        ("python tools/tokenizer.py", "tokenizer.py prepares data"),
        ("srun python -m smoe.entrypoint.split.llama_split_graph", "llama_split_graph prepares data"),
        ("srun python -m smoe.entrypoint.visualize_load", "visualize_load draws figures"),
        ("python ./preprocess_data.py", "preprocess_data.py prepares data"),
        ("torchrun tasks/main.py --task LAMBADA", "main.py --task LAMBADA evaluates a model"),
        ("torchrun tasks/main.py --task=LAMBADA", "main.py --task LAMBADA evaluates a model"),
        ("torchrun -m tools.convert.generate", "generate generates text"),
        ('torchrun generate_text.py "$@"', "generate_text.py generates text"),
        ("torchrun tasks/msdp/main.py --task MSDP-EVAL-F1", "main.py --task MSDP-EVAL-F1 evaluates a model"),
        ("torchrun pretrain_gpt.py --skip-train", "pretrain_gpt.py --skip-train evaluates a model"),
        (
            "python utils.py --in_f $R/a.json --out_f b.json",
            "utils.py is started alone, and nothing says that it trains",
        ),
    ],
)
def test_programs_that_train_nothing(program: str, does: str, tmp_path: Path) -> None:
    assert passed(f"{program} {FLAGS} --micro-batch-size 1\n", tmp_path) == f":1: starts no training: {does}"
    (found,) = check_files(
        [str(tmp_path / "run.sh")], question_of({"hardware": "h100-sxm-80g"}), Gates(skip_non_recipes=True)
    )
    assert found.outcome == "skipped"


@pytest.mark.parametrize(
    ("start", "does"),
    [
        ("python -u benchmarks/x/inference/main.py --batch_size 1 --out $R/x.json", "main.py generates text"),
        ("python -m x_runner.evaluation.compute_scores --file $R/x.json", "compute_scores evaluates a model"),
        ("python main.py --model $M --max_new_tokens 1024 --path $R/x.json", "main.py generates text"),
    ],
)
def test_programs_known_by_their_folder_or_their_flags(start: str, does: str, tmp_path: Path) -> None:
    assert passed(f"{start}\n", tmp_path) == f":1: starts no training: {does}"


@pytest.mark.parametrize(
    "program",
    [
        *("pretrain_gpt.py", "posttrain_gpt.py", "my_train_and_eval.py", "evaluate_and_sft.py"),
        *("finetune_generation.py", "pretrain_megatron_chatglm.py", "sft_chat.py", "chat_model.py"),
        *("conversation.py", "retrieval.py", "gpt_servers_like.py", "$EVAL.py"),
        *("pretrain_gpt.py --skip-train-iterations 3", "main.py --task LM", "serve.py --train-iters 3"),
        *("infer_more.py --do_train", "next_token_prediction.py", "run_predict.py --max_steps 100"),
        *("merge_lora.py --learning_rate 1e-4", "orpo_merge.py", "self_eval_rl.py", "distill_infer.py"),
        *("finetune/generate/main.py", "inference/train.py", "x.py --max_new_tokens 9 --learning_rate 1e-4"),
        *("examples/ppo/main.py --max_new_tokens 9", "experiments/compare/run.py --lr 1e-4"),
        *("run_ul2_predict.py $MORE", "predict.py --load x $MORE", "evaluate_lm.py --optimizer sgd --max-epoch 3"),
    ],
)
def test_programs_that_train_or_may(program: str, tmp_path: Path) -> None:
    name = program.partition(" ")[0].rpartition("/")[2]
    assert titles(f"torchrun --nproc_per_node 8 {program} {FLAGS} --bf16\n", tmp_path) == [name]


@pytest.mark.parametrize(
    "start",
    ["python main.py recipes=fine-tuning/x/y_sft out=/r", "python3 $X run.py --train_file a.json --learning_rate 1e-4"],
)
def test_programs_whose_words_name_a_training(start: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{start}\n", encoding="utf-8")
    with pytest.raises(UnsupportedError):
        read_recipe(tmp_path / "run.sh")
    passed("python main.py recipes=evaluation/x/y_sft out=/r\n", tmp_path)


def test_training_beside_what_trains_nothing(tmp_path: Path) -> None:
    train, rest = f"torchrun pretrain_gpt.py {FLAGS} --bf16", f"torchrun inference.py {FLAGS}"
    assert titles(f"{rest}\n{train}\npython convert_ckpt.py\n", tmp_path) == ["pretrain_gpt.py"]


def test_programs_of_no_framework_are_named_first(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("python preprocess_data.py\npython my_training.py --epochs 3\n", encoding="utf-8")
    (found,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates(skip_non_recipes=True))
    assert found.outcome == "not_modelled"
    assert "my_training.py" in found.reasons[0]


def test_tasks_that_train_an_encoder(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"torchrun tasks/main.py --task MNLI {FLAGS} --bf16\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert ("not-modelled", "main.py --task MNLI: models with an encoder are not modelled") in [
        (remark.rule, remark.message) for remark in recipe.remarks if remark.severity == "error"
    ]
    file.write_text(f"torchrun pretrain_vision_dino.py {FLAGS} --vocab-size 0\n", encoding="utf-8")
    with pytest.raises(UnsupportedError, match="an encoder"):
        read_recipe(file)
    file.write_text(f"torchrun tasks/main.py --task $TASK {FLAGS} --bf16\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert [unknown.name for unknown in recipe.unknowns if "model" in unknown.affects] == ["TASK"]


@pytest.mark.parametrize(
    ("switches", "does"),
    [
        ("--do_train false --do_eval", "do_train is off"),
        ("--do_ptq true --do_eval", "do_ptq without do_train"),
        ("--do_gptq", "do_gptq without do_train"),
        ("--do_train 0 --do_predict 1", "do_train is off"),
    ],
)
def test_switches_of_trainers(switches: str, does: str, tmp_path: Path) -> None:
    text = f"python -m paddle.distributed.launch run_finetune.py {PADDLE} {switches}\n"
    assert passed(text, tmp_path) == f": starts no training: {does}"
    keys = {name.removeprefix("--"): True for name in switches.split()[:1]} | {
        "tensor_parallel_degree": 2,
        "bf16": True,
    }
    if "do_train" not in keys:
        assert passed(json.dumps(keys), tmp_path, "ptq.json").endswith(f": starts no training: {does}")


@pytest.mark.parametrize(
    "switches", ["--do_train true --do_ptq", "--do_train", "--do_eval", "--do_qat", "--do_train $DO"]
)
def test_switches_of_trainers_that_train(switches: str, tmp_path: Path) -> None:
    text = f"python -m paddle.distributed.launch run_quantization.py {PADDLE} {switches}\n"
    assert titles(text, tmp_path) == ["run_quantization.py"]


@pytest.mark.parametrize("other", ["do_predict: true", "export_dir: out", "n_shot: 5", "infer_backend: vllm"])
def test_what_llamafactory_does_without_training(other: str, tmp_path: Path) -> None:
    text = "model_name_or_path: meta-llama/Llama-2-7b\nstage: sft\nfinetuning_type: lora\ntemplate: llama2\n"
    reason = f": starts no training: {other.partition(':')[0]} without do_train"
    assert passed(f"{text}{other}\n", tmp_path, "x.yaml") == reason
    assert titles(f"{text}do_train: true\n{other}\nbf16: true\n", tmp_path, "x.yaml") == [""]


ARGS = "MODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n  --micro-batch-size: 4\n  --bf16: true\n"
NEMO = "model:\n  tensor_model_parallel_size: 1\n  num_layers: 12\n  hidden_size: 512\n"
OPTIM = "  optim:\n    name: fused_adam\n"
INFERENCE = "inference:\n  tokens_to_generate: 30\n"


@pytest.mark.parametrize(
    ("text", "does"),
    [
        (f"{ARGS}MODE: inference # two runs\n", "MODE is inference"),
        (f"{ARGS}  --bf16: true\nMODE: 'inference'\n", "MODE is inference"),  # a key given twice
        ("run_mode: 'predict'\nbatch_size: 1\noptimizer: {type: AdamW}\n", "run_mode is predict"),
        (f"{ARGS}  --skip-train: true\n", "skip_train is on"),
        (f"{NEMO}{OPTIM}  skip_train: True\n", "skip_train is on"),
        (f"{NEMO}{OPTIM}run:\n  name: ${{conversion_hf2nemo.run.x}}\n", "stage conversion_hf2nemo of the launcher"),
        (f"{NEMO}run:\n  nodes: ${{divide_ceil:${{evaluation.model.x}}, 8}}\n", "stage evaluation of the launcher"),
        (f"{NEMO}{INFERENCE}", "inference without an optimizer"),
        (f"{NEMO}quantization:\n  algorithm: fp8\nexport:\n  save_path: x\n", "quantization without an optimizer"),
        (f"{NEMO}prune:\n  num_layers: 4\nexport:\n  save_path: ???\n", "prune without an optimizer"),
        (f"{NEMO}experiment:\n  task:\n    type: serve\n", "task is serve"),
    ],
)
def test_documents_that_train_nothing(text: str, does: str, tmp_path: Path) -> None:
    assert passed(text, tmp_path, "x.yaml") == f": starts no training: {does}"


@pytest.mark.parametrize(
    "text",
    [
        *(ARGS, f"{ARGS}MODE: pretraining\n", f"{ARGS}  --skip-train: false\n", f"{ARGS}MODE: rl\n  \n"),
        f"{ARGS}MODEL_ARGS_2:\n  --skip-train: true\n",
        f"{ARGS}  --perform-rl-step: true\n  --skip-train: true\n",
        *(f"{NEMO}{OPTIM}{INFERENCE}", f"{NEMO}{OPTIM}", f"{NEMO}quantization:\n  algorithm: fp8\n"),
        f"{NEMO}evaluation:\n  run: 1\nrun:\n  name: ${{evaluation.run}}\n",
        f"{NEMO}run:\n  name: ${{training.run.x}}\n",
        f"{NEMO}run:\n  name: ${{peft.run.x}}\n  from: ${{conversion.run.results_dir}}/x.nemo\n",
    ],
)
def test_documents_that_train(text: str, tmp_path: Path) -> None:
    assert titles(text, tmp_path, "x.yaml") == [""]
