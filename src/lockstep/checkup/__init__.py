"""`lockstep doctor`: whether this machine can run, and what to do where it cannot.

facts = what torch says, in an interpreter of its own              torch_facts
rows of software, hardware and surroundings, each with its fix     software, hardware, surroundings
-> Report, shown                                                   examination, report, table
"""
