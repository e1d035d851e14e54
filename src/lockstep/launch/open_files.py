"""How many files this process may have open."""

import resource


def open_file_limit() -> int:
    """The limit in force; -1 for none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if limit == resource.RLIM_INFINITY else limit
