"""What a script keeps itself and no state holds, found in its source at the first step.

objects, source   what is known of an object without running anybody's code, lists of types and calls as data; a file's syntax
values, places    what a turn of a loop works on, and what it reads, assigns and changes of what was there before
calls, expressions, turn
                  one turn, followed through its source
found             the names, each once
script_state      which loops: `named_in`; writes to tensors that torch's counters don't show
labels            what becomes of the names: reported, kept beside states, put beside the bits
read_after_loop   what a loop leaves for the lines behind it
"""
