"""What a script keeps itself and no state holds, found in its source at the first step.

harmless         types and calls of libraries by what they do, as data
objects, source  what is known of an object without running anybody's code; the syntax of a file
values, places   what a turn of a loop works on, and what it reads, assigns and changes of what was there before
functions, calls, expressions, turn
one turn, followed through its source
found            the names, each once
script_state     which loops: `named_in`
labels           what becomes of the names: said, kept beside states, put beside the bits
uncounted, left  writes to tensors that torch's counters don't show; what a loop leaves for the lines behind it
"""
