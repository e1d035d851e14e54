"""What a script keeps itself and no state holds, found in its source at the first step.

harmless                types and functions of libraries, as data
objects, source         what can be asked of an object without running anybody's code; the syntax of a file
values, places          what a turn of a loop works on, and where names are found
statements, expressions, calls, turn
one turn, followed through its source
script_state            which objects count, and which loops: `named_in`
labels                  what becomes of the names: said, kept beside states, put beside the bits
uncounted               writes to tensors that torch's counters don't show
"""
