"""`lockstep doctor`: whether this machine can run, and what to do where it cannot.

One file per check: each turns what was read from the machine into rows (`row`) by a pure function, so that every machine
can be tested on any. `examination` reads and asks all; `torch_facts` asks torch in a short-lived interpreter of its own;
`table` shows the rows.
"""
