"""Tests that need pretended GPUs in their own process are collected in such a process only (`python -m tests.pretend`)."""

import os

collect_ignore = [] if os.environ.get("PRETENDED_GPUS") else ["rehearsed"]
