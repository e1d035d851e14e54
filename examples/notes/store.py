"""The TCPStore under torch.distributed (note d): set, get that waits, add, wait with a time limit.

    $ samebits run -n 2 examples/notes/store.py
    rank 1 asks for a key that nobody has set yet
    rank 0 sets it
    rank 1 got b'from rank 0'
    both have counted: 2
    a wait for a key that never comes ends with DistStoreError
    a store that tells watchers of every change (watch_key): False

A key-value map in one process. `get` and `wait` block until the key is there; setting a key again notifies nobody.
"""

import datetime as dt

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
said = [None]
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    said = [store.port]  # 0 asked for any free port; this one it is
dist.broadcast_object_list(said)
if rank == 1:
    store = dist.TCPStore("127.0.0.1", said[0], is_master=False)
    print("rank 1 asks for a key that nobody has set yet", flush=True)
    store.set("rank 1 is about to ask", "yes")
    print(f"rank 1 got {store.get('greeting')}")
else:
    store.wait(["rank 1 is about to ask"])
    print("rank 0 sets it", flush=True)
    store.set("greeting", "from rank 0")

store.add("counted", 1)
dist.barrier()
if rank == 0:
    print(f"both have counted: {store.add('counted', 0)}")
    try:
        store.wait(["never"], dt.timedelta(milliseconds=50))
    except dist.DistStoreError as error:
        print(f"a wait for a key that never comes ends with {type(error).__name__}")
    print(f"a store that tells watchers of every change (watch_key): {hasattr(store, 'watch_key')}")
dist.barrier()  # the store lives in rank 0, so rank 0 leaves last
dist.destroy_process_group()
