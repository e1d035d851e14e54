"""What grows with the number of ranks of one node: time, memory, descriptors, keys. `python -m benchmarks growth`.

command        the command line
    runs       starts the ranks, kills one of them, waits until all are gone
        programs   what runs in the ranks: a plain script, and one with a prepared step
        counting   what /proc tells of a process
    quantities what is told, and how it may grow at most
    fitting    how it grew
"""
