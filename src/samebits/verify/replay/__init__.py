"""`samebits replay`: a step of a run that was, again, with its own bits.

`past_run` finds the run, its values and its states; `values` compares what was logged; `replay` carries out; `report` prints.
"""
