"""Which modules the nursery imports, from the text of a script."""

import pytest

from samebits.launcher.nursery.kept import modules_for
from samebits.launcher.request import EntryPoint, LaunchRequest, Output, Placement

DYNAMO, OURS = "torch._dynamo", "samebits.rank.run.start"


def request(place, script="x.py", module=None, fresh=False):
    script = place / script if module is None else None
    return LaunchRequest(EntryPoint(script, module), Placement(1, 1, "cpu", spawns=fresh), Output(place / "run"))


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import torch.distributed as dist\n", {"torch"}),
        ("from torch.optim import SGD\n", {"torch", DYNAMO}),
        ("import samebits\n", {"torch", OURS}),
        ("import samebits\noptimizer = make()\n", {"torch", DYNAMO, OURS}),
        ("\xff optim", {"torch", DYNAMO}),
        ("", {"torch"}),
    ],
)
def test_the_text_says_what_every_rank_will_need(tmp_path, text, modules):
    (tmp_path / "x.py").write_bytes(text.encode("latin-1"))
    found = modules_for(request(tmp_path))
    assert found[0] == "torch"
    assert set(found) == modules


def test_a_module_is_found_as_a_path_and_never_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    for path in ("package/__init__.py", "package/train.py", "package/tool/__main__.py", "elsewhere/other.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("import optimizers_that_nobody_has\n")
    for module in ("package.train", "package.tool", "other"):
        assert DYNAMO in modules_for(request(tmp_path, module=module)), module
    assert modules_for(request(tmp_path, module="nowhere.to_be_found")) == ("torch",)


def test_a_script_that_cannot_be_read_needs_torch_and_a_fresh_rank_nothing(tmp_path):
    assert modules_for(request(tmp_path, "missing.py")) == ("torch",)
    (tmp_path / "x.py").write_text("optim")
    assert modules_for(request(tmp_path, fresh=True)) == ()
