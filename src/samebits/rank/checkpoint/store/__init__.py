"""Where checkpoints go: the `Store`, and how one is written while training continues.

a state is due:   wait for the one before -> refuse, collect, agree -> copy -> hand over     checkpointer
the copy:         the files as they will be, in anonymous memory that is used again          memory
who copies what:  each rank what it alone holds, and a part of what all hold                 memory
the process:      stage, hash, flush, put in place, remove old ones; ends with its rank      writer (its handle), process
a step has ended: what the process reports is displayed                                      checkpointer

`process`, `writer` and `store` are plain Python.
"""
