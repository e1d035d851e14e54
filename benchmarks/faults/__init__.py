"""`make faults`: the same faults under samebits and under torchrun; what is said, after how long, and what is left.

one row: a fault, how it is started on each side       catalogue
one run of a script to which it happens                trial
what its lines and files tell, pure                    outcome
rows for people                                        table
"""
