"""What a person sees of a run: everything that reaches the terminal passes through here.

    pipes of the ranks -> log, and lines with labels     rank_streams, rank_log, rank_output
    gauges -> the progress line                          progress
    decisions, endings -> the launcher's own lines       report, saying
    how it failed -> one block, printed last             failure_block
    all of them -> Terminal                              terminal, columns

`losses` says once what could not be written.
"""
