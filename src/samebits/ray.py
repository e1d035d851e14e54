"""Several nodes in a Ray cluster: Ray says where, and samebits does the rest. Needs the extra "ray".

    import ray, samebits.ray
    ray.init(runtime_env={"working_dir": "."})
    samebits.ray.run(["train.py", "--lr", "0.1"], nodes=2, ranks_per_node=4, resources={"GPU": 4})

Each node gets one agent, a `samebits run` that a Ray task starts and waits for. Ray places them on nodes of their own, hands
them the run's key through its object store, shows what they print, and starts one again that was killed, elsewhere if its
node is gone. Who meets whom, restarts of ranks and the bits are those of `samebits run --nnodes`; nothing else of Ray is used.

Runs in: the program that calls `run`, and a Ray worker on each node.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import uuid
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from samebits.errors import EnvironmentFailure, UsageError
from samebits.machine.clocks import readable
from samebits.machine.visible import visible
from samebits.protocol.installation import to_install

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.queue import Empty, Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ImportError as error:
    raise UsageError("samebits.ray needs Ray.", f"Install it: {to_install('ray')}.") from error

KEY = "SAMEBITS_KEY"
FOLLOW = (
    "import sys; from os import execv; from samebits.machine.processes import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); execv(sys.executable, [sys.executable, '-m', 'samebits', *sys.argv[2:]])"
)
"""Becomes `samebits` in a process that ends with the Ray worker that started it, whatever ends that one."""


@dataclass(frozen=True)
class Outcome:
    """How a run has ended."""

    codes: tuple[int, ...]
    """The exit code of each node's agent, 0 for success."""

    @property
    def is_good(self) -> bool:
        """Whether all of them succeeded."""
        return not any(self.codes)


class AgentKilled(EnvironmentFailure):
    """An agent was ended by a signal; Ray starts it again, as often as it may."""


def run(
    command: Sequence[str],
    *,
    nodes: int,
    min_nodes: int | None = None,
    ranks_per_node: int | None = None,
    resources: Mapping[str, float] | None = None,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    restarts: int = 3,
    patience_s: float = 300.0,
) -> Outcome:
    """Run a script on nodes of the Ray cluster to which this program is connected, and wait for its end.

    Args:
        command: the script and its arguments; its path is looked up on each node, from the folder in which Ray works there.
        nodes: how many, each a Ray node of its own.
        min_nodes: the run continues with so many when some are lost; None: with all of them.
        ranks_per_node: `-n` of `samebits run`; None lets it decide.
        resources: what Ray reserves on each node; None: a CPU for each rank.
        options: more of `samebits run`.
        env: variables of the agents.
        restarts: how often Ray starts one of them again that was killed.
        patience_s: how long Ray may take until all nodes have their place.

    Raises:
        UsageError: the cluster has no such nodes.
        EnvironmentFailure: an agent was killed more often than it may be.
    """
    wanted = dict(resources or {"CPU": float(ranks_per_node or 1)})
    group = placement_group([wanted] * nodes, strategy="STRICT_SPREAD")
    agents: list[Any] = []
    try:
        _wait(group, nodes, wanted, patience_s)
        address, port = ray.get(_task(_meeting_place, group, 0, wanted).remote())
        count = f"{min_nodes}:{nodes}" if min_nodes else str(nodes)
        words = ["run", "--nnodes", count, "--rdzv-endpoint", f"{address}:{port}", "--rdzv-id", uuid.uuid4().hex]
        words += [*(["-n", str(ranks_per_node)] if ranks_per_node else []), *options]
        # In a list, because Ray replaces a bare reference by what it stands for.
        key = [ray.put(secrets.token_hex(32))]
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        texts = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        for node in range(nodes):
            own = [*words, "--node-rank", str(node), *command]
            task = _task(_agent, group, node, wanted, max_retries=restarts, retry_exceptions=[AgentKilled])
            agents.append(task.remote(node, own, dict(env or {}), key, texts))
        return Outcome(_show(agents, texts))
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, EnvironmentFailure) else error from None
    except ray.exceptions.RayError as error:
        raise EnvironmentFailure(f"Ray lost an agent of the run: {visible(str(error).splitlines()[0])}") from error
    finally:
        _end(agents)
        remove_placement_group(group)


def _wait(group: PlacementGroup, nodes: int, wanted: Mapping[str, float], patience_s: float) -> None:
    if not ray.wait([group.ready()], timeout=patience_s)[0]:
        fit = sum(
            all(node["Resources"].get(name, 0.0) >= amount for name, amount in wanted.items())
            for node in ray.nodes()
            if node["Alive"]
        )
        needs = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
        raise UsageError(
            f"Ray found no place for {nodes} nodes with {needs} each in {patience_s:g} s: {fit} of its nodes are so large.",
            "Use fewer nodes or smaller `resources`, or wait until others have left the cluster.",
        )


def _task(function: Any, group: PlacementGroup, node: int, wanted: Mapping[str, float], **more: Any) -> Any:
    """A Ray task that holds all that is reserved on a node."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
    others = {name: amount for name, amount in wanted.items() if name not in ("CPU", "GPU")}
    held = {"num_cpus": wanted.get("CPU", 0.0), "num_gpus": wanted.get("GPU", 0.0), "resources": others}
    return ray.remote(function).options(scheduling_strategy=strategy, **held, **more)


def _meeting_place() -> tuple[str, int]:
    """This node's address, and a port that is free here."""
    address = ray.util.get_node_ip_address()
    with socket.create_server((address, 0)) as server:
        return address, server.getsockname()[1]


def _agent(node: int, words: Sequence[str], env: Mapping[str, str], key: Sequence[Any], texts: Queue) -> int:
    """Start `samebits` with these words, hand over what it prints, and return its exit code."""
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # Ray's, for its tasks
    variables = {**own, **env, KEY: ray.get(key[0])}
    pipe, command = subprocess.PIPE, [sys.executable, "-c", FOLLOW, str(os.getpid()), *words]
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        _hand_over(process, (process.stdout.fileno(), process.stderr.fileno()), texts)
        code = process.wait()
    finally:
        # The driver gives up: the agent ends as at Ctrl-C.
        if process.poll() is None:
            process.terminate()
            process.communicate()
    if code < 0:
        raise AgentKilled(f"The agent of node {node} was ended by {signal.Signals(-code).name}.")
    return code


def _hand_over(process: subprocess.Popen[bytes], pipes: Sequence[int], texts: Queue) -> None:
    """Until both pipes have ended, or the process, should another one hold them.

    Ray cancels a task between two lines of Python, so none may wait for long.
    """
    decoders = {pipe: getincrementaldecoder("utf-8")(errors="replace") for pipe in pipes}
    while decoders:
        is_over = process.poll() is not None
        ready = readable(list(decoders), 0.1)
        if is_over and not ready:
            return
        for pipe in ready:
            block = os.read(pipe, 1 << 16)
            texts.put((pipes.index(pipe), decoders[pipe].decode(block, final=not block)))
            if not block:
                del decoders[pipe]


def _show(agents: Sequence[Any], texts: Queue) -> tuple[int, ...]:
    """Print what the agents hand over, until all have ended or one has failed; their exit codes."""
    while True:
        ended, left = ray.wait(agents, num_returns=len(agents), timeout=0)
        is_quiet = False
        # Bounded, because others may continue to print when one has failed.
        for _ in range(100):
            try:
                stream, text = texts.get(timeout=0.2)
            except Empty:
                is_quiet = True
                break
            print(text, end="", file=(sys.stdout, sys.stderr)[stream], flush=True)
        # Raises what an agent has raised.
        ray.get(ended)
        if is_quiet and not left:
            return tuple(ray.get(agents))


def _end(agents: Sequence[Any]) -> None:
    """Cancel those that still run, and wait until they have ended."""
    if not agents:
        return
    left = ray.wait(agents, num_returns=len(agents), timeout=0)[1]
    for agent in left:
        with suppress(ray.exceptions.RayError):
            ray.cancel(agent, force=False)
    if left:
        ray.wait(left, num_returns=len(left), timeout=30)
