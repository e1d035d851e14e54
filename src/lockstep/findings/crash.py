"""A rank that its own code has crashed."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="crash",
    title="A rank has crashed in native code",
    seen=(
        "A signal of the processor ended it (SIGSEGV, SIGBUS, SIGFPE, SIGILL, or SIGABRT); Python's fault handler "
        "wrote the stack of that moment."
    ),
    example="""\
FAILED    rank 1, step 2, optimizer: killed by signal 11 (SIGSEGV)
  last at /home/ada/train.py:32
    for x, y in step:

  | Fatal Python error: Segmentation fault
  |
  | Current thread 0x00007fadaa41ab80 (most recent call first):
  |   File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  |   File "/home/ada/train.py", line 50 in <module>
""",
    why=(
        "A C or C++ extension has a bug, was built for another torch or another processor, or a memory-mapped "
        "file became shorter (SIGBUS)."
    ),
    what_to_do=(
        "Look at the first lines of the stack: the extension that they name is the one to update or to leave out.",
        "Run with `-n 1` and one thread: if it crashes there too, it is not about ranks.",
        "`lockstep doctor` names versions that do not fit together.",
    ),
)
