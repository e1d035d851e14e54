"""Files that outlive a run: weights, and the state from which a run resumes.

Bottom up: `exact_json` writes values that JSON cannot express, `tensor_file` is one safetensors file, `manifest` says
what a state folder holds, `folder` replaces it in one move, `completion` writes its last files. `model_state` and
`optimizer_state` turn objects into named tensors and back; `inventory` finds out which rank holds which tensor and
streams them to rank 0. `torch_file`, `weights_keys` and `weights` read weights that others wrote. `comparison` and `export`
read a `whole_state` without a run, for `lockstep checkpoint`. States at URLs are in
`protocol.state_files`. Nothing here reads or writes a pickle that could run code.
"""
