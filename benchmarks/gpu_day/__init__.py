"""The first hour on a machine with GPUs, as one command: `make gpu-day`.

what is there                                         hardware (asked in a process of its own, `programs/looking.py`)
-> blocks of tasks, independent of each other         blocks, tasks
-> each task is a process with a limit, each block has ten minutes     carrying_out
-> what its output says: ok, missed, FAILED, ...      judging, outcome
-> a table as it goes, and a file of JSON             table, record

What is tried is in `programs/`. All of it runs on the pretended GPUs of the tests too, where times mean nothing.
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("samebits") is None:  # a checkout alone will do
    sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
