"""The nursery: a process that imports torch once and forks every rank from there, in tens of milliseconds.

    launcher:  NurseryHandle(modules)                   handle, kept (what to import), channel (messages)
    nursery:   import, then for each message            process
                   fork a rank                          -> ../in_rank
                   tell how a rank ended
    launcher:  the environment of each rank             rank_variables

`store_server` is a TCPStore for scripts that want one at MASTER_PORT; `kept` is a nursery between two calls of spawn.
"""
