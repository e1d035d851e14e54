"""Looking twice: what a script keeps itself, found by comparing what it holds at two places.

A look runs no code that is not ours. What it could not read is "not looked at", never "the same"; what it finds labels a run and
delays or ends none.

    looks       when a run looks, and what was found         labels    says it, and keeps it for the launcher
    snapshot    one look: names, each with sixteen bytes     held      what is left out: every state holds it
    reading     a value's bytes, by its exact type           frames    the script's frames, variables and modules
    verdict     two looks: what changed and is read          source    what the syntax of a loop says of a name
"""
