"""What starts a training reaches an answer, whatever decides its text: branches, unknown words, other files."""

from pathlib import Path

import pytest

from simulator.errors import NoRecipeError, SimulateError, UndecidedError, UnsupportedError
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.script import read_script
from tests.recipes.test_megatron import BASE

FLAGS = " ".join(f"{BASE} --bf16".split())
TRAIN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS}"


def recipes(folder: Path, text: str, **settings: str) -> tuple[Recipe, ...]:
    file = folder / "train.sh"
    file.write_text(text, encoding="utf-8")
    return read_recipe(file, settings)


def open_names(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """What is not known and decides something that is priced, and what it decides."""
    open_ones = {one.name: tuple(name for name in one.affects if name != "launch") for one in recipe.unknowns}
    return {name: affects for name, affects in open_ones.items() if affects}


@pytest.mark.parametrize(
    "text",
    [
        f'c="{TRAIN}"\nif [ ! -z "$(date)" ]; then c="nsys profile -s none $c"; fi\neval $c',
        f'c="{TRAIN}"\ncase $(hostname) in a*) c="numactl -l $c";; esac\n$c',
        (
            f'L="torchrun --nproc_per_node 8"\n[ -f /x ] && L="python -m torch.distributed.launch --nproc_per_node 8"\n'
            f"$L pretrain_gpt.py {FLAGS}"
        ),
        f'L=(torchrun)\nif [ -f /x ]; then L=(uv run --extra megatron torchrun); fi\n"${{L[@]}}" {TRAIN[9:]}',
        f'c="{TRAIN}"\nif [ -f /x ]; then c="srun $c"; fi\nbash -c "$c"',
    ],
)
def test_a_branch_whose_paths_start_the_same_is_one_launch(text: str, tmp_path: Path) -> None:
    (recipe,) = recipes(tmp_path, text)
    assert (recipe.title, recipe.nodes, recipe.devices_per_node, open_names(recipe)) == ("pretrain_gpt.py", 1, 8, {})


def test_each_path_that_starts_something_else_is_a_launch(tmp_path: Path) -> None:
    other = TRAIN.replace("node 8", "node 4")
    text = f'case $(hostname) in a*) c="{TRAIN}";; *) c="{other}";; esac\n$c'
    assert [recipe.devices_per_node for recipe in recipes(tmp_path, text)] == [8, 4]


@pytest.mark.parametrize("start", ["$BIND $RANK python3", "$BIND", "$BIND python -u", '"$BIND" python3'])
def test_words_in_front_that_are_not_known_may_start_it_on_any_machines(start: str, tmp_path: Path) -> None:
    text = f"{start} pretrain_gpt.py {FLAGS}"
    (recipe,) = recipes(tmp_path, text)
    assert open_names(recipe)["BIND"] == ("devices_per_node", "nodes")
    text = text.replace('"', "")  # a word in quotes is a program, not several words
    (recipe,) = recipes(tmp_path, text, BIND="mpirun -np 8 --npernode 8", RANK="")
    assert (open_names(recipe), recipe.nodes, recipe.devices_per_node) == ({}, 1, 8)
    (recipe,) = recipes(tmp_path, f"$PROFILER {TRAIN}")
    assert (open_names(recipe), recipe.nodes, recipe.devices_per_node) == ({}, 1, 8)


def test_options_of_a_launcher_that_are_not_known_may_name_any_machines(tmp_path: Path) -> None:
    (recipe,) = recipes(tmp_path, f"torchrun $DIST pretrain_gpt.py {FLAGS}")
    assert open_names(recipe) == {"DIST": ("devices_per_node", "nodes")}
    (recipe,) = recipes(tmp_path, f"torchrun --nnodes 2 --nproc_per_node 4 $RDZV pretrain_gpt.py {FLAGS}")
    assert (open_names(recipe), recipe.nodes, recipe.devices_per_node) == ({}, 2, 4)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"if [ $# -lt 9 ]; then exit 1; fi; run() {{\n{TRAIN}\n}}\n$MODE", 2, "is not followed"),
        (f"exit 0\n{TRAIN}", 1, "the script ends here"),
        ("bash pretrain_llama.sh 8", 1, "starts a script that is not at hand; pretrain_llama.sh"),
        ("echo a\nsbatch --nodes 4 train.slurm", 2, "train.slurm is to be judged by itself"),
        ("cluster run --gpus 8 -- bash -c 'jobs/a7.sh $RANK'", 1, "starts a script that is not at hand; a7.sh"),
        ("srun --gpus-per-node=4 bash jobs/a7.sh", 1, "starts a script that is not at hand; a7.sh"),
        ("ARGS=(--num-layers 8\n --micro-batch-size 1)", 0, "a part of a training"),
        ('OPTIONS="--micro_batch_size 2 --lr 1"', 0, "a part of a training"),
        (
            "python - <<EOF\nfrom transformers import Trainer\nTrainer(model).train()\nEOF",
            3,
            "within the script trains",
        ),
        ("python -c 'from megatron.training import pretrain; pretrain(a, b)'", 1, "within the script trains"),
        ("llm-finetune job.yaml", 1, "is not followed"),
        ("f() {\n  fairseq-train $DATA --arch x --lr 1\n}", 2, "is not followed"),
        ("CUDA_VISIBLE_DEVICES=0 fairseq-hydra-train task.data=x", 1, "is not followed"),
        ("#SBATCH --gres=gpu:8\nsrun /data/dense_8gpu.sh 20000", 2, "that is not at hand; dense_8gpu.sh"),
        ("echo later\nexit 1\ncolossalai run --nproc_per_node 8 benchmark.py -c 7b", 2, "the script ends here"),
        ("START='nemo llm pretrain -y' bash x.sh", 1, "is not followed"),
        ('for size in "$@"; do\n  sbatch train_$size.sh\ndone', 2, "train_.*is to be judged by itself"),
    ],
)
def test_what_may_train_is_never_passed_over(text: str, line: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(UndecidedError, match=said) as caught:
        recipes(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'train.sh'}:{line}:" if line else str(tmp_path / "train.sh"))


@pytest.mark.parametrize(
    "text",
    [
        "python setup.py install\ncoverage report",
        "while true; do sleep 5; nvidia-smi; done",
        "echo torchrun pretrain.py\n# accelerate launch train.py",
        "pip install deepspeed\nps aux | grep pretrain_gpt.py",
        'exec "$@"',
        'for name in "$@"; do\n  bash download.sh $name\ndone',
        'C="python main.py --tasks a"\nif [[ -n $5 ]]; then C=""; fi\n$C',
        "llm-finetune eval job.yaml",
        "python tools/upload.py --repo x",
        "cluster run --gpus 0 -- bash -c 'jobs/a7.sh'",
        "cluster run --gpus 8 -- bash -c 'jobs/convert_a7.sh'",
        "# cluster run --gpus 8\nbash jobs/a7.sh",
        "cat train.sh",
        "python - <<EOF\ntokenizer.train(files, BpeTrainer(vocab_size=8))\nEOF",
    ],
)
def test_what_is_plainly_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(NoRecipeError):
        recipes(tmp_path, text)


def test_a_watch_loop_starts_what_its_rounds_start(tmp_path: Path) -> None:
    (recipe,) = recipes(tmp_path, f"while true; do\n{TRAIN} && break\nsleep 5\ndone")
    assert recipe.title == "pretrain_gpt.py"


@pytest.mark.parametrize(
    "guard",
    [
        'if [ -z "$IMAGE" ]; then echo usage; exit 1; fi',
        '[ -z "$IMAGE" ] && exit 1',
        '[[ -n "$IMAGE" ]] || { echo usage; exit 1; }',
        'if [[ -z "${IMAGE:-}" || -z "${DATA:-}" ]]; then exit 1; fi',
        ': "${IMAGE:?is missing}"',
    ],
)
def test_variables_without_which_a_script_ends_are_taken_as_set(guard: str, tmp_path: Path) -> None:
    (recipe,) = recipes(tmp_path, f"{guard}\n{TRAIN} --save $IMAGE")
    assert open_names(recipe) == {}
    (recipe,) = recipes(tmp_path, f"{guard}\n{TRAIN.replace('node 8', 'node $IMAGE')}")
    assert open_names(recipe) == {"IMAGE": ("devices_per_node",)}


# Files that a script reads or starts.


def test_a_file_that_is_read_counts_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "env.sh").write_text("MBS=4\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n")
    flags = FLAGS.replace("--micro-batch-size 2", "--micro-batch-size $MBS")
    for name in ("conf/env.sh", '"$(dirname "$0")/conf/env.sh"', '"$HERE/conf/env.sh"'):
        text = 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nMBS=1\n'
        text += f"source {name}\ntorchrun --nproc_per_node 8 pretrain_gpt.py {flags}"
        (recipe,) = recipes(tmp_path, text)
        assert recipe.layout is not None
        assert recipe.layout.micro_batch_size == 4
        assert recipe.options["expandable_segments"] == "true"
        # A value of the file stands, for the answer, on the line that reads it.
        assert recipe.places["micro_batch_size"].line == 3


def test_a_file_that_is_not_at_hand_may_set_what_nothing_else_does(tmp_path: Path) -> None:
    flags = FLAGS.replace("--micro-batch-size 2", "--micro-batch-size ${MBS:-1}")
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags}"
    (recipe,) = recipes(tmp_path, text)
    assert open_names(recipe) == {}
    for name in ("env.sh", "../outside.sh", "$ELSEWHERE/env.sh"):
        (tmp_path.parent / "outside.sh").write_text("MBS=4\n")
        (recipe,) = recipes(tmp_path, f"source {name}\n{text}")
        assert open_names(recipe) == {"MBS": ("micro_batch_size",)}
        assert "not-read" in {remark.rule for remark in recipe.remarks}
    (recipe,) = recipes(tmp_path, f"source ~/.bashrc\nsource venv/bin/activate\n{text}")
    assert open_names(recipe) == {}


def test_a_script_that_is_started_is_followed_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text(
        f"PP=$1\ntorchrun --nproc_per_node $GPUS pretrain_gpt.py {FLAGS} --seed $HIDDEN "
        "--pipeline-model-parallel-size $PP\n"
    )
    (recipe,) = recipes(tmp_path, "export GPUS=4; HIDDEN=1\nsrun --nodes 2 bash inner.sh 2")
    assert recipe.devices_per_node == 4
    # What is not exported stays behind.
    assert next(flag.text for flag in recipe.flags if flag.name == "seed") == ""
    (recipe,) = recipes(tmp_path, "export GPUS=4\nbash inner.sh $SIZE")
    assert recipe.devices_per_node == 4
    assert [unknown.name for unknown in recipe.unknowns if "pp" in unknown.affects] == ["SIZE"]
    for words, name in (('"$@"', "1"), ("$@", "1"), ("2", None)):
        (recipe,) = recipes(tmp_path, f"export GPUS=4\nbash inner.sh {words}")
        assert [unknown.name for unknown in recipe.unknowns if "pp" in unknown.affects] == [name] * bool(name)


@pytest.mark.parametrize("text", ["cd inner && bash train.sh", "cd $(dirname $0)/inner; source train.sh"])
def test_a_script_begins_where_cd_leads(text: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "train.sh").write_text(f"cd ..\nbash other.sh\n{TRAIN}\n")
    (tmp_path / "other.sh").write_text("ls\n")
    (recipe,) = recipes(tmp_path, text)
    assert recipe.devices_per_node == 8


def test_files_that_read_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("source b.sh\n")
    (tmp_path / "b.sh").write_text("source a.sh\n")
    with pytest.raises(SimulateError, match="read each other too deep"):
        recipes(tmp_path, "source a.sh\n")


@pytest.mark.parametrize("words", ["", " now", " $((${1:-0} + 1))", " $1"])
def test_a_job_that_submits_itself_again_ends(words: str, tmp_path: Path) -> None:
    found = recipes(tmp_path, f"sbatch --begin=now+1hour train.sh{words}\n{TRAIN}\n")
    assert {recipe.devices_per_node for recipe in found} == {8}
    (tmp_path / "clean.slurm").write_text(f"sbatch --begin=now+6hour clean.slurm{words}\npython clean.py\n")
    with pytest.raises(NoRecipeError):
        read_recipe(tmp_path / "clean.slurm")


@pytest.mark.parametrize("start", ["conda run -n torch", "uv run", "uv run --with x", "mamba run -p /env"])
def test_a_program_that_enters_an_environment_starts_what_follows(start: str, tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text(f"{TRAIN}\n")
    (recipe,) = recipes(tmp_path, f"{start} bash inner.sh")
    assert recipe.devices_per_node == 8
    (recipe,) = recipes(tmp_path, f"{start} {TRAIN}")
    assert recipe.devices_per_node == 8


# Bash that the grammar does not know.


def launch(text: str) -> TrainingCommand:
    (found,) = read_script(f"{text}\ntorchrun t.py $V", "x.sh", {}, {}).launches
    return found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("X=08; V=$((3 - 1 + 10#$X))", "10"),
        ("X=010; V=$((10#${X}+1))", "11"),
        ("for t in a b; do if [ $t = b ]; then V=$t\nfi done", "b"),
        ('L=2; V=1; W="${K:$L+1}"', "1"),
        ("V=1; W=${B:-$((( 16 / 1 / 8 + 15 ) / 16 ))}", "1"),
        ("V=1; W=${C:-['npu','cpu']}", "1"),
        ('V=1; W="${G:-{\\"a\\":{\\"b\\":false}}}"', "1"),
    ],
)
def test_bash_that_the_grammar_does_not_know(text: str, value: str) -> None:
    assert [word.text for word in launch(text).arguments] == [value]


@pytest.mark.parametrize("text", ['K=abc; L=1; V="${K:$L+1}"', "V=${B:-$(((1 + 2) * 2))}", "V=${C:-['npu','cpu']}"])
def test_an_expansion_that_the_grammar_does_not_know_is_asked_for(text: str) -> None:
    (word,) = launch(text).arguments
    (cause,) = word.causes
    (told,) = read_script(f"{text}\ntorchrun t.py $V", "x.sh", {cause.name: "7"}, {}).launches
    assert [word.text for word in told.arguments] == ["7"]


# Configuration files.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "policy: {model_name: x, megatron_cfg: {tensor_model_parallel_size: 2}}\ngrpo: {max_num_steps: 2}\n",
            "NeMo-RL",
        ),
        ("trainer:\n  num_train_steps: 3\ndata: !include d.yaml\n", "levanter"),
        ("_target_: verl.workers.config.ActorConfig\nppo_epochs: 1\n", "verl"),
        ("trainer: {num_nodes: 1}\ntraining_config: {actor_rollout_ref: {actor: {ppo_epochs: 1}}}\n", "verl"),
        ("trainer: {nnodes: 1, n_gpus_per_node: 8}\nmodel: {path: x}\ndata: {batch_size: 4}\n", "verl"),
    ],
)
def test_files_of_trainers_that_are_known_are_refused_by_name(text: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedError, match=f"a file of {name}[^,]*, which is not read"):
        read_recipe(file)


@pytest.mark.parametrize(
    "text",
    [
        "batch_size: 4\nlearning_rate: 1.0e-4\n",
        "train: {micro_batch_size: 4}\noptim: {name: adam}\n",
        "model: gpt\ndata: {global_batch_size: 4}\n",
        "run: |\n  cd x\n  torchrun train.py --lr 1\n",
        "model_name_or_path: x\ndataset_name: y\nlearning_rate: 1.0e-4\n",
        "defaults:\n  - optimizer: adamw\n  - model: llama\n",
        "train_micro_batch_size: 8\nnum_episode: 2\nreference: {generation_batch_size: 4}\n",
        "optimization: {lr: [1.0e-5], max_update: 9}\noptimizer: {_name: adam}\ndataset: {max_tokens: 3}\n",
        "tasks: {mnli: {seeds: [1]}}\nmodel: {name: hf_bert}\nscheduler: {t_warmup: 0.06dur}\n",
        "base: {rollout: {batch_size: 4}, sft_config: {model_name: x, quantization: false, batch_size: 1}}\n",
        "trainer: {num_nodes: 1}\nactor: {log_prob_micro_batch_size_per_gpu: 4}\n",
        "train_iters: 90\nscheduler: {lr_decay_style: cosine}\n",
        "data: {train_batch_size: 64, seed: 1}\n",
        "training_config: {training_args: {log_gpu_memory: false}}\nmodel: {model_name_or_path: x}\n",
        "train_settings: {max_steps_per_run: 50, micro_batch_sizes: auto, seq_length: 512}\n",
        "args:\n  - run_clm.py\n  - --per_device_train_batch_size=4\n",
        "# @package _global_\ndefaults:\n  - /experiment/pile/base.yaml\n  - override /optimizer: adam\ndata: {x: 1}\n",
        "trainer: {callbacks: !!python/tuple [a, b]}\nlearning_rate: 1.0e-4\nbatch_size: 4\n",
    ],
)
def test_what_trains_in_no_framework_that_is_known_is_not_passed_over(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedError):
        read_recipe(file)


@pytest.mark.parametrize(
    "text",
    [
        "tasks: [mmlu]\nbatch_size: 4\nmodel: {name: x}\n",
        "max_num_batched_tokens: 4\nmodel: x\n",
        "train_batch_size: 4\nzero_optimization: {stage: 2}\noptimizer: {type: Adam}\n",
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n",
        '{"text": "a"}\n{"text": "b"}\n',
        '{"snr": Infinity, "score": NaN}\n',
        "tasks: [mmlu]\nbatch_size: 4\nmax_steps: 3\n",
        "train_micro_batch_size_per_gpu: 4\nfp16: {enabled: true}\noptimizer: {type: Adam, params: {lr: 1}}\n",
        "# @package _global_\ndefaults:\n  - override /logger: csv\n",
        "zero_optimization: {stage: 3}\nfp16: {fp16_opt_level: O2}\ngradient_accumulation_steps: auto\n",
        '{"config": {"lr": 1.0e-4, "batch_size": 4}, "train_loss": 2.5, "num_trainable_params": 31}',
        '{"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 2}',
        "generation: {max_new_tokens: 4}\nbatch_size: 4\nmodel: x\n",
        '{"compilerOptions": {"strict": true,},}',
        "Parameters:\n  Name: !Sub a-${B}\n  Parts: !Join [a, b]\n",
        "words: !!set {a, b}\nkeep: 4\n",
        "a: {$.b}/c\nd: {e\n",
    ],
)
def test_what_trains_nothing_is_passed_over(text: str, tmp_path: Path) -> None:
    file = tmp_path / ("x.json" if text.startswith("{") else "x.yaml")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(NoRecipeError):
        read_recipe(file)


# Other networks.


@pytest.mark.parametrize(
    ("start", "flags", "shown"),
    [
        ("torchrun --nproc_per_node 8 train_rwkv.py", "", "train_rwkv.py"),
        ("torchrun --nproc_per_node 8 pretrain_zoology.py", "", "pretrain_zoology.py"),
        ("torchrun --nproc_per_node 8 pretrain_gpt.py", "--tokenizer-model google/recurrentgemma-2b", "recurrentgemma"),
    ],
)
def test_another_network_is_no_plain_decoder(start: str, flags: str, shown: str, tmp_path: Path) -> None:
    (recipe,) = recipes(tmp_path, f"{start} {FLAGS} {flags}")
    (remark,) = [remark for remark in recipe.remarks if remark.rule == "not-modelled" and remark.severity == "error"]
    assert shown in remark.message


@pytest.mark.parametrize(
    "program", ["pretrain_gpt.py", "finetune_mcore_llama_withGA.py", "train.py", "posttrain_qwen3_moe.py"]
)
def test_programs_that_build_what_their_flags_say(program: str, tmp_path: Path) -> None:
    (recipe,) = recipes(tmp_path, f"torchrun --nproc_per_node 8 {program} {FLAGS}")
    assert "not-modelled" not in {remark.rule for remark in recipe.remarks}


EXPERIMENT = """
defaults: [{{train: {named}}}]
experiment:
  task: {{type: train, backend: megatron, entrypoint: {program}}}
  runner: {{nnodes: 2, nproc_per_node: 4}}
"""
FRAGMENT = """
system: {tensor_model_parallel_size: 2, precision: {bf16: true}}
model: {num_layers: 8, hidden_size: 512, num_attention_heads: 8, seq_length: 128, max_position_embeddings: 128,
  micro_batch_size: 1, global_batch_size: 16, make_vocab_size_divisible_by: 128}
"""


def test_a_fragment_is_read_with_the_experiment_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "train"
    folder.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (folder / "7b.yaml").write_text(FRAGMENT)
    (folder / "1b.yaml").write_text(FRAGMENT)
    experiment = tmp_path / "conf" / "train.yaml"
    experiment.write_text(EXPERIMENT.format(named="7b", program="train_gpt.py"))
    (named,) = read_recipe(folder / "7b.yaml")
    assert (named.nodes, named.devices_per_node) == (2, 4)
    (other,) = read_recipe(folder / "1b.yaml")
    assert (other.nodes, other.devices_per_node) == (None, None)
    experiment.write_text(EXPERIMENT.format(named="7b", program="train_rwkv.py"))
    for name in ("7b", "1b"):
        (found,) = read_recipe(folder / f"{name}.yaml")
        assert any("train_rwkv.py" in remark.message for remark in found.remarks)
