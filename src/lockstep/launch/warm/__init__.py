"""A nursery that waits: `lockstep warm` starts it, the next `lockstep run` of the same kind begins at once.

    `lockstep warm`, or a run that is to keep one:   starting
    the process that waits, with torch imported:     process -> waiting (who asks, and what it gets)
                                                     stamps, variables (is anything stale?)
    `lockstep run`, before it imports anything:      client (asks, then forwards signals and the exit code)
        its launcher, forked where torch is:         standing_in
        the nursery of that launcher, forked too:    ../nursery/spare

`place` is the folder of the sockets. client, place and asked import next to nothing: every `lockstep run` loads them first.
"""
