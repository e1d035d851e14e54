"""What a process does is seen from outside: its threads, its children, its data; not what samebits does beside it."""

import subprocess
import sys
from pathlib import Path

from samebits.machine.effort import effort
from samebits.machine.leftovers import descendants
from samebits.machine.processes import process_state
from tests.support.launching import until

BEGINNING = """
import os, socket, subprocess, sys, threading, time
from samebits.machine.effort import name_own_thread
SHORT_LOOP = "import time; end = time.monotonic() + 5\\nwhile time.monotonic() < end: pass"
def spin(seconds=60, name=""):
    if name:
        name_own_thread(name)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
"""


def names_of_threads(pid):
    return {name.read_text().strip() for name in Path(f"/proc/{pid}/task").glob("*/comm")}


def used_s(code, seconds):
    """The processor time that a process and its children used, once it is that much."""
    with subprocess.Popen([sys.executable, "-c", BEGINNING + code], stdin=subprocess.DEVNULL) as process:
        try:
            pids = lambda: (process.pid, *descendants(process.pid))  # noqa: E731 - children come and go
            before = effort(pids()).processor_s
            until(lambda: effort(pids()).processor_s - before > seconds, "some work")
        finally:
            process.kill()


def test_the_work_of_another_thread_and_that_of_a_child_count():
    used_s("threading.Thread(target=spin, daemon=True).start(); time.sleep(60)", 0.1)
    used_s("subprocess.run([sys.executable, '-c', SHORT_LOOP])", 0.1)


def test_the_work_of_children_that_have_ended_counts():
    used_s("while True: subprocess.run([sys.executable, '-c', 'pass'])", 0.1)


def test_the_work_of_samebits_s_own_threads_does_not_count():
    code = BEGINNING + "threading.Thread(target=spin, args=(60, 'watch'), daemon=True).start(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL) as process:
        try:
            until(lambda: "samebits:watch" in names_of_threads(process.pid), "the thread")
            whole, counted = process_state(process.pid).processor_s, effort([process.pid]).processor_s
            until(lambda: process_state(process.pid).processor_s - whole > 0.2, "its work")
            assert effort([process.pid]).processor_s - counted < 0.05
        finally:
            process.kill()


def test_data_that_comes_over_a_unix_socket_wakes_its_thread_up():
    code = """
here, there = socket.socketpair()
def feed():
    while True:
        time.sleep(0.01)
        there.send(bytes(100))
threading.Thread(target=feed, daemon=True).start()
while here.recv(100):
    pass
"""
    with subprocess.Popen([sys.executable, "-c", BEGINNING + code], stdin=subprocess.DEVNULL) as process:
        try:
            until(lambda: effort([process.pid]).wakes.get(process.pid, 0) > 20, "data")
        finally:
            process.kill()


def test_a_process_that_py_spy_looks_into_is_not_stopped(tmp_path):
    tasks = tmp_path / "7", tmp_path / "8"
    for folder in tasks:
        folder.mkdir()
    (tasks[0] / "stat").write_text("7 (python) t" + " 1" * 50)
    (tasks[0] / "status").write_text("Name:\tpython\nTracerPid:\t8\n")
    for name, is_stopped in (("py-spy", False), ("gdb", True)):
        (tasks[1] / "comm").write_text(f"{name}\n")
        assert process_state(7, tmp_path).is_stopped is is_stopped
    (tasks[0] / "stat").write_text("7 (python) T" + " 1" * 50)
    assert process_state(7, tmp_path).is_stopped
