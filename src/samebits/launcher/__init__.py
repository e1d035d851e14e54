"""Start, watch and stop the ranks of a run. Plain Python, on the user's terminal.

request -> how many ranks, threads, devices        request, sizing
launch(request):                                   launcher
    a run folder                                   folder
    a nursery, which forks the ranks               nursery/ -> rank/start
    start, watch, stop, start again                supervise/; signals, verdict, recovery decide, purely
    other nodes                                    nodes/
    what is displayed                              terminal/
who is stuck, and why                              diagnosis/, watch/
spawn(function) does the same from Python          spawn/
"""
