"""`samebits doctor`: whether this machine can run, and what to do where it cannot.

facts = what torch says, in an interpreter of its own      torch_facts
rows of what was found, each with its fix                  examination
-> Report, shown                                           report
"""
