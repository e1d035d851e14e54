"""The nursery, and the process of a rank from its birth to the script's first line.

task = read the order in an unnamed file                  protocol/rank_task
environment, streams, guards, `breakpoint()`              entrance, debugger, guards/
random streams, then the script as `__main__`             script_main, protocol/rank_task
an exception -> failure record, exit code                 entrance
"""
