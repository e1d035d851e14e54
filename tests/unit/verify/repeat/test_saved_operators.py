"""The file of `verify --save --where 37`: what comes back, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.recording import AT_END
from samebits.verify.evidence import Evidence, ItemAtStep
from samebits.verify.repeat.operators import Operator
from samebits.verify.repeat.saved_operators import SavedOperators, bits_before, operators_from, read_against
from samebits.verify.saved_bits import SavedBits, sealed, unsealed

TEXTS = st.lists(st.sampled_from(["0" * 32, "0x1.8p+1", "'é'", "generator 1", "unwritten"]), max_size=3).map(tuple)
OPERATORS = st.builds(
    Operator,
    st.integers(0, 99),
    st.sampled_from(["aten.add.Tensor", "mine.é"]),
    st.sampled_from(["", "train.py:3"]),
    st.booleans(),
    TEXTS,
    TEXTS,
    TEXTS,
)
KIND = "samebits-operators"


def saved(operators=()):
    return SavedOperators("train.py", ("--lr", "1"), {"torch": "2.13.0"}, 37, "ab", list(operators))


@given(st.lists(OPERATORS, max_size=4))
def test_what_is_written_comes_back_without_folders(operators):
    text = saved(operators).encode()
    assert operators_from(unsealed(text, "ops.json", [KIND]), "ops.json") == saved(operators)


def test_a_file_says_what_it_is(tmp_path):
    line = Operator(0, "aten.add.Tensor", "/home/ada/secret/train.py:3", False, (), (), ())
    (tmp_path / "ops.json").write_bytes(saved([line]).encode())
    (tmp_path / "bits.json").write_bytes(SavedBits("train.py", (), {"threads": 1}, 3, Evidence(({},))).encode())
    found = read_against(tmp_path / "ops.json")
    assert [one.line for one in found.operators] == ["train.py:3"]
    assert isinstance(read_against(tmp_path / "bits.json"), SavedBits)


def test_a_number_that_is_none_is_a_sentence():
    body = json.loads(saved([Operator(0, "aten.add.Tensor", "train.py:3", False, (), (), ())]).encode())
    body["operators"][0]["number"] = float("inf")
    with pytest.raises(UsageError, match="is damaged"):
        operators_from(body, "ops.json")


@given(st.integers(0), st.binary(min_size=1, max_size=1))
def test_a_byte_that_is_another_one_is_noticed_in_operators_too(position, byte):
    text = saved([Operator(0, "aten.add.Tensor", "train.py:3", False, (), ("0" * 32,), ())]).encode()
    position %= len(text)
    changed = text[:position] + byte + text[position + 1 :]
    found, problem = None, ""
    try:
        found = operators_from(unsealed(changed, "ops.json", [KIND]), "ops.json")
    except UsageError as error:
        problem = str(error)
    whole = operators_from(unsealed(text, "ops.json", [KIND]), "ops.json")
    assert found == whole or problem.startswith("ops.json ")


@pytest.mark.parametrize(
    "changed",
    [
        *({"step": step} for step in (0, -1, None, "3", True, 1 << 40)),
        *({"operators": lines} for lines in (None, [None], [{}], 3)),
        {"facts": []},
        {"args": 3},
    ],
)
def test_a_file_of_operators_made_by_hand_is_one_sentence(changed):
    body = json.loads(saved().encode())
    kept = {key: value for key, value in body.items() if key not in ("format", "version") and "sha256" not in key}
    text = sealed(KIND, kept | changed)
    with pytest.raises(UsageError, match=r"^ops\.json is damaged"):
        operators_from(unsealed(text, "ops.json", [KIND]), "ops.json")


def test_what_is_before_a_step_is_its_beginning_and_all_steps_below():
    items = {ItemAtStep(1, "initial a"): "x", ItemAtStep(1, "loss"): "y", ItemAtStep(2, "loss"): "z"}
    recorded = {**items, ItemAtStep(AT_END, "loss"): "e"}

    def before(step, **changed):
        of = {place: changed.get(f"{place.item.split()[0]}{place.step}", value) for place, value in recorded.items()}
        return bits_before(Evidence((of,)), step)

    assert before(1) == before(1, loss1="other") != before(1, initial1="other")
    assert before(2) == before(2, loss2="other") != before(2, loss1="other")
