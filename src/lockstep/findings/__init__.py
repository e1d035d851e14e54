"""What is known about each kind of trouble: one file each, with what is seen, why, and what to do.

    end          how a run failed      -> its finding
    stall        ranks that are waited for -> their finding
    catalogue    all of them
    finding      what each has

The terminal, `lockstep diagnose` and docs/findings/ take their words from here. Pure.
"""
