"""Imported last of all by the server that ranks of the test kit are forked from, as the nursery does it for a run.

What is there by then stays in every rank. Left to the garbage collector it would be looked at, and so copied, by each:
0.1 s of a core.
"""

import gc

gc.freeze()
