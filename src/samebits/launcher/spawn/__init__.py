"""`samebits.spawn`: call a function on several ranks from a program or a notebook.

parcel = pack(function, args)           parcel
launch(request with the parcel)         ../launcher
returns, or raises what a rank raised   spawn
"""
