"""What the user sees of a run: everything that reaches the terminal passes through here.

    pipes of the ranks -> log, and lines with labels     rank_output
    gauges -> the progress line                          progress
    decisions, endings -> the launcher's own lines       report, terminal
    what went wrong -> one block: who, where, why, help  failure_block
    all of them -> Terminal                              terminal

`cases` says once what could not be written.
"""
