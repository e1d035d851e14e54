"""From the words of `samebits verify` to what it proves; every mistake is one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.cli.script_words import own_first, strays, with_values
from samebits.cli.start_verify import interruption_from, parse_ranks, proof_from
from samebits.errors import UsageError
from samebits.protocol.layout.mesh import Form, on_ranks
from tests.support.promises import promise

VALUED, FLAGS = ("--ranks", "--steps"), ("--json", "-m")
OPTIONS = dict.fromkeys(("lanes", "strategy", "mesh", "schedule", "precision", "numerics", "save", "against")) | {
    "ranks": "1,2",
    "quiet": False,
    "steps": 20,
    "threads": 1,
    "device": "cpu",
    "module": False,
    "args": (),
    "accept": (),
}


@pytest.mark.parametrize(
    ("typed", "ordered"),
    [
        ("train.py", "train.py"),
        ("--ranks 1,2 train.py --lr 1", "--ranks 1,2 train.py --lr 1"),
        ("train.py --ranks 1,2 --json --lr 1", "--ranks 1,2 --json train.py --lr 1"),
        ("train.py --ranks=1 --lr 1 --steps 3", "--ranks=1 train.py --lr 1 --steps 3"),
        ("train.py -- --steps 3", "train.py --steps 3"),
        ("train.py data --json", "train.py data --json"),
        ("--unknown train.py", "--unknown train.py"),
        ("-m train --steps 3 x", "-m --steps 3 train x"),
    ],
)
def test_the_options_come_first_and_the_rest_is_the_scripts(typed: str, ordered: str) -> None:
    assert own_first(typed.split(), VALUED, FLAGS) == ordered.split()


@given(st.lists(st.sampled_from(["--ranks", "1", "--json", "-m", "train.py", "--lr", "x"])))
def test_no_word_is_lost(words: list[str]) -> None:
    assert sorted(own_first(words, VALUED, FLAGS)) == sorted(words)


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("--where train.py", "--where= train.py"),
        ("--where 3 train.py 4", "--where=3 train.py 4"),
        ("--where=3 train.py", "--where=3 train.py"),
        ("--ranks 1,2 --where train.py", "--ranks 1,2 --where= train.py"),
        ("train.py --where 3", "--where=3 train.py"),
        ("train.py x --where 3", "train.py x --where 3"),
        ("train.py -- --where 3", "train.py --where 3"),
        ("--where -1 train.py", "--where=-1 train.py"),
    ],
)
def test_a_number_behind_an_option_that_may_have_one_is_its_value(typed: str, given: str) -> None:
    valued = {*VALUED, "--where"}
    ordered = own_first(typed.split(), valued, FLAGS, {"--where"})
    assert with_values(ordered, valued, {"--where"}) == given.split()


def test_ranks_are_numbers_in_the_given_order() -> None:
    assert parse_ranks("4,1,2") == (4, 1, 2)


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "1,-2", "1.5"])
def test_other_ranks_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"Try --ranks 1,2"):
        parse_ranks(text)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 0}, "--steps must be at least 1"),
        ({"lanes": 0}, "--lanes must be at least 1"),
        ({"lanes": 1}, "Verify with --lanes 2, or with --ranks 1"),
        ({"threads": 0}, "--threads must be at least 1"),
        ({"script": "missing.py"}, "There is no script missing.py"),
        ({"accept": ("plain", "plane")}, "--accept plane: there is no such finding. Try --accept plain"),
        ({"accept": ("script",)}, "--accept script needs --against"),
        ({"ranks": "1"}, r"or a file \(--save, --against\)"),
        ({"ranks": "1", "save": "/no/such/folder/bits.json"}, "--save /no/such/folder/bits.json cannot be written"),
        ({"save": "a.json", "against": "./a.json"}, "--save and --against name the same file"),
        ({"against": "missing.json"}, "missing.json cannot be read: No such file or directory. Write it first: --save"),
        ({"ranks": "none"}, "--ranks must be numbers"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_way_out(tmp_path: Path, changed: dict[str, object], words: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(UsageError, match=words):
        proof_from(OPTIONS | {"script": str(script)} | changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"interrupt": 0}, "--interrupt must be a step from 1 on, but is 0"),
        ({"interrupt": -3}, "--interrupt must be a step from 1 on, but is -3"),
        ({"ranks": "1,2,4"}, "Give one number, or two: until the stop, and after it"),
        ({"save": "bits.json"}, "--save and --interrupt compare different things"),
        ({"accept": ("plain",)}, "--accept and --interrupt compare different things"),
        ({"steps": 0}, "--steps must be at least 1"),
        ({"script": "missing.py"}, "There is no script missing.py"),
    ],
)
def test_a_mistake_with_interrupt_is_one_sentence(tmp_path: Path, changed: dict[str, object], words: str) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(UsageError, match=words):
        interruption_from(OPTIONS | {"script": str(script), "interrupt": 7} | changed)


def test_interrupt_takes_one_number_of_ranks_for_both_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    options = OPTIONS | {"script": str(tmp_path / "train.py"), "interrupt": 7, "steps": None}
    assert [interruption_from(options | {"ranks": ranks}).ranks for ranks in (None, "2", "2,1")] == [
        (1, 1),
        (2, 2),
        (2, 1),
    ]


def test_a_mistake_ends_the_command_with_2_and_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "samebits", "verify", "missing.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr == "error: There is no script missing.py.\nhelp: Check the path.\n"
    assert ended.stdout == ""


def test_the_strategy_of_the_command_line_is_that_of_every_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    proof = proof_from(OPTIONS | {"script": str(script), "strategy": "hogwild", "precision": "bf16"})
    assert proof.program.form == Form("hogwild")
    assert proof.program.arithmetic.decided().precision == "bf16-mixed"
    assert [on_ranks(proof.program.form, count) for count in (1, 2)] == [Form("hogwild")] * 2
    assert on_ranks(Form("dp"), 1) == Form("dp")
    assert on_ranks(Form(mesh="dp=1"), 1) == Form(mesh="dp=1")
    assert on_ranks(Form("pipeline", "pipeline=2"), 1) == Form()
    assert on_ranks(Form("pipeline"), 2) == Form("pipeline")


OURS = ("--ranks", "--steps", "--schedule", "--json", "-m", "--module")
SOURCE = """
parser.add_argument("--scheduler"); parser.add_argument("-m"); parser.add_argument("--batch_size")
for step in run.steps(loader): ...
"""


@promise(
    "what-verify-proves",
    "A word after `verify SCRIPT` that looks like one of our options is noted; Ctrl-C ends with 130 and leaves nothing",
    also=["test_ctrl_c_ends_verify_with_130_and_leaves_nothing"],
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--stesp 5", ["--stesp goes to the script; did you mean --steps?"]),
        ("--rank=1", ["--rank goes to the script; did you mean --ranks?"]),
        ("-n 2", ["-n goes to the script; did you mean --ranks?"]),
        ("--nproc_per_node=2", ["--nproc_per_node goes to the script; did you mean --ranks?"]),
        (
            "data --steps 3 --steps 4",
            [
                "--steps comes after the script and its arguments, so it goes to the script; put it before them to mean it for samebits"
            ],
        ),
        ("--scheduler cosine -m 3 --lr 0.1 -x --batch-size 4", []),
        ("-- steps ranks 5 --", []),
    ],
)
def test_words_that_look_like_ours_are_noted_unless_the_script_knows_them(words: str, said: list[str]) -> None:
    assert strays(words.split(), OURS, SOURCE) == said
    assert strays(words.split(), OURS, None) == said or "scheduler" in words


def test_a_typo_is_noted_before_anything_starts_unless_two_dashes_say_that_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")

    def said(*words: str) -> str:
        command = [sys.executable, "-m", "samebits", "verify", "--lanes", "0", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30).stderr

    assert said("train.py", "--stesp", "5").startswith(
        "note: --stesp goes to the script; did you mean --steps?\nerror: "
    )
    assert said("train.py", "--", "--stesp", "5").startswith("error: ")
    (tmp_path / "train.py").write_text("parser.add_argument('-n'); parser.add_argument('--rank')\n")
    assert said("train.py", "--rank", "1,2", "-n", "3").startswith("error: ")


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [("train.py --lanes 0", True), ("--lanes 0 train.py --lr 1", False), ("--lanes 0 train.py -- --steps 1", False)],
)
def test_an_option_right_behind_the_script_counts_with_a_line_about_it(
    tmp_path: Path, words: str, is_noted: bool
) -> None:
    (tmp_path / "train.py").touch()
    command = [sys.executable, "-m", "samebits", "verify", *words.split()]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30).stderr
    assert said.startswith("note: options of `samebits verify` belong before the script.") == is_noted
    assert "error: " in said, "0 lanes are refused in either place"


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_typo_right_after_the_script_is_noted_by_both(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").touch()
    words = [sys.executable, "-m", "samebits", command, "--lanes", "0", "train.py", "--rank", "1,2"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=30).stderr
    assert said.startswith("note: --rank goes to the script; did you mean --ranks?\nerror: ")
