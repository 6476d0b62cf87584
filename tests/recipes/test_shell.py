"""The shell evaluator: every construct, against written results and against the shell itself."""

import shutil
import subprocess

import pytest

from simulator.budget import limited
from simulator.errors import InputError, SimulateError, UndecidedError
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.script import Script, read_script
from simulator.recipes.shell.values import Value
from tests.recipes.shell_cases import CASES, UNKNOWN

BASH = shutil.which("bash")
PRELUDE = (
    "torchrun() { local a; shift; printf '['; for a in \"$@\"; do printf '<%s>' \"$a\"; done; echo ']'; }\n"
    'export -f torchrun; exec() { "$@"; exit; }\n'
)


def read(text: str, **settings: str) -> Script:
    return read_script(text, "x.sh", settings, {})


def words(launch: TrainingCommand) -> list[str]:
    return [value.text for value in launch.arguments]


def only(script: Script) -> TrainingCommand:
    (launch,) = script.launches
    return launch


def shown(script: Script) -> str:
    return "".join("[" + "".join(f"<{word}>" for word in words(launch)) + "]\n" for launch in script.launches)


@pytest.mark.parametrize("name", CASES)
def test_construct(name: str) -> None:
    text, expected = CASES[name]
    if expected is not None:
        assert shown(read(text)) == f"[{expected}]\n"
    if BASH is not None:
        done = subprocess.run(
            [BASH, "--norc", "-c", PRELUDE + text],
            capture_output=True,
            text=True,
            check=False,
            env={"LC_ALL": "C.UTF-8"},
        )
        assert shown(read(text)) == done.stdout


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_depends_on_the_run_is_not_known(text: str) -> None:
    assert not only(read(f"{text}\ntorchrun t.py $V")).arguments[0].known


def test_lines_are_of_the_assignment_or_the_flag() -> None:
    text = 'TP=2\nARGS=" --a \\\n  --b $TP\n --c"\nN=$((TP + 1))\n\ntorchrun t.py $ARGS \\\n --d $N\n'
    found = {value.text: value.line for value in only(read(text)).arguments}
    assert found == {"--a": 2, "--b": 3, "2": 1, "--c": 4, "--d": 8, "3": 5}
    text += 'run="torchrun t.py $ARGS\n --e 9"\neval $run\n'
    found = {value.text: value.line for value in read(text).launches[1].arguments}
    assert found == {"--a": 2, "--b": 3, "2": 1, "--c": 4, "--e": 10, "9": 10}


def causes(value: Value) -> set[str]:
    return {cause.name for cause in value.causes}


def test_what_only_the_run_knows_keeps_its_name() -> None:
    text = "A=$WORLD_SIZE\nB=$2\nC=$(nproc --all)\ntorchrun t.py $A $B $C x$A-1 $((A * 8)) ${12}"
    values = only(read(text)).arguments
    names = ("WORLD_SIZE", "2", "$(nproc --all)", "WORLD_SIZE", "WORLD_SIZE", "12")
    assert [causes(value) for value in values] == [{name} for name in names]
    assert [min(value.causes).line for value in values] == [1, 2, 3, 1, 1, 4]
    given = read(text, WORLD_SIZE="4", **{"2": "x", "$(nproc --all)": "64", "12": "z"})
    assert words(only(given)) == ["4", "x", "64", "x4-1", "32", "z"]
    assert given.unused_settings == ()


def test_a_setting_beats_what_the_script_sets() -> None:
    text = "TP=$1\nNODES=$(cat hosts | wc -l)\nPP=2\nA=$A/b\nB=c\nB+=d\ntorchrun t.py $TP $NODES $PP $A $B"
    script = read(text, TP="8", NODES="4", PP="1", A="a", B="x", CP="2")
    assert words(only(script)) == ["8", "4", "1", "a/b", "xd"]
    assert script.unused_settings == ("CP",)


def test_the_environment_counts_only_when_given() -> None:
    text = "torchrun t.py $N ${M:-1}"
    assert causes(only(read(text)).arguments[0]) == {"N"}
    assert words(only(read_script(text, "x.sh", {}, {"N": "3", "M": "5"}))) == ["3", "5"]
    assert words(only(read_script(text, "x.sh", {"N": "4"}, {"N": "3"}))) == ["4", "1"]


def test_both_branches_of_an_unknown_condition() -> None:
    text = """
if [ $1 = a ]; then X=1; Y=--same; Z="--p 1"; else X=2; Y=--same; fi
torchrun t.py $X $Y $Z
"""
    x, y, z = only(read(text)).arguments
    assert causes(x) == causes(z) == {"1"}
    assert y.known
    assert {one.text for one in x.pieces[0].alternatives} == {"1", "2"}
    assert words(only(read(text, **{"1": "a"}))) == ["1", "--same", "--p", "1"]
    assert words(only(read(text, **{"1": "b"}))) == ["2", "--same"]


def test_a_branch_that_exits_is_not_taken_to_run() -> None:
    script = read(
        'X=1\nif [ -z "$1" ]; then\n echo usage\n exit 1\nfi\nif [ $2 != 0 ]; then X=2; exit 3; fi\ntorchrun t.py $X'
    )
    assert words(only(script)) == ["1"]
    assert {line: {cause.name for cause in found} for line, found in script.exits.items()} == {4: {"1"}, 6: {"2"}}


def test_an_exit_on_every_path() -> None:
    script = read("if [ $1 = a ]; then exit 1; else exit 2; fi\ntorchrun t.py")
    assert script.launches == ()
    assert script.exit_line == 1


def test_what_stands_behind_a_required_variable_is_read_with_it_open() -> None:
    script = read("R=${R:-}\nN=${R:?is missing}\ntorchrun t.py $N 1")
    first, second = only(script).arguments
    assert not first.known
    assert second.text == "1"
    assert [(remark.rule, remark.place and remark.place.line) for remark in script.remarks] == [
        ("required-variable", 2)
    ]
    with pytest.raises(UndecidedError, match="N is not set"):
        read("N=\n: ${N:?is missing}; unset N; echo ${N?}\ntorchrun t.py $N 1")


def test_a_launch_in_an_unknown_branch_is_conditional() -> None:
    script = read("case $1 in a) torchrun t.py 1;; b) torchrun t.py 2;; esac; torchrun t.py 3")
    assert [{cause.name for cause in launch.conditions} for launch in script.launches] == [{"1"}, {"1"}, set()]


def test_variables_of_the_environment_are_read_as_not_set_by_z() -> None:
    script = read('if [ -z ${VP} ]; then o=""; else o="--vp $VP"; fi; torchrun t.py $o ${NN:-3}')
    assert words(only(script)) == ["3"]
    assert set(script.assumed_unset) == {"VP", "NN"}
    assert words(only(read('if [ -z ${VP} ]; then o=""; else o="--vp $VP"; fi; torchrun t.py $o', VP="2"))) == [
        "--vp",
        "2",
    ]


def test_a_text_with_a_known_part_is_not_empty() -> None:
    text = 'P="$(pwd)/model/"; if [ -n $P ]; then o=1; fi; N=$((X*2)); if [ -z ${N} ]; then o=2; fi; torchrun t.py $o'
    assert words(only(read(text))) == ["1"]


def test_loops_over_unknown_words_run_once() -> None:
    text = "N=1; for h in $HOSTS; do N=2; done; while read -r l; do M=1; done < f; torchrun t.py $N ${M:-0}"
    n, m = only(read(text)).arguments
    assert causes(n) == {"HOSTS"}
    assert not m.known


@pytest.mark.parametrize(
    "text",
    [
        "N=1; for h in $HOSTS; do torchrun t.py $N; N=$((N * 2)); done",
        "for ((i = 0; i < $(nproc); i++)); do torchrun t.py $i; done",
        "i=0; while [ $i -lt $ROUNDS ]; do torchrun t.py $i; i=$((i + 1)); done",
        "N=1; for h in $HOSTS; do torchrun t.py $N; [ $N = 3 ] && N=4; [ $N = 2 ] && N=3; N=2; done",
        "export N=1; for h in $HOSTS; do bash -c 'torchrun t.py $N'; N=2; done",
    ],
)
def test_a_launch_stands_for_every_round_of_its_loop(text: str) -> None:
    assert not any(launch.arguments[0].known for launch in read(text).launches[:1])


def test_rounds_that_start_the_same_are_one_launch() -> None:
    launch = only(read("i=0; for h in $HOSTS; do ssh $h torchrun --node_rank $i t.py 1; i=$((i + 1)); done"))
    assert words(launch) == ["1"]
    assert not launch.options["node_rank"].known
    assert len(read("for h in $HOSTS; do [ $N = 1 ] && torchrun t.py $N; torchrun t.py; N=1; done").launches) == 2


@pytest.mark.parametrize(
    "text",
    [
        'for i in 1 2; do [ "$1" = a ] && break; torchrun t.py; done',
        'for i in 1 2; do if [ "$1" = a ]; then continue; fi; torchrun t.py; done',
        'f() { if [ "$1" = a ]; then return; fi; torchrun t.py; }; f $1',
        'g() { torchrun t.py; }; f() { [ "$1" = a ] && return; g; }; f $1',
    ],
)
def test_a_launch_behind_a_condition_that_leaves_is_conditional(text: str) -> None:
    launches = read(text).launches
    assert launches
    assert all({cause.name for cause in launch.conditions} == {"1"} for launch in launches)


def test_what_some_paths_export_may_not_reach_a_command() -> None:
    text = "X=3; Y=4; [ -d . ] && export X Y; export Y; bash -c 'torchrun t.py $X $Y'; torchrun t.py"
    inner, outer = read(text).launches
    assert [value.known for value in inner.arguments] == [False, True]
    assert [outer.environment[name].known for name in ("X", "Y")] == [False, True]


def test_a_script_goes_on_where_only_some_paths_let_failures_end_it() -> None:
    assert words(only(read('[ "$1" = a ] && set -e\nfalse\ntorchrun t.py'))) == []
    assert read("set -e\nfalse\ntorchrun t.py").launches == ()


def test_what_a_trap_runs_is_not_followed() -> None:
    assert words(only(read("trap 'torchrun t.py 2' EXIT; torchrun t.py 1"))) == ["1"]


def test_options_of_the_script_keep_their_defaults() -> None:
    text = "TP=2; while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; esac; done; torchrun t.py $TP"
    script = read(text)
    assert words(only(script)) == ["2"]
    assert set(script.assumed_unset) == {"#"}
    assert words(only(read(text, **{"1": "--tp", "2": "8"}))) == ["8"]


@pytest.mark.parametrize("first", ["a", "--tp 4", "a b"])
def test_options_behind_known_words_are_not_known(first: str) -> None:
    loop = "while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; *) shift;; esac; done"
    text = f"TP=2; set -- {first} $EXTRA; {loop}; torchrun t.py $TP"
    (word,) = only(read(text)).arguments
    assert not word.known
    assert {cause.name for cause in word.causes} == {"EXTRA"}


@pytest.mark.parametrize(
    ("text", "launcher", "script", "options"),
    [
        ("torchrun --nnodes=2 --nproc-per-node 8 --standalone t.py --x", "torch", "t.py", {"nproc_per_node": "8"}),
        ("python3 -m torch.distributed.launch --nproc_per_node=4 t.py --x", "torch", "t.py", {"nproc_per_node": "4"}),
        ("python -u -m torch.distributed.run --nnodes 1:4 -m pkg.train --x", "torch", "pkg.train", {"nnodes": "1:4"}),
        ("srun -N 4 --ntasks-per-node 1 torchrun --nnodes 4 t.py --x", "torch", "t.py", {"nnodes": "4"}),
        ("nohup python -m paddle.distributed.launch --gpus 0,1 t.py --x &", "paddle", "t.py", {"gpus": "0,1"}),
        ("OMP_NUM_THREADS=1 deepspeed --num_gpus 8 t.py --x", "deepspeed", "t.py", {"num_gpus": "8"}),
        ("CUDA_VISIBLE_DEVICES=0 python t.py --x", "python", "t.py", {}),
        ("bash -c 'torchrun t.py --x'", "torch", "t.py", {}),
        ("srun -l --nodes 2 bash -lc 'cd x; torchrun t.py --x'", "torch", "t.py", {}),
        ("run='python -u t.py --x'; srun sh -c \"$run\"", "python", "t.py", {}),
        ("ssh -p 22 host 'cd x && torchrun --nnodes 2 t.py --x' &", "torch", "t.py", {"nnodes": "2"}),
        ("docker run --gpus all img torchrun t.py --x", "torch", "t.py", {}),
        ("docker exec c bash -c 'torchrun t.py --x'", "torch", "t.py", {}),
        ("$PYTHON -m torch.distributed.run --nnodes 2 t.py --x", "torch", "t.py", {"nnodes": "2"}),
    ],
)
def test_launchers(text: str, launcher: str, script: str, options: dict[str, str]) -> None:
    launch = only(read(text))
    assert (launch.launcher, launch.script.text, words(launch)) == (launcher, script, ["--x"])
    assert options.items() <= {name: value.text for name, value in launch.options.items()}.items()


def test_slurm_sets_what_its_header_asks_for() -> None:
    text = """#!/bin/bash
#SBATCH -N 4
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:h100:8
srun bash -c "torchrun --nnodes \\$SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE t.py $SLURM_JOB_NUM_NODES"
"""
    launch = only(read(text))
    assert words(launch) == ["4"]
    assert {name: value.text for name, value in launch.options.items()} == {"nnodes": "4", "nproc_per_node": "8"}
    assert launch.arguments[0].line == 2
    assert words(only(read(text, SLURM_JOB_NUM_NODES="2"))) == ["2"]


def test_how_processes_are_spread() -> None:
    text = "mpirun -np 32 -npernode 8 bash -c 'python t.py'; srun -n16 --ntasks-per-node=4 python t.py; python t.py"
    first, second, third = read(text).launches
    assert {name: value.text for name, value in first.spread.items()} == {
        "starter": "mpirun",
        "tasks": "32",
        "tasks_per_node": "8",
    }
    assert {name: value.text for name, value in second.spread.items()} == {
        "starter": "srun",
        "tasks": "16",
        "tasks_per_node": "4",
    }
    assert third.spread == {}


@pytest.mark.parametrize(
    "text",
    [
        "$(cat file)",
        "$(ls)",
        "$(echo a | tr a b)",
        "$(f() { echo $(f); }; f)",
        "$(echo -e 'a\\nb')",
        "$(printf '%5d' 3)",
        "$(g)",
    ],
)
def test_output_that_only_the_run_knows(text: str) -> None:
    (value,) = only(read(f"g() {{ echo a; nvidia-smi; }}\ntorchrun t.py {text}")).arguments
    assert causes(value) == {text}


def test_output_under_an_unknown_condition() -> None:
    value = only(read("f() { if [ $1 = $N ]; then echo --a; fi; }\ntorchrun t.py $(f 1)")).arguments[0]
    assert causes(value) == {"$(f 1)"}


def test_arithmetic_that_is_not_known_sets_its_variable() -> None:
    values = only(read("a=1; b=1; let a=$N; ((b += $2)); ((c = 2)); torchrun t.py $a $b $c")).arguments
    assert [causes(value) for value in values] == [{"N"}, {"2"}, set()]


def test_a_key_that_is_not_known() -> None:
    values = only(read("declare -A L=([a]=1); A=(x); torchrun t.py ${L[$K]} ${A[8b]} ${HOSTS[1]}")).arguments
    assert [causes(value) for value in values] == [{"K"}, {"A[8b]"}, {"HOSTS"}]
    assert [min(value.causes).line for value in values] == [1, 1, 1]


def test_loops_over_arguments_that_nobody_gave() -> None:
    script = read('TP=2; for a in "$@"; do case $a in --tp=*) TP=${a#*=};; esac; done; torchrun t.py $TP')
    assert words(only(script)) == ["2"]
    assert set(script.assumed_unset) == {"@"}


def test_parameters_that_are_not_known_are_any_number_of_words() -> None:
    launch = only(read('f() { torchrun t.py $# "a$1"; }; f "$@"'))
    assert not any(word.known for word in launch.arguments)


@pytest.mark.parametrize(
    ("call", "settings", "known"),
    [
        ('f "$@"', {}, None),
        ('f "$@"', {"#": "1"}, "1"),
        ('f 4 "$@"', {"#": "0"}, "1"),
        ('f 4 "$@"', {"#": "1"}, "4"),
        ('f "$@"', {"@": "4 8"}, "4"),
    ],
)
def test_the_number_of_words_handed_on_is_counted_or_asked_for(
    call: str, settings: dict[str, str], known: str | None
) -> None:
    text = f"f() {{ if [ $# -ge 2 ]; then TP=$1; else TP=1; fi; torchrun t.py $TP; }}; {call}"
    (value,) = only(read(text, **settings)).arguments
    assert (value.text if value.known else None) == known
    assert value.known or "#" in {cause.name for cause in value.causes}


def test_options_of_branches_make_no_more_of_a_command_that_starts_nothing() -> None:
    flags = "".join(f"case $V{n} in a) F{n}=--nnodes=1;; b) F{n}=--nnodes=2;; esac; " for n in range(6))
    assert not read(f"{flags} bench $F0 $F1 $F2 $F3 $F4 $F5").launches
    launch = only(read(f"{flags} torchrun $F0 t.py"))
    assert {cause.name for cause in launch.open_options} == {"V0"}


def test_rounds_of_loops_within_loops_are_two_each() -> None:
    text = "for a in $A; do X=$((X + 1)); " * 6 + "torchrun t.py $X;" + "done;" * 6
    with limited("x.sh") as budget:
        assert len(read(f"X=0; {text}").launches) == 1
    assert budget.spent < 1_500_000


def test_a_word_of_a_loop_is_one_round() -> None:
    launch = only(read('for x in "$1"; do torchrun t.py a $x; done'))
    assert launch.conditions == frozenset()
    assert [value.known for value in launch.arguments] == [True, False]


def test_a_launch_whose_output_is_taken_counts_once() -> None:
    text = "f() { torchrun t.py $1 >&2; echo 2; }; X=$(f 1); echo $(f 3) > out.txt; torchrun t.py $X"
    assert [words(launch) for launch in read(text).launches] == [["1"], ["3"], ["2"]]


def test_all_arguments_in_one_setting() -> None:
    text = 'torchrun t.py $# "$@" $2'
    assert words(only(read(text, **{"@": "--a 'b c' d"}))) == ["3", "--a", "b c", "d", "b", "c"]
    script = read(text, **{"@": ""})
    assert words(only(script)) == ["0"]
    assert script.unused_settings == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [("torchrun t.py --a \\\n # --b \\\n --c 1", 3), ("torchrun t.py --a \\ \n--c 1", 2), ("torchrun t.py\n\n--c", 3)],
)
def test_a_line_that_begins_with_a_flag_is_told_of(text: str, line: int) -> None:
    (remark,) = read(text).remarks
    assert (remark.rule, remark.severity) == ("broken-line", "warning")
    assert "--c begins a command of its own" in remark.message
    assert remark.place is not None
    assert remark.place.line == line


@pytest.mark.parametrize(
    ("before", "passed"),
    [("A=1 \\\nB=2 \\\n", True), ("A=1 \\\nB=2 \\\n# C=3 \\\n", False), ("A=1 \\\n  # C=3\n", False)],
)
def test_a_comment_ends_the_assignments_before_a_launch(before: str, passed: bool) -> None:
    """bash joins a comment to the line before its backslash, and reads the launch as a command of its own."""
    assert ("A" in only(read(f"{before}torchrun t.py")).environment) is passed


def test_a_script_that_is_not_read_is_told_of() -> None:
    (remark,) = read("x=1\nsource ~/.bashrc\n. /etc/profile.d/modules.sh\n. ./env.sh\ntorchrun t.py").remarks
    assert (remark.rule, remark.severity) == ("not-read", "warning")
    assert "./env.sh is not read" in remark.message
    assert remark.place is not None
    assert remark.place.line == 4


def test_exports_reach_the_launch() -> None:
    text = "export A=1; B=2; export B; C=3; D=4 torchrun t.py; unset A; declare -x E=5; torchrun t.py"
    first, second = ({name: value.text for name, value in launch.environment.items()} for launch in read(text).launches)
    assert first == {"A": "1", "B": "2", "D": "4"}
    assert second == {"B": "2", "E": "5"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\nif [ a = b ]; then\n b=2\n", "x.sh:3: not a shell script that can be read: 'fi' is missing"),
        ("x=$((1 / 0))", "x.sh:1: arithmetic '1 / 0': division by 0"),
        ("a=1\nx=$((2 +* 3))", "x.sh:2: "),
        ("f() { f; }; f", "function f calls itself"),
        ("f() { g; }; g() { f; }; f", "calls itself"),
        ("x='eval $x'; eval $x", "eval within eval"),
        ("for i in " + "a " * 300 + "; do x=1; done", "a loop over more than"),
        ("x=a;" + 'x="$x$x";' * 40, "outgrows"),
        ("a=b; b=a; x=$((a))", "refers to itself"),
        ("a|" * 2_500 + "b", "more than 2000"),
        ("a=( b\n" * 10_000, "too long to parse"),
        pytest.param("#" * 300_000, "bytes of shell text", id="long"),
        ("torchrun t.py \U000f0001", "private-use"),
        ("for a in 1 2 3 4 5 6 7 8; do " * 6 + "x=1;" + "done;" * 6, "steps"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)


HOSTILE = {
    "parentheses": "(" * 100_000,
    "commands": "$(" * 50_000,
    "expansions": "${" * 50_000,
    "arrays": "a=(" * 50_000,
    "groups": "{ " * 50_000,
    "quotes": '"$(' * 30_000,
    "conditions": "if " * 50_000,
    "arithmetic": "$((" * 30_000,
    "backticks": "`" * 60_001,
    "here-documents": "<<A " * 50_000,
    "deep-arithmetic": "$((" + "(" * 500 + "1" + ")" * 500 + "))",
    "deep-commands": "x=" + "$(" * 300 + "a" + ")" * 300,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_nesting_is_refused(name: str) -> None:
    with pytest.raises(SimulateError):
        read(HOSTILE[name])
