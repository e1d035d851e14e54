"""Start, watch and stop the ranks of a run on one node. Plain Python, a room for each process.

request -> how many ranks, threads, devices        request, sizing
launch(request):                                   launcher
a run folder                                   folder
a nursery, which forks the ranks               nursery/ -> in_rank/, guards/
start, watch, stop                             supervise/; signals, verdict and verdict decide, purely
what a person sees                             screen/
spawn(function) does the same from Python          spawning/
"""
