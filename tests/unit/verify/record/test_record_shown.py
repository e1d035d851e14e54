"""`samebits record show` and `diff`: what they print and return for records of every kind."""

import json
import os

import pytest

from samebits.cli import main
from samebits.protocol.record.lines import CONDITIONS, DIFFERS, Chain, split, unlinked
from samebits.verify.record.comparison import compared
from samebits.verify.record.conditions import packages_of, rows_apart
from samebits.verify.record.description import read_at
from tests.support.recorded import CONDITIONS_HERE, body_of, lines_of, write_lines

LANES = "0000-1111-2222-3333"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Call `samebits record` with these words in an empty folder; its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def called(*words):
        monkeypatch.setattr("sys.argv", ["samebits", "record", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        out, err = capsys.readouterr()
        assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("{")), out
        assert out.isprintable() or "\x1b" not in out
        return ended.value.code, out, err

    return called


def record(path, *args, **others):
    """A record in the folder of the run `path`."""
    return write_lines(path / "record.jsonl", lines_of(*args, **others))


def differing(step):
    return unlinked({DIFFERS: step, "was": body_of(step), "is": body_of(step, loss=[0.125])})


def test_a_whole_record_is_one_screen(call, tmp_path):
    record(tmp_path / "samebits-runs" / "exp1", range(1, 47), end=f"sha256:{'ab' * 32}")
    for word in ("exp1", "samebits-runs/exp1", "samebits-runs/exp1/record.jsonl"):
        code, out, err = call("show", word)
        assert (code, err) == (0, "")
        assert len(out.splitlines()) <= 24
        assert "train.py --lr 0.1\n" in out
        assert "the record says: 4 ranks, ddp, 1 start (not checked)\n" in out
        assert "steps      1 to 46, 1 epoch\n" in out
        assert "loss       1 at step 1, 0.0217391 at step 46\n" in out
        assert f"bits       {'ab' * 32}\n" in out
        assert "chain      holds, last link " in out
        assert "states     none\n" in out


def test_everything_is_in_the_json(call, tmp_path):
    record(tmp_path / "exp1", [1, 2, 5])
    code, out, _ = call("show", "exp1", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["steps"], found["first"], found["last"], found["gaps"]) == (3, 1, 5, [[3, 4]])
    assert (found["holds"], found["end"], found["differs"]) == (True, None, None)
    assert found["conditions"][0]["conditions"] == CONDITIONS_HERE


def test_a_step_is_shown_by_its_number(call, tmp_path):
    record(tmp_path / "exp1", [1, 2, 5], changed={2: {"loss": ["nan"], "lanes": LANES, "scale": [65536.0, 1]}})
    code, out, _ = call("show", "exp1", "--step", 2)
    assert code == 0
    assert "loss           nan\n" in out
    assert "by lane        0000 1111 2222 3333\n" in out
    assert "loss scale     65536.0, 1\n" in out
    assert json.loads(call("show", "exp1", "--step", 2, "--json")[1])["loss"] == ["nan"]
    code, out, err = call("show", "exp1", "--step", 4)
    assert (code, out) == (2, "")
    assert "Step 4 is not in exp1/record.jsonl, which has steps 1 to 5, but not 3 to 4." in err


def test_a_chain_that_breaks_ends_with_one(call, tmp_path):
    lines = lines_of(range(1, 10))
    write_lines(tmp_path / "exp1" / "record.jsonl", [*lines[:5], *lines[6:]])
    code, out, _ = call("show", "exp1")
    assert code == 1
    assert "chain      breaks, last link " in out
    assert "The chain breaks at step 4 (line 6)" in out.replace("\n", " ")
    assert call("show", "exp1", "--step", 5)[0] == 1
    assert json.loads(call("show", "exp1", "--json")[1])["holds"] is False


def test_a_step_that_came_again_otherwise_is_shown_twice(call, tmp_path):
    write_lines(tmp_path / "exp1" / "record.jsonl", [*lines_of(range(1, 10)), differing(4)])
    code, out, _ = call("show", "exp1")
    assert code == 1
    assert "Step 4 came again otherwise (loss); the record ends there." in out
    assert "loss           0.25                      0.125\n" in out
    found = json.loads(call("show", "exp1", "--json")[1])["differs"]
    assert (found["step"], found["key"], found["was"]["loss"], found["is"]["loss"]) == (4, "loss", [0.25], [0.125])


def test_conditions_that_changed_are_told_with_what_changed(call, tmp_path):
    lines = lines_of(range(1, 6))
    chain = Chain(split(lines[-1])[1])
    others = {**CONDITIONS_HERE, "torch": "2.10.0", "files": {**CONDITIONS_HERE["files"], "data.py": "cd" * 32}}
    again = [chain.line({CONDITIONS: others, "after": 5}), chain.line(body_of(6))]
    write_lines(tmp_path / "exp1" / "record.jsonl", [*lines, *again])
    code, out, _ = call("show", "exp1")
    assert code == 0
    assert "after step 5  imports data.py; torch 2.9.0 and 2.10.0\n" in out


def test_a_branch_names_its_parent(call, tmp_path):
    lines = lines_of(range(41, 46))
    lines[1] = unlinked({"start": 40, "ranks": 1, "parent": {"run": "exp0", "step": 40}, "skipped": [[42, 43]]})
    write_lines(tmp_path / "exp1" / "record.jsonl", lines)
    code, out, _ = call("show", "exp1")
    assert code == 0
    assert "branch of  exp0, after step 40\nskipped    [[42, 43]]\n" in out
    assert "steps      41 to 45, 1 epoch; not there: 1 to 40\n" in out


def test_what_is_hostile_acts_on_no_terminal(call, tmp_path):
    hostile = "\x1b[2J\x07\u202e\ud800x"
    chain = Chain()
    conditions = {
        **dict.fromkeys(("torch", "lanes", "threads", "seed", "commit", "packages", "environment"), hostile),
        "files": {hostile: hostile},
        hostile: [hostile],
    }
    start = {"start": 0, "ranks": 1, "strategy": hostile, "script": hostile, "arguments": [hostile, "x" * 1000]}
    body = body_of(1, loss=[hostile], ids=hostile, data=hostile, lanes=hostile)
    lines = [lines_of([])[0], unlinked(start), chain.line({CONDITIONS: conditions, "after": 0}), chain.line(body)]
    differs = unlinked({DIFFERS: 1, "was": body, "is": {**body, "loss": hostile}})
    write_lines(tmp_path / "one" / "record.jsonl", [*lines, differs, unlinked({"end": 1, "bits": hostile})])
    record(tmp_path / "other", [1])
    for words in (("show", "one"), ("show", "one", "--step", 1), ("diff", "one", "other"), ("diff", "other", "one")):
        code, out, err = call(*words)
        assert code == 1
        assert all(letter.isprintable() for letter in out + err if letter != "\n")


@pytest.mark.parametrize("kind", [{}, [], [[]], 7, None, {"a": {}}])
def test_conditions_of_any_kind_are_shown(call, tmp_path, kind):
    keys = ("torch", "lanes", "threads", "seed", "commit", "packages", "environment", "flags", "cpu_model")
    record(tmp_path / "one", [1], dict.fromkeys(keys, kind))
    record(tmp_path / "other", [1], dict.fromkeys(keys, "x"))
    assert call("show", "one")[0] == 0
    assert call("diff", "one", "other")[0] == call("diff", "other", "one")[0] == 0


def test_what_is_no_record_is_a_mistake(call, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "record.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "record.jsonl")
    for word in ("none", "empty", "linked", "record.jsonl", "/dev/zero", "", "a\nb"):
        code, out, err = call("show", word)
        assert (code, out) == (2, ""), word
        assert err.startswith("error: ")
        assert "root" not in err


# Two records


def test_equal_records_are_the_same(call, tmp_path):
    record(tmp_path / "one", range(1, 139), end="sha256:ab")
    record(tmp_path / "other", range(1, 139), end="sha256:ab")
    assert call("diff", "one", "other") == (0, "the same 138 steps\n", "")


def test_other_conditions_do_not_hide_that_the_steps_are_the_same(call, tmp_path):
    record(tmp_path / "one", range(1, 139), end="sha256:ab")
    record(tmp_path / "other", range(1, 139), {**CONDITIONS_HERE, "torch": "2.10.0"}, end="sha256:ab")
    code, out, _ = call("diff", "one", "other")
    assert code == 0
    assert out.endswith("the same 138 steps, under other conditions: torch 2.9.0 and 2.10.0\n")
    found = json.loads(call("diff", "one", "other", "--json")[1])
    assert (found["same"], found["first"]) == (True, None)
    assert found["conditions"] == [{"condition": "torch", "left": "2.9.0", "right": "2.10.0"}]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"loss": [0.5]}, "loss 0.14285714285714285 and 0.5"),
        ({"lr": [0.2]}, "learning rate 0.1 and 0.2"),
        ({"scale": [2.0, 0]}, "loss scale – and 2.0, 0"),
        ({"epoch": 2}, "epoch 1 and 2"),
        ({"ids": "00", "data": "00", "lanes": "0000-1111-2222-3334", "loss": [0.5]}, "other samples in lane 3"),
        (
            {"data": "00", "lanes": "0001-1111-2222-3334"},
            "the same samples with other contents in lanes 0, 3",
        ),
        ({"lanes": "0001-1111-2222-3333"}, "the same samples with other contents in lane 0"),
        ({"data": "00", "lanes": ""}, "the same samples with other contents"),
    ],
)
@pytest.mark.parametrize("torch", ["2.9.0", "2.10.0"])
def test_the_first_step_that_differs_is_told_in_words(call, tmp_path, changed, sentence, torch):
    lanes = {step: {"lanes": LANES} for step in range(1, 20)}
    record(tmp_path / "one", range(1, 20), changed=lanes)
    more = {**lanes, 7: {**lanes[7], **changed}, 9: {"loss": [9.0]}}
    record(tmp_path / "other", range(1, 20), {**CONDITIONS_HERE, "torch": torch}, changed=more)
    code, out, _ = call("diff", "one", "other")
    assert code == 1
    assert " ".join(out.split()).endswith(f"different: 6 steps the same, then step 7: {sentence}")


def test_the_first_step_that_differs_is_found_wherever_it_is(tmp_path):
    one = read_at(str(record(tmp_path / "one", range(1, 41))), tmp_path)
    for step in range(1, 41):
        changed = {later: {"loss": [2.0]} for later in range(step, 41)}
        other = read_at(str(record(tmp_path / str(step), range(1, 41), changed=changed)), tmp_path)
        assert compared(one, other)["first"]["step"] == step
        assert compared(other, one)["same_steps"] == step - 1


def test_steps_that_only_one_has_are_told(call, tmp_path):
    record(tmp_path / "one", range(1, 41), end="sha256:ab")
    record(tmp_path / "other", [1, 2, 3, *range(9, 31)])
    code, out, _ = call("diff", "one", "other")
    assert code == 1
    assert "only left has steps 4 to 8, 31 to 40\nonly left has an end\n" in out
    assert out.endswith("different: the same 25 steps; but one has more\n")
    record(tmp_path / "third", range(50, 60))
    assert call("diff", "one", "third")[1].endswith("different: no step is in both\n")


def test_ends_with_other_bits_differ(call, tmp_path):
    record(tmp_path / "one", range(1, 4), end="sha256:ab")
    record(tmp_path / "other", range(1, 4), end="sha256:cd")
    code, out, _ = call("diff", "one", "other")
    assert code == 1
    assert "the bits at the end differ: ab left, cd right\n" in out
    assert out.endswith("different: the same 3 steps; but the bits at the end differ\n")


def test_a_record_whose_chain_breaks_is_the_same_as_none(call, tmp_path):
    record(tmp_path / "one", range(1, 9))
    lines = lines_of(range(1, 9))
    lines[5] = lines[5].replace(b'"lr":[0.1]', b'"lr":[0.2]')
    write_lines(tmp_path / "other" / "record.jsonl", lines)
    code, out, _ = call("diff", "one", "other")
    assert code == 1
    assert "right: the chain breaks at step 3" in out
    assert "then step 3: learning rate 0.1 and 0.2" in out


def test_each_condition_that_differs_has_a_row():
    left = {"torch": "1", "packages": ["numpy-2.1.0.dist-info", "six-1.0-py3.egg-info"], "flags": {"a": 1}}
    right = {"torch": "1", "packages": ["numpy-2.2.0.dist-info"], "flags": {"a": 2, "b": 3}, "seed": 0}
    assert [tuple(row.values()) for row in rows_apart(left, right)] == [
        ("package numpy", "2.1.0", "2.2.0"),
        ("package six", "1.0", None),
        ("flag a", 1, 2),
        ("flag b", None, 3),
        ("seed", None, 0),
    ]
    assert packages_of(["odd", 7, "a-b-1.0.dist-info"]) == {"odd": "installed", "7": "installed", "a-b": "1.0"}
