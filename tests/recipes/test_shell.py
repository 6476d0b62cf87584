"""The shell evaluator: every construct, against written results and against the shell itself."""

import shutil
import subprocess

import pytest

from simulator.errors import InputError, SimulateError
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.script import Script, read_script
from simulator.recipes.shell.values import Value

BASH = shutil.which("bash")
PRELUDE = "torchrun() { shift; printf '['; for a in \"$@\"; do printf '<%s>' \"$a\"; done; echo ']'; }\n"
CASES = {
    "assignment": ("X=5; Y=$X; torchrun t.py $Y ${X}", "<5><5>"),
    "quotes": ("""x=; torchrun t.py "a$x" $x "" ''$x 'q r' a\\ b "c\\"d" "e\\$f" $'g\\th'""", None),
    "splitting": ("x='a  b'; torchrun t.py $x \"$x\" -$x-", "<a><b><a  b><-a><b->"),
    "default": ('b=; torchrun t.py ${a:-d e} "${a:-d e}" ${b-x} ${b:-y}', "<d><e><d e><y>"),
    "default-assigned": ('torchrun t.py ${n:=w} $n ${n:+alt} ${m+no} ${z-"q r"}', "<w><w><alt><q r>"),
    "default-nested": ("torchrun t.py ${a:-$(( 1 + 2 ))} ${b:-${c:-deep}}", "<3><deep>"),
    "string-building": ('x="a \\\n b   c\nd"; torchrun t.py $x "$x"', None),
    "append": ('S=a; S+=b; for i in 1 2; do T="$T $i"; done; torchrun t.py $S $T', "<ab><1><2>"),
    "arithmetic": ("a=7; torchrun t.py $((a/2)) $((-a/2)) $((-a%3)) $((2**10)) $((010+0x10))", "<3><-3><-1><1024><24>"),
    "ternary": ("T=2; torchrun t.py $(( ($T > 1) ? 1 : 0 )) $((T==2&&!0)) $((T<2||T>=3))", "<1><1><0>"),
    "overflow": ("torchrun t.py $((9223372036854775807 + 1)) $((1 << 63))", None),
    "steps": ("a=1; ((a++)); (( a += 5 )); i=$((a--)); torchrun t.py $a $i $((++a)) $((a, 3))", "<6><7><7><3>"),
    "base": ("torchrun t.py $((16#ff)) $((2#101)) $((~5)) $((5 ^ 3)) $((5 & 3)) $((5 | 3))", "<255><5><-6><6><1><7>"),
    "local": ("a=1; w() { local a=2 b=3; declare c=4; d=5; }; w; torchrun t.py $a $b $c $d", "<1><5>"),
    "if": ("if [ 3 -gt 2 -a x != y ]; then z=1; else z=2; fi; torchrun t.py $z", "<1>"),
    "elif": ("x=b; if [ $x = a ]; then y=1; elif [ $x = b ]; then y=2; else y=3; fi; torchrun t.py $y", "<2>"),
    "and-or": ("[ a = a ] && [ 1 -eq 2 ] || x=1; torchrun t.py $x", "<1>"),
    "not": ("if ! [ a = b ]; then x=1; fi; if [ ! a = b ]; then y=2; fi; torchrun t.py $x $y", "<1><2>"),
    "empty-test": ("v=; if [ -n $v ]; then a=y; fi; if [ -z $v ]; then b=y; fi; torchrun t.py $a $b", "<y><y>"),
    "double-brackets": (
        "[[ ab == a* && ! ( x == y ) ]] && q=1; [[ 'a*' == 'a*' ]] && r=1; torchrun t.py $q $r",
        "<1><1>",
    ),
    "quoted-pattern": ("if [[ ab == 'a*' ]]; then q=1; else q=2; fi; torchrun t.py $q", "<2>"),
    "case": ("case abc in a|b) y=1;; a*) y=2;; *) y=3;; esac; torchrun t.py $y", "<2>"),
    "for": ("for i in 1 2 3; do [ $i = 3 ] && break; S=$S$i; done; torchrun t.py $S", "<12>"),
    "while": ("i=0; while [ $i -lt 3 ]; do i=$((i+1)); L=$L-$i; done; torchrun t.py $L", "<-1-2-3>"),
    "until": ("i=0; until [ $i -ge 2 ]; do i=$((i+1)); done; torchrun t.py $i", "<2>"),
    "function": ('f() { local q=$1; shift; torchrun t.py $# "$@" $q; }; f 1 2 "3 4"', "<2><2><3 4><1>"),
    "return": ("f() { [ $1 = a ] && return 0; return 1; }; f b || x=1; f a && y=2; torchrun t.py $x $y", "<1><2>"),
    "positional": ('set -- a "b c" d e f g h i j k; torchrun t.py $1 "$2" ${10} $# "${@:9}"', "<a><b c><k><10><j><k>"),
    "all-parameters": ('set -- a "b c"; torchrun t.py $@ "$@" "$*" x"$@"y', None),
    "shift": ("set -- a b c; shift 2; torchrun t.py $1 $#", "<c><1>"),
    "array": ('A=(--a 1 "b c"); A+=(d); torchrun t.py "${A[@]}" ${A[1]} ${#A[@]} "${A[*]}"', None),
    "empty-array": ('A=(); torchrun t.py "${A[@]}" x', "<x>"),
    "eval": ('cmd="torchrun t.py --x \'a b\' \\"c d\\" 2>&1 | cat"; eval $cmd', "<--x><a b><c d>"),
    "trimming": ("p=/a/b/c.sh; torchrun t.py ${p##*/} ${p%/*} ${p%.sh} ${p#*/} ${p/b/X} ${p:1:3} ${#p} ${p^^}", None),
    "indirect": ("k=v; v=7; torchrun t.py ${!k}", "<7>"),
    "subshell": ("x=6; (x=5; torchrun t.py $x); torchrun t.py $x", "<5>]\n[<6>"),
    "group": ("{ x=1; torchrun t.py $x; }; torchrun t.py ${x}2", "<1>]\n[<12>"),
    "unset": ("x=1; unset x; torchrun t.py ${x-gone}", "<gone>"),
    "prefix": ("a=1 b=2\nc=$a$b; torchrun t.py $c", "<12>"),
    "continuation": ("x=1\ntorchrun t.py --a $x\\\n --b\\\n  --c \\\n 3 # comment", "<--a><1><--b><--c><3>"),
    "exit": ("torchrun t.py 1; exit 0; torchrun t.py 2", "<1>"),
    "false": (
        "if false; then torchrun t.py; else torchrun t.py yes; fi; test a = a && torchrun t.py 2",
        "<yes>]\n[<2>",
    ),
    "heredoc": ("cat > /dev/null <<EOF\ntorchrun no\nEOF\ntorchrun t.py 1", "<1>"),
    "array-of-itself": ('A=(--a 1); A=("${A[@]}" --b); torchrun t.py "${A[@]}"', "<--a><1><--b>"),
    "array-comments": ('A=( --a 1 # one\n # --b 2\n --c\n); torchrun t.py "${A[@]}"', "<--a><1><--c>"),
    "keys": (
        (
            'declare -A L=([8b]=32 ["7 b"]=80); L[x]=2; k=8b; L[$k]+=1; '
            'torchrun t.py ${L[8b]} ${L[$k]} ${L["7 b"]} ${L[x]} ${#L[@]} x${L[none]}'
        ),
        "<321><321><80><2><3><x>",
    ),
    "items": ('A=(1 2); A[1]=3; A[2]=4; i=1; torchrun t.py ${A[i+1]} ${A[$i]} ${A[-1]} "${A[@]}"', None),
    "keys-of": ("declare -A L; L[a]=1; for k in ${!L[@]}; do torchrun t.py $k ${L[$k]}; done", "<a><1>"),
    "keys-again": ("declare -A L=([a]=1); L=(); L[b]=2; unset L; torchrun t.py x${L[a]}${L[b]}", "<x>"),
    "let": ('let "a=64*2" b=a+1; let a++; torchrun t.py $a $b', "<129><129>"),
    "printf": ('printf -v x "%d-%s" 4 q; torchrun t.py $x $(printf "%s " a b) "$(printf "a%%\\n")"', "<4-q><a><b><a%>"),
    "here-string": ('read -r a <<< "2"; IFS=, read -r b c <<< "1,2,3"; torchrun t.py $a $b "$c"', "<2><1><2,3>"),
    "counted-for": (
        "for ((i=0;i<3;i++)); do S=$S$i; done; for ((;;)); do break; done; torchrun t.py $S $i",
        "<012><3>",
    ),
    "expression": (
        (
            "[[ abc =~ ^a.c$ ]] && x=1; [[ 8.5 =~ ^8\\.5$ ]] && y=1; [[ 8x5 =~ ^8\\.5$ ]] || z=1; "
            '[[ q =~ "." ]] || w=1; [[ 7b =~ ^[[:digit:]]+b$ ]] && v=1; torchrun t.py $x$y$z$w$v'
        ),
        "<11111>",
    ),
    "output": (
        (
            'f() { local n=$1; echo "--a $n"; [ $n = 1 ] && echo --one; }\ng() {\ncat <<EOF\n--b $(f 1)\nEOF\n}\n'
            'torchrun t.py $(f 2) `echo x` "$(g)" $(expr 4 \\* 2) $(echo no >&2) "$(echo -n y)"'
        ),
        None,
    ),
    "output-as-written": ("x=1; torchrun t.py $(cat <<'EOF'\n--a $x\nEOF\n)", "<--a><$x>"),
    "output-with-tabs": ("torchrun t.py $(cat <<-EOF\n\t\t--a\n\tEOF\n)", "<--a>"),
    "brackets-in-arithmetic": ("N=32 P=2\nV=$(( $N / $P / 4 )); torchrun t.py $V $(( ($N / $P) % ${V} ))", "<4><0>"),
}


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


def test_a_setting_fills_a_variable_that_is_not_known() -> None:
    text = "TP=$1\nNODES=$(cat hosts | wc -l)\nPP=2\ntorchrun t.py $TP $NODES $PP"
    script = read(text, TP="8", NODES="4", PP="1")
    assert words(only(script)) == ["8", "4", "2"]
    assert script.unused_settings == ("PP",)


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


def test_a_known_part_decides_a_comparison() -> None:
    text = (
        'P="$(pwd)/model/"; if [ $P != none ]; then o=1; fi; N=$((X*2)); if [ -z ${N} ]; then o=2; fi; torchrun t.py $o'
    )
    assert words(only(read(text))) == ["1"]


def test_loops_over_unknown_words_run_once() -> None:
    text = "N=1; for h in $HOSTS; do N=2; done; while read -r l; do M=1; done < f; torchrun t.py $N ${M:-0}"
    n, m = only(read(text)).arguments
    assert causes(n) == {"HOSTS"}
    assert not m.known


def test_options_of_the_script_keep_their_defaults() -> None:
    text = "TP=2; while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; esac; done; torchrun t.py $TP"
    script = read(text)
    assert words(only(script)) == ["2"]
    assert set(script.assumed_unset) == {"#"}
    assert words(only(read(text, **{"1": "--tp", "2": "8"}))) == ["8"]


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
    assert [causes(value) for value in values] == [{"K"}, {"${A[8b]}"}, {"HOSTS"}]
    assert [min(value.causes).line for value in values] == [1, 1, 1]


def test_loops_over_arguments_that_nobody_gave() -> None:
    script = read('TP=2; for a in "$@"; do case $a in --tp=*) TP=${a#*=};; esac; done; torchrun t.py $TP')
    assert words(only(script)) == ["2"]
    assert set(script.assumed_unset) == {"@"}


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
