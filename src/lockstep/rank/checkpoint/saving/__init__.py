"""What a run writes so that it can resume, and what it reads back.

save_state:    refuse -> collect -> agree -> rank 0 writes, all wait    state
automatic:     the same, but a process of its own writes, and training continues  automatic, async_checkpoint/, ring
load_state:    read and check everything -> then change everything      load_plan, saved_streams; resume
track:         names objects for every state                                    tracking
at a URL:      the same in a private folder, copied there or from there         at_url
save_weights:  one safetensors file with the keys of one device         weights
"""
