"""`breakpoint()` in a launched script: rank 0 has the terminal, the others wait in their next exchange."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from pathlib import Path

import pytest

from tests.support.launching import LIMIT_S, start, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    secret = 41
    breakpoint()
    total = torch.ones(1)
    dist.all_reduce(total)
    print("sum", total.item())
"""


def read_until(terminal: int, text: str) -> str:
    """What the terminal shows until `text` appears."""
    shown = b""
    while text.encode() not in shown:
        ready, _, _ = select.select([terminal], [], [], LIMIT_S)
        assert ready, f"nothing more came after {shown!r}"
        shown += os.read(terminal, 4096)
    return shown.decode()


@promise(
    "never-stuck-nothing-left-behind",
    "`breakpoint()` works in rank 0 while the others wait",
)
@pytest.mark.thorough
def test_commands_from_a_pipe_reach_rank_0(tmp_path: Path) -> None:
    run = start(tmp_path, "-n", "2", write_script(tmp_path, SCRIPT), stdin=subprocess.PIPE)
    assert run.process.stdin is not None
    run.process.stdin.write(b"p secret + 1\nc\n")
    run.process.stdin.close()
    ended = run.finish()
    assert ended.code == 0, ended.err
    assert "(Pdb) 42" in ended.out
    assert ended.out.endswith("sum 2.0\n")
    assert "script.py(6)<module>()" in ended.out, "the debugger stops in the script"


@pytest.mark.thorough
def test_control_c_at_the_prompt_stays_at_the_prompt(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    try:
        run = start(tmp_path, "-n", "2", write_script(tmp_path, SCRIPT), stdin=terminal)
        run.wait_for("(Pdb) ")
        run.process.send_signal(2)
        run.wait_for("--KeyboardInterrupt--")
        os.write(controller, b"p secret + 2\n")
        run.wait_for("43")
        os.write(controller, b"c\n")
        ended = run.finish()
    finally:
        os.close(controller)
        os.close(terminal)
    assert ended.code == 0, ended.err
    assert "sum 2.0" in ended.out
