"""A process with so many open files that new descriptors are above 1023, which `select.select` refuses."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

MANY = 1100


@contextmanager
def many_open_files() -> Iterator[None]:
    """Inside, each new descriptor of this process is a large number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with ExitStack() as held:
            for _ in range(MANY):
                held.enter_context(open(os.devnull))  # noqa: PTH123
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
