"""A network interface that is not there."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="wrong-interface",
    title="The network interface that was named does not exist",
    seen="Gloo or NCCL was told to use an interface, and this machine has none of that name.",
    example="""\
FAILED    rank 0: RuntimeError: [enforce fail at .../gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find
          address for: eth7
  at /home/ada/train.py:2
    dist.init_process_group("gloo")
""",
    why=(
        "`GLOO_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME` comes from another machine's script: interfaces are called "
        "differently there."
    ),
    what_to_do=(
        "Unset `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME`; ranks on one machine need neither.",
        "`ip -brief address` lists the interfaces of this machine.",
    ),
)
