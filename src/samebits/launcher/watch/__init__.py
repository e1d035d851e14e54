"""What a run does, or did, from its folder alone: for `samebits watch` and `samebits diagnose`.

RUN: a name, a folder, or nothing for the newest           places
the folder -> one row for each rank                        view
rows -> a table on the terminal                            table
what went wrong: the outcome, the stalls that were said, those that there are now    diagnosis
"""
