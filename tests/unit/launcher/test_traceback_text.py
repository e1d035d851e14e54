"""A traceback keeps the user's frames and says how many others there are."""

from __future__ import annotations

from pathlib import Path

import samebits
from samebits.launcher.terminal.failure_block import fold_libraries

MINE = '  File "/home/me/samebits/train.py", line 35, in <module>\n    loss = model(x)\n           ^^^^^^^^\n'
TORCH = '  File "/venv/lib/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl\n    return forward_call(*args)\n'
IMPORT = '  File "<frozen importlib._bootstrap>", line 1176, in _find_and_load\n'
SAMEBITS = f'  File "{Path(samebits.__file__).parent}/rank/run/run.py", line 12, in backward\n'
HEAD, CAUSE = "Traceback (most recent call last):\n", "RuntimeError: shapes\n  File of the message\n"
BETWEEN = "\nDuring handling of the above exception, another exception occurred:\n\n"


def test_frames_of_libraries_are_one_line_and_the_cause_is_last() -> None:
    assert fold_libraries(HEAD + MINE + TORCH * 3 + CAUSE) == (
        HEAD + MINE + "  3 frames inside torch: the log has them\n" + CAUSE
    )


def test_each_run_of_foreign_frames_is_one_line_between_the_users_own() -> None:
    text = HEAD + SAMEBITS + MINE + TORCH + IMPORT + MINE + CAUSE + BETWEEN + HEAD + MINE + TORCH + CAUSE
    lines = fold_libraries(text)
    assert lines.count("train.py") == 3
    assert [line for line in lines.splitlines() if "inside" in line] == [
        "  1 frame inside samebits: the log has it",
        "  2 frames inside torch and importlib: the log has them",
        "  1 frame inside torch: the log has it",
    ]
    assert BETWEEN in lines


def test_where_no_frame_would_be_left_all_stay() -> None:
    for text in (HEAD + TORCH + SAMEBITS + CAUSE, CAUSE, ""):
        assert fold_libraries(text) == text
