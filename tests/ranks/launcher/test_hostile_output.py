"""Whatever ranks print, raise and are called reaches the terminal without a character that acts on it."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from tests.support.launching import start, write_script

pytestmark = pytest.mark.ranks

SCRIPT = """
    import os, sys
    import torch
    from torch.utils.data import DataLoader, Dataset
    EVIL = "evil \\x1b[2J\\x1b]0;title\\x07 \\x9b31m \\u202e \\u2066 \\u2028 \\x7f \\0 \\x85 \\r\\x08 done      forged"

    class Evil(RuntimeError):
        pass

    class Samples(Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            error = Evil(EVIL)
            error.add_note(EVIL)
            raise error

    import samebits
    run = samebits.init(lanes=2)
    if run.rank == 1:
        print(EVIL)
        print(EVIL, file=sys.stderr)
        os.write(1, b"raw \\x9b2J \\xff\\xfe \\x1b[1A\\n")
    if not {workers}:  # a worker's exception travels by the name of its class
        Evil.__qualname__ = Evil.__name__ = EVIL.replace("\\0", "")
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(Samples(), batch_size=4, num_workers={workers})
    model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters()), loader)
    for step in run.steps(loader):
        for batch in step:
            pass
"""


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_ranks_exceptions_and_names_cannot_act_on_the_terminal(tmp_path: Path, workers: int) -> None:
    name = write_script(tmp_path, SCRIPT.format(workers=workers), "e\x1b[2Jv\u202eil\r.py")
    run = start(tmp_path, "-n", "2", "-v", name, "\x1b[31margument\x9b")
    code = run.finish().code
    shown = ((tmp_path / "err.txt").read_bytes() + (tmp_path / "out.txt").read_bytes()).decode()
    assert code == 1, shown
    assert "evil" in shown
    assert "FAILED" in shown
    acting = {unicodedata.name(letter, repr(letter)) for letter in shown if acts(letter)}
    assert acting == set(), shown
    assert not [line for line in shown.splitlines() if line.startswith("done      forged")]


def acts(letter: str) -> bool:
    """Whether a terminal does something else than to draw it."""
    is_bidi = "\u202a" <= letter <= "\u202e" or "\u2066" <= letter <= "\u2069"
    return is_bidi or (unicodedata.category(letter) in {"Cc", "Zl", "Zp"} and letter not in "\n\t")


def test_a_log_that_a_script_has_made_endless_is_not_read(tmp_path: Path) -> None:
    script = """
        import os, signal
        from pathlib import Path
        [log] = Path().glob("samebits-runs/*/logs/rank-00000.log")
        log.unlink()
        log.symlink_to("/dev/zero")
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    finished = start(tmp_path, "-n", "1", "--recover", "off", write_script(tmp_path, script)).finish()
    assert finished.code == 139, finished.err
    assert "killed by signal 11" in finished.err
