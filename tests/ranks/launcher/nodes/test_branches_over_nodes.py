"""A branch on several nodes: only the first one's disk needs to have the parent."""

import shutil

import pytest

from tests.ranks.launcher.test_branches import SAVES, SCRIPT, bits, parent, rows
from tests.support.launching import said, write_script
from tests.support.several_nodes import nodes

pytestmark = pytest.mark.ranks


def test_a_branch_over_two_nodes_has_the_bits_of_its_parent(tmp_path, monkeypatch):
    place = tmp_path / "parent"
    place.mkdir()
    whole = parent(place)
    script, source = str(tmp_path / write_script(tmp_path, SCRIPT)), place / "samebits-runs/exp1"
    with nodes(tmp_path, 2, "-n", "1", "--from", f"{source}@4", "--name", "exp2", *SAVES, script) as started:
        ended = [one.finish() for one in started]
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    assert rows(ended[0].out) == {step: row for step, row in rows(whole.out).items() if step > 4}
    assert [said(one, "branch") for one in ended] == [["of exp1, after step 4"]] * 2
    assert bits(tmp_path / "node0", "exp2") == bits(place, "exp1")
    assert not list((tmp_path / "node1").glob("samebits-runs/exp2/states/step-*"))
    # the same command resumes, as long as all nodes say of which run it is a branch
    for kept in ("node0", "node1"):
        (tmp_path / kept).rename(place / kept)
    monkeypatch.setenv("SAMEBITS_RUNS", str(place / "node0/samebits-runs"))
    shutil.rmtree(source)
    for words, sentence in ((("--from", str(source)), "needs the step"), ((), "Give --from exp1@4 on every node")):
        with nodes(again(tmp_path), 2, "-n", "1", *words, "--name", "exp2", *SAVES, script) as started:
            refused = started[0].finish()
        assert refused.code == 2
        assert sentence in refused.err


def again(tmp_path):
    """Another folder for nodes."""
    folder = tmp_path / f"again-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    return folder
