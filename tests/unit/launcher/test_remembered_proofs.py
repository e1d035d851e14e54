"""What verify has proved stands in the last lines of later runs of the same sources, under the same conditions."""

import pytest

from samebits.launcher import proofs
from samebits.launcher.proofs import MOST_PROOFS, Sources, recall, remember
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.claims import Proved
from samebits.protocol.layout.mesh import Form
from tests.support.promises import promise

PLAIN = Form(), Arithmetic(), "cpu"
PROVED = Proved(20, (1, 2, 4), 4, 1, day="2026-11-28")
RESULT = {"lanes": 4, "threads": 1}


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMEBITS_PROOFS", str(tmp_path / "proofs"))
    (tmp_path / "part.py").write_text("WIDTH = 3\n")
    path = tmp_path / "train.py"
    path.write_text("import samebits, part\nsamebits.init()\n")
    return path


def keep(script, args):
    sources = Sources(script, None, PLAIN)
    remember(sources, sources.files(), args, PROVED)


@promise(
    "what-verify-proves",
    "A remembered proof is said with its day, of the same sources under the same conditions only",
    also=["test_what_was_changed_since_is_not_proved", "test_a_damaged_file_is_no_proof_and_no_failure"],
)
def test_it_is_said_with_its_day_and_for_these_lanes_and_threads_only(script):
    keep(script, ("--lr", "1"))
    found = recall(Sources(script, None, PLAIN), ("--lr", "1"))
    assert found.of(RESULT) == "over 20 steps on 1, 2 and 4 ranks, 28 Nov 2026"
    assert found.of({"lanes": 8, "threads": 1}) == ""


def test_other_arguments_are_named(script):
    keep(script, ("--epochs", "1"))
    assert recall(Sources(script, None, PLAIN), ()).of(RESULT).endswith("28 Nov 2026, with --epochs 1")


@pytest.mark.parametrize(
    "what", ["the script", "a file that it imports", "a package", "strategy", "numerics", "device"]
)
def test_what_was_changed_since_is_not_proved(script, what, monkeypatch):
    keep(script, ())
    form, arithmetic, device = PLAIN
    if what == "the script":
        script.write_text(script.read_text() + "# another\n")
    elif what == "a file that it imports":
        script.with_name("part.py").write_text("WIDTH = 4\n")
    elif what == "a package":
        monkeypatch.setattr(proofs, "_installed", lambda: ["another-1.0.dist-info"])
    elif what == "strategy":
        form = Form("zero1")
    elif what == "numerics":
        arithmetic = Arithmetic(numerics="portable")
    else:
        device = "cuda"
    assert recall(Sources(script, None, (form, arithmetic, device)), ()) is None


@pytest.mark.parametrize("text", ["", "{", "[3]", '[{"args": 3}]', "[]", '{"a": 1}', '[{"args": [], "steps": "x"}]'])
def test_a_damaged_file_is_no_proof_and_no_failure(script, tmp_path, text):
    key = Sources(script, None, PLAIN)
    keep(script, ())
    [path] = (tmp_path / "proofs").glob("*.json")
    path.write_text(text)
    assert recall(key, ()) is None
    keep(script, ())


def test_the_newest_proofs_are_kept_and_none_where_nothing_may_be_written(script, tmp_path, monkeypatch):
    key = Sources(script, None, PLAIN)
    for number in range(MOST_PROOFS + 3):
        keep(script, (str(number),))
    assert recall(key, (str(MOST_PROOFS + 2),)).args == ""
    assert recall(key, ("0",)).args == str(MOST_PROOFS + 2)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SAMEBITS_PROOFS", str(tmp_path / "file" / "inside"))
    keep(script, ())
    assert recall(key, ()) is None
    monkeypatch.setenv("SAMEBITS_PROOFS", "off")
    assert recall(key, ()) is None


def test_a_proof_of_files_that_were_changed_meanwhile_is_none(script):
    sources = Sources(script, None, PLAIN)
    before = sources.files()
    script.with_name("part.py").write_text("WIDTH = 4\n")
    remember(sources, before, (), PROVED)
    assert recall(sources, ()) is None


def test_a_script_of_more_than_is_looked_at_has_no_proof(script, monkeypatch):
    monkeypatch.setattr("samebits.launcher.script_source.MOST_BYTES", 40)
    keep(script, ())
    assert recall(Sources(script, None, PLAIN), ()) is None
