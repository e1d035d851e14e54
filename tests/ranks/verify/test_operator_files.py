"""The operators of one step in a file: written on one machine, compared on another."""

import json
from dataclasses import replace

import pytest

from samebits.verify.evidence import Evidence
from samebits.verify.repeat.saved_operators import SavedOperators
from samebits.verify.saved_bits import SavedBits
from tests.ranks.verify.test_repeat import verify, write
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


@promise(
    "what-verify-proves",
    "A file has the operators of one step, and names on another machine the first one that differs",
)
def test_the_operators_of_a_step_are_written_and_the_first_that_differs_is_named(tmp_path):
    write(tmp_path)
    code, found = verify(tmp_path, "--save", "ops.json", "--where", "3")
    assert (code, found["recorded_step"], found["saved_to"]) == (0, 3, "ops.json")
    text = (tmp_path / "ops.json").read_text()
    assert json.loads(text)["format"] == "samebits-operators"
    assert str(tmp_path) not in text
    code, found = verify(tmp_path, "--against", "ops.json")
    assert (code, found["verdict"]) == (0, "same bits")
    write(tmp_path, "model[1].eps = 2e-5 if step == 2 else 1e-5")
    code, found = verify(tmp_path, "--against", "ops.json", "--where")
    assert (code, found["verdict"], found["differs_before"]) == (1, "different bits", False)
    operator = found["operator"]
    assert (operator["name"], operator["values"]) == ("aten.native_layer_norm.default", ["1e-05", "2e-05"])
    assert operator["line"] == "train.py:14"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changed", "code", "verdict"),
    [
        (("nn.LayerNorm(16)", "nn.LayerNorm(16, eps=1.01e-5)"), 1, "different bits"),
        (("import random", "import random  # a comment"), 0, "same bits"),
        (("range(9)", "range(2)"), 125, "cannot tell"),
        (("for step in", "raise SystemExit(3)\nfor step in"), 125, "cannot tell"),
        (("optimizer.step()", "pass"), 125, "cannot tell"),
        (("for step in", "for step in ("), 125, "cannot tell"),
        (("import torch\n", "import torch\nimport samebits\nrun = samebits.init()\n"), 125, "cannot tell"),
    ],
)
def test_a_commit_under_test_gives_0_1_or_125(tmp_path, changed, code, verdict):
    write(tmp_path)
    assert verify(tmp_path, "--save", "ops.json", "--where", "3")[0] == 0
    write(tmp_path, changed=changed)
    ended, found = verify(tmp_path, "--against", "ops.json")
    assert (ended, found["verdict"]) == (code, verdict)


@pytest.mark.thorough
def test_bits_that_differ_before_the_step_are_told(tmp_path):
    write(tmp_path)
    verify(tmp_path, "--save", "ops.json", "--where", "3")
    write(tmp_path, "model[1].eps = 2e-5 if step == 1 else 1e-5")
    code, text = verify(tmp_path, "--against", "ops.json", json_too=False)
    assert code == 1
    assert "the bits differ before step 3 already" in text
    assert "operator:" not in text


NEARLY = """
OTHER = 0
@torch.library.custom_op("mine::nearly", mutates_args=())
def nearly(a: torch.Tensor) -> torch.Tensor:
    return a * (1 + OTHER)
"""


@pytest.mark.thorough
def test_how_far_results_are_apart_is_not_in_a_file(tmp_path):
    write(tmp_path, changed=("model = ", f"{NEARLY}\nmodel = "))
    text = (tmp_path / "train.py").read_text().replace("model(x[rows])", "model(nearly(x[rows]))")
    (tmp_path / "train.py").write_text(text)
    assert verify(tmp_path, "--save", "ops.json", "--where", "1")[0] == 0
    (tmp_path / "train.py").write_text(text.replace("OTHER = 0", "OTHER = 1e-6"))
    code, text = verify(tmp_path, "--against", "ops.json", json_too=False)
    assert code == 1
    assert "mine.nearly.default of float32[16, 8]" in text
    assert "how far apart is not known, the file has hashes" in " ".join(text.split())


@pytest.mark.thorough
def test_two_runs_that_differ_in_the_step_are_not_written(tmp_path):
    write(tmp_path, "if step == 2: torch.seed()\n    rows = torch.randint(0, 64, (16,))")
    code, found = verify(tmp_path, "--save", "ops.json", "--where", "3")
    assert (code, found["operator"]["why"], found["saved_to"]) == (1, "generator", None)
    assert not (tmp_path / "ops.json").exists()


SENTENCES = [
    (["--where", "0"], "--where must be a step from 1 on, but is 0"),
    (["--where", "-3"], "--where must be a step from 1 on, but is -3"),
    (["--where=x"], "--where must be a step from 1 on, but is x"),
    (["--where", "5"], "--where 5 names a step, but no file is named for its operators"),
    (["--where", "5", "--against-commit", "HEAD"], "--where 5 names a step, but no file is named for its operators"),
    (["--where", "--against", "bits.json"], "bits.json has bits and no operators"),
    (["--where", "37", "--against", "bits.json"], "Write them there with --save FILE --where 37"),
    (["--where", "4", "--against", "ops.json"], "ops.json has the operators of step 3, not of step 4"),
    (["--steps", "9", "--against", "ops.json"], "the runs end behind step 3"),
    (["--against", "other.json"], "other.json has the bits of other.py, not of train.py"),
    (["--against", "torn.json"], "torn.json is damaged"),
]


@pytest.mark.parametrize(("words", "sentence"), SENTENCES)
def test_what_cannot_be_is_one_sentence_before_anything_starts(tmp_path, words, sentence):
    write(tmp_path)
    operators = SavedOperators("train.py", (), {"threads": 1}, 3, "", [])
    (tmp_path / "bits.json").write_bytes(SavedBits("train.py", (), {"threads": 1}, 3, Evidence(({},))).encode())
    (tmp_path / "ops.json").write_bytes(operators.encode())
    (tmp_path / "torn.json").write_bytes(operators.encode()[:-9])
    (tmp_path / "other.json").write_bytes(replace(operators, script="other.py").encode())
    code, text = verify(tmp_path, *words, json_too=False)
    assert code == 2
    assert sentence in " ".join(text.split())


LANES = "import samebits\nrun = samebits.init(lanes=2)\nrun.prepare\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--where", "3"], "--where 3 names a step, but with lanes the step that differs is recorded"),
        (["--where", "--ranks", "1", "--save", "new.json"], "--where compares the lanes of different numbers of ranks"),
        (["--where", "--interrupt", "2"], "--where and --interrupt compare different things"),
    ],
)
def test_with_lanes_what_cannot_be_is_one_sentence_too(tmp_path, words, sentence):
    (tmp_path / "train.py").write_text(LANES)
    code, text = verify(tmp_path, *words, json_too=False)
    assert code == 2
    assert sentence in " ".join(text.split())
