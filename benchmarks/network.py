"""Several nodes on one machine: network namespaces on a bridge, each with one link, whose rate may be limited. Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence

LINK = "link0"
"""The name of each node's interface."""


def run(command: str) -> None:
    """Run a command of `ip` or `tc`. Raises CalledProcessError when it fails."""
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


@contextlib.contextmanager
def nodes(number: int, rate: str = "") -> Iterator[list[str]]:
    """Namespaces with addresses 10.91.7.1 and so on.

    Args:
        number: of nodes.
        rate: what each may send, as tc writes it (`1gbit`); empty for as much as the machine can.
    """
    label = f"lockstep-{os.getpid()}"
    hub, names = f"{label}-hub", [f"{label}-{node}" for node in range(number)]
    made = []
    try:
        for name in (hub, *names):
            run(f"ip netns add {name}")
            made.append(name)
        run(f"ip -n {hub} link add bridge type bridge")
        run(f"ip -n {hub} link set bridge up")
        for node, name in enumerate(names):
            run(f"ip -n {hub} link add port{node} type veth peer name {LINK} netns {name}")
            run(f"ip -n {hub} link set port{node} master bridge up")
            run(f"ip -n {name} addr add 10.91.7.{node + 1}/24 dev {LINK}")
            run(f"ip -n {name} link set {LINK} up")
            run(f"ip -n {name} link set lo up")
            if rate:
                run(f"tc -n {name} qdisc add dev {LINK} root tbf rate {rate} burst 256kb latency 50ms")
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def ranks(
    names: Sequence[str], sizes: Sequence[int], command: Sequence[str], *, port: int = 29611
) -> list[subprocess.Popen[str]]:
    """Start ranks on the nodes, as a launcher would that sets torchrun's variables."""
    started = []
    for node, (name, size) in enumerate(zip(names, sizes, strict=True)):
        for local in range(size):
            variables = {
                "RANK": sum(sizes[:node]) + local,
                "WORLD_SIZE": sum(sizes),
                "LOCAL_RANK": local,
                "LOCAL_WORLD_SIZE": size,
                "GROUP_RANK": node,
                "GROUP_WORLD_SIZE": len(sizes),
                "MASTER_ADDR": "10.91.7.1",
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": LINK,
                "OMP_NUM_THREADS": 1,
            }
            env = os.environ | {key: str(value) for key, value in variables.items()}
            started.append(subprocess.Popen(["ip", "netns", "exec", name, *command], env=env, text=True))
    return started
