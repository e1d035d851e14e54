"""The nursery: a process that imports torch once and forks every rank from there, in tens of milliseconds.

    launcher:  NurseryHandle(modules)                   handle, kept (what to import)
    nursery:   import, then for each message            rank/start/nursery
                   fork a rank                          -> rank/start
                   tell how a rank ended
    launcher:  the environment of each rank             rank_variables

`protocol.nursery_messages` is what both say; `kept` is a nursery between two calls of spawn.
"""
