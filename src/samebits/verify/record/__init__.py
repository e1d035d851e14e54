"""`samebits record`: what a run has recorded, shown, compared with another one's, and published. Nothing is made again here.

what a record says:            description, with conditions for what its bits depend on
two records:                   comparison
to be given away:              publishing, and private for what must not be in it
on a terminal:                 report
"""
