"""Configurations that a script writes itself, and keys of NeMo on a command line."""

import posixpath
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe
from simulator.recipes.shell.script import read_script
from tests.recipes.seeds import rules

TRAINER = "--model_name_or_path x/llama-2-7b-hf --per_device_train_batch_size 1 --model_max_length 4096 --bf16"
LAUNCH = f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {TRAINER}\n"
JSON = '{\n  "zero_optimization": {\n    "stage": 2,\n    "offload_optimizer": {"device": "cpu"}\n  }\n}\n'


def read(folder: Path, text: str, **settings: str) -> Recipe:
    file = folder / "run.sh"
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file, settings)
    return recipe


@pytest.mark.parametrize(
    "start",
    [
        "cat > ds.json <<EOF\n",
        "cat >./ds.json <<'EOF'\n",
        "cat <<EOF > ds.json\n",
        "cat <<EOF > ${PWD}/ds.json\n",
        'cat << "EOF" | tee ds.json\n',
        "tee ds.json <<-EOF\n",
        "if [ ! -f ds.json ]; then :; fi; cat > ds.json <<EOF\n",
    ],
)
def test_a_here_document_is_the_file(start: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, f"{start}{JSON}EOF\n{LAUNCH}")
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.layout.zero_stage, recipe.layout.offload) == (
        "deepspeed-shell",
        2,
        "optimizer_tensorwise",
    )
    place = recipe.places["zero_stage"]
    assert place.file.endswith("run.sh")
    assert '"stage": 2' in Path(place.file).read_text(encoding="utf-8").splitlines()[place.line - 1]


def test_a_launch_behind_the_here_document(tmp_path: Path) -> None:
    recipe = read(tmp_path, f"cat > ds.json <<EOF && {LAUNCH.rstrip()}\n{JSON}EOF\n")
    assert recipe.layout is not None
    assert recipe.layout.zero_stage == 2


def test_values_of_the_script_fill_it_in(tmp_path: Path) -> None:
    body = JSON.replace("2,", "$STAGE,").replace("cpu", "${WHERE}")
    text = f"STAGE=3\ncat > ds.json <<EOF\n{body}EOF\nSTAGE=1\n{LAUNCH}"
    recipe = read(tmp_path, text, WHERE="none")
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.layout.offload) == (3, "none")
    waiting = read(tmp_path, text)
    assert waiting.layout is None
    assert [(unknown.name, unknown.place.line) for unknown in waiting.unknowns if unknown.affects] == [("WHERE", 6)]


def test_a_quoted_end_word_keeps_the_text_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run.sh:2: ds.json:3: not valid JSON"):
        read(tmp_path, f"cat > ds.json <<'EOF'\n{JSON.replace('2,', '$STAGE,')}EOF\n{LAUNCH}")


def test_one_of_two_texts_is_not_known(tmp_path: Path) -> None:
    other = JSON.replace("2,", "3,")
    text = (
        f'if [ "$MODE" = a ]; then\ncat > ds.json <<EOF\n{JSON}EOF\nelse\ncat > ds.json <<EOF\n{other}EOF\nfi\n{LAUNCH}'
    )
    assert read(tmp_path, text, MODE="a").layout is not None
    unknowns = read(tmp_path, text).unknowns
    assert [unknown.name for unknown in unknowns if "zero_stage" in unknown.affects] == ["MODE"]


@pytest.mark.parametrize(
    "change",
    [
        "wget -O ds.json http://x/y",
        "jq .x ds.json | sponge ds.json",
        "rm ds.json; git checkout ds.json",
        "/bin/sed -i s/A.B/C/ ds.json",
        "sudo sed -i s/A.B/C/ ds.json",
    ],
)
def test_what_another_command_leaves_in_a_file_is_not_known(change: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, f"cat > ds.json <<EOF\n{JSON}EOF\n{change}\n{LAUNCH}")
    assert "zero_stage" in {name for unknown in recipe.unknowns for name in unknown.affects}


def test_a_flag_that_some_paths_set_anew_is_not_known(tmp_path: Path) -> None:
    text = 'if [ "$MODE" = big ]; then MORE="--per_device_train_batch_size 16"; fi\ncat > ds.json <<EOF\n'
    launch = f"{LAUNCH.rstrip()} $MORE\n"
    affected = {name for unknown in read(tmp_path, f"{text}{JSON}EOF\n{launch}").unknowns for name in unknown.affects}
    assert "mbs" in affected or "micro_batch_size" in affected
    same = f"{text}{JSON}EOF\n{launch}".replace("size 16", "size 1")
    assert read(tmp_path, same).layout is not None


def test_paddle_reads_what_the_script_wrote(tmp_path: Path) -> None:
    text = (
        "cat > sft.yaml <<EOF\nmodel_name_or_path: facebook/llama-13b\ntensor_parallel_degree: 2\n"
        "sequence_parallel: true\nbf16: true\nmax_seq_len: 4096\nEOF\n"
        "python -m paddle.distributed.launch --gpus 0,1,2,3 train.py sft.yaml\n"
    )
    recipe = read(tmp_path, text)
    assert recipe.layout is not None
    assert (recipe.model, recipe.layout.tensor_parallel, recipe.places["tp"].line) == ("llama-13b", 2, 3)


NEMO = (
    "python /opt/NeMo/megatron_gpt_pretraining.py {flags} trainer.num_nodes=$NODES trainer.devices=8 "
    "trainer.precision=bf16 model.micro_batch_size=2 model.global_batch_size=256 model.encoder_seq_length=4096 "
    "model.tensor_model_parallel_size=4 ++model.sequence_parallel=True model.num_layers=32 model.hidden_size=4096 "
    "model.ffn_hidden_size=14336 model.num_attention_heads=32 +model.num_query_groups=8 model.activation=fast-swiglu "
    "model.share_embeddings_and_output_weights=false model.optim.name=distributed_fused_adam "
    "model.tokenizer.vocab_size=128256 'model.data.data_prefix=[1.0,data/x]'\n"
)


def test_keys_of_nemo_on_a_command_line(tmp_path: Path) -> None:
    recipe = read(tmp_path, "NODES=4\n" + NEMO.format(flags=""))
    assert (recipe.framework, recipe.dialect, recipe.nodes, recipe.devices_per_node) == ("megatron", "nemo-shell", 4, 8)
    assert (recipe.seq_length, recipe.global_batch_size, recipe.precision) == (4096, 256, "bf16")
    assert recipe.layout is not None
    layout = recipe.layout
    assert (layout.tensor_parallel, layout.sequence_parallel, layout.micro_batch_size) == (4, True, 2)
    assert layout.zero_stage == 1
    assert recipe.places["tp"].line == 2
    assert recipe.remarks == ()


def test_unknown_nodes_of_nemo(tmp_path: Path) -> None:
    recipe = read(tmp_path, NEMO.format(flags="").replace("=True", "=$SP"))
    affected = {unknown.name: unknown.affects for unknown in recipe.unknowns}
    assert affected == {"NODES": ("nodes",), "SP": ("sequence_parallel",)}
    assert (recipe.nodes, recipe.layout) == (None, None)


def test_the_command_line_replaces_keys_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    base = (
        "trainer:\n  precision: 32\nmodel:\n  tensor_model_parallel_size: 1\n  context_parallel_size: 2\n  fp8: true\n"
    )
    (tmp_path / "conf" / "gpt.yaml").write_text(base, encoding="utf-8")
    flags = "--config-path=conf --config-name gpt ~model.fp8"
    recipe = read(tmp_path, "NODES=2\n" + NEMO.format(flags=flags))
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.context_parallel, recipe.precision) == (4, 2, "bf16")
    assert recipe.places["cp"].file.endswith("gpt.yaml")
    assert recipe.places["cp"].line == 5
    missing = read(tmp_path, "NODES=2\n" + NEMO.format(flags="--config-name other"))
    assert rules(missing) == {"base-configuration"}


TEMPLATE = JSON.replace("2,", "STAGE,").replace("cpu", "WHERE")


@pytest.mark.parametrize(
    "command",
    [
        'sed "s/STAGE/${stage}/" template.json | sed "s/WHERE/cpu/g" > ds.json',
        'cat template.json \\\n  | sed -e "s#STAGE#$stage#" -e s/WHERE/cpu/ \\\n  >| ./ds.json',
        'sed s/STAGE/3/ "$(dirname $0)/template.json" | sed "s/WHERE/cpu/" > ds.json',
        'sed "s/STAGE/$stage/" template.json | sed s/WHERE/cpu/ | tee ds.json > /dev/null',
        "sed 's/STAGE/3/;s/WHERE/cpu/' < template.json > ds.json",
        "sed < template.json > ds.json -E -e 's/STAGE.*/3,/' --expression='s|WHERE|cpu|g; '",
        "sed -e s/STA/X/ -e s/XGE/3/ -e s/WHERE/cpu/ template.json > ds.json",
        "sed s/STAGE/3/ template.json > part; sed s/WHERE/cpu/ part > new.txt; mv new.txt ds.json",
        'cp template.json ds.json; sed -i s/STAGE/$stage/ ds.json; sed -i.old \'s/"WHERE"/"cpu"/\' ds.json',
        "mkdir conf; cp template.json conf/; sed 's/STAGE/3/; s/WHERE/cpu/' conf/template.json | tee new ds.json",
        "sed 's/STAGE/$A/;s/WHERE/${B}/' template.json > x; export A=3; B=cpu envsubst < x > ds.json",
        "cat template.json > x; echo >> x; cat - < x | sed 's/STAGE/3/;s/WHERE/cpu/' > ds.json",
        "sed 's/STAGE/3/;s/WHERE/cpu/' > ds.json <<EOF\n" + TEMPLATE + "EOF",
    ],
)
def test_a_template_is_filled_in(command: str, tmp_path: Path) -> None:
    (tmp_path / "template.json").write_text(TEMPLATE, encoding="utf-8")
    recipe = read(tmp_path, f"stage=3\n{command}\n{LAUNCH}")
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.layout.offload) == (3, "optimizer_tensorwise")
    assert recipe.places["zero_stage"].line <= command.count("\n") + 2


def test_a_script_that_is_written_is_followed(tmp_path: Path) -> None:
    old = LAUNCH.replace("--bf16", "-BF16")
    text = f"cat > train.sh <<EOF\n{old}EOF\nsed -i s/-BF16/--bf16/ train.sh\nbash train.sh\n"
    (tmp_path / "ds.json").write_text(JSON, encoding="utf-8")
    (tmp_path / "train.sh").write_text("python other.py", encoding="utf-8")  # an older one
    recipe = read(tmp_path, text)
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.precision) == (2, "bf16")


def test_a_file_below_the_working_folder_is_the_one_that_is_written(tmp_path: Path) -> None:
    recipe = read(tmp_path, f"cat > ds.json <<EOF\n{JSON}EOF\n{LAUNCH.replace('ds.json', '$PWD/ds.json')}")
    assert recipe.layout is not None
    assert recipe.layout.zero_stage == 2


def test_data_that_a_script_joins_are_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "part.txt").write_text("0123456789\n" * 60_000, encoding="utf-8")
    (tmp_path / "ds.json").write_text(JSON, encoding="utf-8")
    joins = "cat part.txt part.txt > all.txt; cat part.txt > twice.txt; cat part.txt >> twice.txt"
    assert read(tmp_path, f"{joins}\n{LAUNCH}").layout is not None


def test_words_behind_a_redirection_are_read(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(JSON, encoding="utf-8")
    recipe = read(tmp_path, LAUNCH.replace("--deepspeed", "> log --deepspeed"))
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.precision) == (2, "bf16")


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("sed s/STAGE/$STAGE/ template.json | sed s/WHERE/cpu/ > ds.json", "STAGE"),
        ("sed 's/ST[A-Z]*/3/' template.json > ds.json", "ds.json"),
        ("sed -E 's/(STAGE)/3/' template.json > ds.json", "ds.json"),
        ("sed 's/STAGE/3/;/WHERE/d' template.json > ds.json", "ds.json"),
        ("sed -n s/STAGE/3/p template.json > ds.json", "ds.json"),
        ("sed -Ei s/STAGE/3/ ds.json", "ds.json"),
        ("sed -i '' s/STAGE/3/ ds.json", "ds.json"),
        ("perl -pi -e s/2/3/ ds.json", "ds.json"),
        ("cp absent.json ds.json", "absent.json"),
        ("ln -sf template.json ds.json", "ds.json"),
        ("sed 's/STAGE/$A/' template.json > x; A=3; envsubst < x > ds.json", "A"),
        ("jq . template.json > ds.json 2> log", "ds.json"),
        ("sed s/STAGE/3/ template.json >> absent.json; cp absent.json ds.json", "absent.json"),
        ("sed s/STAGE/3/ template.json | jq . > ds.json", "ds.json"),
        ("jq . template.json | tee ds.json", "ds.json"),
        ("sed s/STAGE/3/ absent.json > ds.json", "absent.json"),
        ("sed s/STAGE/3/ ../template.json > ds.json", "../template.json"),
    ],
)
def test_what_is_made_of_a_template_may_be_unknown(command: str, cause: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / "template.json").write_text(TEMPLATE, encoding="utf-8")
    (folder / "ds.json").write_text(JSON, encoding="utf-8")  # an older one, which the script replaces
    recipe = read(folder, f"{command}\n{LAUNCH}")
    assert [unknown.name for unknown in recipe.unknowns if "zero_stage" in unknown.affects] == [cause]


DISK = {"conf.sh": "HID=1\n", "sub/conf.sh": "HID=2\n"}


@pytest.mark.parametrize(
    ("script", "hidden"),
    [
        ('if [ "$X" = 1 ]; then echo HID=8 > conf.sh; fi', "?"),
        ('if [ "$X" = 1 ]; then echo HID=8 > conf.sh; else echo HID=4 > conf.sh; fi', "?"),
        ('if [ "$X" = 1 ]; then echo HID=8 > conf.sh; else echo HID=8 > conf.sh; fi', "8"),
        ('[ "$X" = 1 ] && rm conf.sh', "?"),
        ("case $X in a) echo HID=8 > conf.sh;; esac", "?"),
        ("for f in $X; do echo HID=8 > conf.sh; done", "?"),
        ("echo HID=8 >> conf.sh", "8"),
        ("echo OTHER=8 >> conf.sh", "1"),
        ("rm conf.sh; echo HID=8 >> conf.sh", "8"),
        ("echo OTHER=8 | tee -a conf.sh > /dev/null", "1"),
        ("echo HID=8 | sed s/8/9/ >> conf.sh", "9"),
        ("echo HID=4 > conf.sh; (cd sub; echo HID=8 > conf.sh)", "4"),
        ("echo HID=4 > conf.sh; cd sub; echo HID=8 > conf.sh; cd ..", "4"),
        ("cd sub; echo HID=8 > conf.sh", "8"),
        ("cd sub", "2"),
        ("cd sub && echo HID=8 > conf.sh && cd -", "1"),
        ("pushd sub; echo HID=8 > conf.sh; popd", "1"),
        ("cd sub; echo HID=8 > ../conf.sh; cd ..", "8"),
        ("echo HID=8 > sub/conf.sh; cd sub", "8"),
        ("ROOT=$PWD; cd sub; echo HID=8 > $ROOT/conf.sh; cd ..", "8"),
        ("ROOT=$(pwd); cd sub; echo HID=8 > conf.sh; cd $ROOT", "1"),
        ("cd sub; HERE=$(pwd); cd ..; echo HID=8 > $HERE/conf.sh; cd sub", "8"),
        ("cd sub; HERE=$PWD; cd ..; echo HID=8 > $HERE/conf.sh", "1"),
        ("cd $X", "1"),
        ("cd $X; echo HID=8 > conf.sh", "8"),
        ("echo HID=8 > conf.sh; cd $X", "?"),
        ("echo HID=8 > $X/conf.sh", "?"),
        ("echo HID=8 > $X/conf.sh; cd $X", "8"),
        ("mkdir -p out && cat > out/conf.sh <<E\nHID=8\nE\ncd out", "8"),
        ("cd sub && cat > conf.sh <<E\nHID=8\nE\n", "8"),
        ('if [ "$X" = 1 ]; then cd sub; fi; echo HID=8 > conf.sh', "8"),
        ('if [ "$X" = 1 ]; then cd sub; fi; echo HID=8 > conf.sh; cd $Y', "?"),
        ("w() { cd sub; echo HID=8 > conf.sh; }; (w)", "1"),
        ("> conf.sh", ""),
        (": > conf.sh", ""),
        ("true > conf.sh", ""),
        ("2> conf.sh", ""),
        (": 2> conf.sh", ""),
        (": &> conf.sh", ""),
        (": >& conf.sh", ""),
        ("python gen.py 2> conf.sh", "?"),
        ("echo a 2>&1", "1"),
        ("echo HID=8 > conf.sh 2>&1", "8"),
        ("echo x > conf.sh; > conf.sh; echo HID=8 >> conf.sh", "8"),
        ("sed s/1/8/ conf.sh > conf.sh", ""),
        ("cat conf.sh | sed s/1/8/ > conf.sh", "?"),
        ("sed s/1/8/ < conf.sh > conf.sh", ""),
        ("cp -n sub/conf.sh conf.sh", "1"),
        ("cp -n sub/conf.sh new.sh; cp new.sh conf.sh", "2"),
        ("cp -t . sub/conf.sh", "2"),
        ("cp --target-directory=. sub/conf.sh", "2"),
        ("install -m 644 sub/conf.sh conf.sh", "2"),
        ("cp -r sub/. .", "?"),
        ("cp -r sub/* .", "?"),
        ("cp sub/* .", "?"),
        ("cp sub/{conf.sh,other.sh} .", "2"),
        ("cp sub/conf.sh{,.bak}; cp sub/conf.sh.bak conf.sh", "2"),
        ("cp -rf sub/conf.sh conf.sh", "2"),
        ("cp -u sub/conf.sh conf.sh", "?"),
        ("ln -sf sub/conf.sh conf.sh", "?"),
        ("rm -rf sub; cd sub", "?"),
        ("rm conf.sh", "?"),
        ("rm -f *.sh", "?"),
        ("rm -f *.log", "1"),
        ("mv sub d; cd d", "?"),
        ("mv sub d; cd sub", "?"),
        ("mv sub/conf.sh conf.sh", "2"),
        ("mv sub/conf.sh conf.sh; cp sub/conf.sh conf.sh", "?"),
        ("mv conf.sh a.sh; cp a.sh conf.sh", "1"),
        ("rsync -a sub/ .", "?"),
        ("cp conf.sh $OUT/", "1"),
        ("cp -r sub $OUT", "1"),
        ("cp $SRC/conf.sh .", "?"),
        ("find . -name '*.sh' -exec sed -i s/1/8/ {} \\;", "?"),
        ("find . -name '*.py' -exec sed -i s/1/8/ {} \\;", "1"),
        ("find sub -name '*.sh' -exec sed -i s/1/8/ {} +", "1"),
        ("grep -rl 1 . | xargs sed -i s/1/8/", "?"),
        ("sed -i s/1/8/ *.sh", "?"),
        ("sed -i s/1/8/ sub/*.sh", "1"),
        ("for f in *.sh; do sed -i s/1/8/ $f; done", "?"),
        ("for f in conf.sh sub/conf.sh; do sed -i s/1/8/ $f; done", "8"),
        ("for f in $(ls *.sh); do sed -i s/1/8/ $f; done", "?"),
        ("python - <<E\nopen('conf.sh', 'w').write('HID=8')\nE\n", "?"),
        ("python - <<E\nprint(open('conf.sh').read())\nE\n", "1"),
        ("python - conf.sh <<E\nimport sys; open(sys.argv[1], 'w').write('HID=8')\nE\n", "?"),
        ("python -c \"open('conf.sh', 'w').write('HID=8')\"", "?"),
        ("python -c \"import json; print(json.load(open('conf.sh')))\"", "1"),
        ("python make.py --output conf.sh", "?"),
        ("python make.py --output=conf.sh", "?"),
        ("python make.py -o conf.sh", "?"),
        ("python make_conf.py conf.sh", "?"),
        ("python tool.py --config conf.sh", "1"),
        ("python update.py --config conf.sh --output other.sh", "1"),
        ("jq .a conf.sh > t && mv t conf.sh", "?"),
        ("echo HID=8 > t && mv t conf.sh", "8"),
        ("yq -i .a=1 conf.sh", "?"),
        ("curl -o conf.sh http://x/y", "?"),
        ("wget http://x/conf.sh", "?"),
        ("git checkout conf.sh", "?"),
        ("echo HID=8 > conf.sh; git checkout conf.sh", "?"),
        ("tee conf.sh <<< HID=8", "8"),
        ("tee conf.sh <<< HID=8 > /dev/null", "8"),
        ("echo 'echo HID=8 > conf.sh' > w.sh; bash w.sh", "8"),
        ("X=$(echo HID=8 > conf.sh; echo 1)", "8"),
        ("w() { echo HID=8 > conf.sh; echo conf.sh; }; F=$(w)", "8"),
        ("HID=8 . ./other.sh", "1"),
        ("echo HID=8 > ~/conf.sh", "?"),
        ("echo HID=8 > ~/new.sh; cp $HOME/new.sh conf.sh", "8"),
        ("echo HID=8 > ${HOME}/new.sh; . ~/new.sh; echo HID=$HID > conf.sh", "8"),
        ("sed -n 'w conf.sh' sub/conf.sh", "?"),
        ("sed -n -e 's/1/8/w conf.sh' sub/conf.sh", "?"),
        ("sed -n 's/1/8/w other.txt' sub/conf.sh", "1"),
        ("echo HID=8 > $F", "?"),
        ("echo HID=8 | tee -a $F", "?"),
        ("echo HID=8 > conf.sh; cat sub/conf.sh > $F", "?"),
        ("echo HID=8 > $F; echo HID=4 > conf.sh", "4"),
        ("F=conf.sh; [ -d . ] && F=other.sh; echo HID=8 > $F", "?"),
        ("python run.py > $LOG_FILE; python run.py | tee $LOGS/$NAME", "1"),
        ("git checkout main", "?"),
        ("git -C sub checkout main", "1"),
        ("git -C sub pull; cd sub", "?"),
        ("git checkout -b new; git status; git log", "1"),
        ("git clone https://host.example/sub.git; cd sub", "?"),
        ("git clone https://host.example/sub.git other; cd sub", "2"),
        ("tar xzf files.tgz", "?"),
        ("tar -xf files.tgz -C sub", "1"),
        ("tar -C sub -xf files.tgz; cd sub", "?"),
        ("tar czf files.tgz sub", "1"),
        ("unzip -q files.zip", "?"),
        ("unzip -d sub files.zip; unzip -l files.zip", "1"),
        ("wget $URL", "?"),
        ("wget -P sub http://x/conf.sh", "1"),
        ("wget -P sub http://x/conf.sh; cd sub", "?"),
        ("wget -O other http://x/conf.sh", "1"),
        ("curl -LO 'http://x/conf.sh?version=2'", "?"),
        ("curl -s http://x/conf.sh", "1"),
        ("cd $(dirname $(realpath $0))/sub", "2"),
        ('P=$(readlink -f "$0"); cd ${P%/*}/sub', "2"),
        ("echo HID=8 > $(dirname $(realpath $0))/conf.sh", "?"),
        ("rsync -tv sub/conf.sh v/; cd v", "?"),
    ],
)
def test_a_file_is_as_the_script_left_it(script: str, hidden: str) -> None:
    """`?` is a text that only the run knows; the others are what bash passes."""
    text = f'{script}\nHID=\nsource ./conf.sh\ntorchrun pretrain_gpt.py --hidden-size "$HID"\n'
    launches = read_script(text, "run.sh", {}, {}, lambda name, _: DISK.get(posixpath.normpath(name))).launches
    (size,) = (launch.arguments[1] for launch in launches if launch.script.text == "pretrain_gpt.py")
    assert (size.text if size.known else "?") == hidden
