"""What verify has proved stands in the last lines of later runs of the same sources, under the same conditions."""

from pathlib import Path

import pytest

from samebits.launcher import proofs
from samebits.launcher.proofs import MOST_LETTERS, MOST_PROOFS, Sources, recall, remember, with_its_source
from samebits.launcher.request import Computation, EntryPoint, LaunchRequest, Output, Placement
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.claims import Proved
from samebits.protocol.layout.mesh import Form
from tests.support.promises import promise

PLAIN = Form(), Arithmetic(), "cpu"
PROVED = Proved(20, (1, 2, 4), 4, 1)
NOTHING = Computation()
RESULT = {"lanes": 4, "threads": 1}


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMEBITS_PROOFS", str(tmp_path / "proofs"))
    (tmp_path / "part.py").write_text("WIDTH = 3\n")
    path = tmp_path / "train.py"
    path.write_text("import samebits, part\nsamebits.init()\n")
    return path


@pytest.fixture(autouse=True)
def _the_day(monkeypatch):
    monkeypatch.setattr(proofs, "today", lambda: "2026-11-28")


def keep(script, args, proved=PROVED):
    sources = Sources(script, None, PLAIN)
    remember(sources, sources.files(), args, proved)


@promise(
    "what-verify-proves",
    "A remembered proof is said with its day, of the same sources under the same conditions only",
    also=["test_what_was_changed_since_is_not_proved", "test_a_damaged_file_is_no_proof_and_no_failure"],
)
def test_it_is_said_with_its_day_and_for_these_lanes_and_threads_only(script):
    keep(script, ("--lr", "1"))
    found = recall(Sources(script, None, PLAIN), ("--lr", "1"))
    assert found.of(RESULT) == "proved on 1, 2, 4 ranks, 28 Nov"
    assert found.of({"lanes": 8, "threads": 1}) == ""


def test_of_another_year_the_year_is_said(script, monkeypatch):
    keep(script, ())
    monkeypatch.setattr(proofs, "today", lambda: "2027-01-02")
    assert recall(Sources(script, None, PLAIN), ()).day == "28 Nov 2026"


@pytest.mark.parametrize(
    ("proved", "now", "said"),
    [
        (("--epochs", "1"), (), "proved with --epochs 1"),
        ((), ("--epochs", "1"), "proved with no arguments"),
        (("--name", "two words"), (), "proved with --name 'two words'"),
        (("--name", "x" * MOST_LETTERS), (), "proved with --name ..."),
    ],
)
def test_other_arguments_are_named(script, proved, now, said):
    keep(script, proved)
    assert recall(Sources(script, None, PLAIN), now).of(RESULT) == said


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (Proved(3, (1, 2), 4, 1), "1, 2, 4"),
        (Proved(20, (1, 2, 4), 4, 1), "1, 2, 4"),
        (Proved(3, (1, 2, 3), 4, 1), "1, 2, 3"),
        (Proved(30, (1, 2), 4, 1), "1, 2"),
    ],
)
def test_a_proof_of_less_does_not_take_the_place_of_one_of_more(script, second, said):
    keep(script, ())
    keep(script, (), second)
    assert recall(Sources(script, None, PLAIN), ()).of(RESULT) == f"proved on {said} ranks, 28 Nov"


def run_of(script, args=(), computation=NOTHING, **placement):
    place = Placement(ranks=2, threads=1, device="cpu", **placement)
    return with_its_source(
        LaunchRequest(EntryPoint(script=script, args=args), place, Output(Path("run")), computation)
    ).computation


def test_the_command_that_is_named_has_the_conditions_of_the_run(script, monkeypatch):
    assert run_of(script).to_prove == str(script)
    asked = Computation(6, Form("zero1"), Arithmetic(numerics="portable"))
    given = "--device cpu --lanes 6 --threads 1 --strategy zero1 --numerics portable"
    found = run_of(script, ("--lr", "1"), asked, threads_given=True, device_given=True)
    assert found.to_prove == f"{given} {script} --lr 1"
    monkeypatch.setenv("SAMEBITS_PROOFS", "off")
    assert run_of(script) == NOTHING
    assert not run_of(script.with_name("part.py")).to_prove, "it never calls samebits.init"


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
        monkeypatch.setattr(proofs, "installed", lambda: ["another-1.0.dist-info"])
    elif what == "strategy":
        form = Form("zero1")
    elif what == "numerics":
        arithmetic = Arithmetic(numerics="portable")
    else:
        device = "cuda"
    assert recall(Sources(script, None, (form, arithmetic, device)), ()) is None


@pytest.mark.parametrize("text", ["", "{", "[3]", '[{"args": 3}]', "[]", '{"a": 1}', '[{"args": [], "day": "x"}]'])
def test_a_damaged_file_is_no_proof_and_no_failure(script, tmp_path, text):
    key = Sources(script, None, PLAIN)
    keep(script, ())
    [path] = (tmp_path / "proofs").glob("*.json")
    path.write_text(text)
    assert recall(key, ()) is None
    keep(script, ())
    assert recall(key, ()) is not None


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
