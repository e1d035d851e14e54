"""Which address the nodes meet at: decided from what the machine says, or refused in a sentence that lists what there is."""

import ipaddress
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.launcher.nodes import interfaces
from samebits.launcher.nodes.address import Endpoint, Interface, ListenAddress, View, choose
from samebits.launcher.nodes.interfaces import PortTaken, listen, look, own_addresses, resolve, source_to
from tests.support.promises import promise

LO, ETH, IB, SIX = (
    Interface("lo", "127.0.0.1"),
    Interface("eth0", "10.0.0.1"),
    Interface("ib0", "10.9.0.1"),
    Interface("eth0", "fd00::1"),
)
OWN = (LO, ETH, IB, SIX)


def chosen(
    host="host0",
    resolved=("10.0.0.1",),
    sources=(),
    local=None,
    is_first=True,
    are_elsewhere=None,
    named=(),
    to_others=(),
):
    view = View(OWN, tuple(resolved), tuple(sources), tuple(named), tuple(to_others))
    return choose(Endpoint(host, 29500), view, local=local, is_first=is_first, are_elsewhere=are_elsewhere)


def refused(**asked):
    with pytest.raises(UsageError) as refusal:
        chosen(**asked)
    return str(refusal.value)


def test_node_0_listens_where_its_endpoint_says():
    choice = chosen()
    assert (choice.own, choice.gate) == (ETH, ListenAddress("10.0.0.1", 29500))


def test_another_node_uses_the_interface_that_leads_to_the_endpoint():
    choice = chosen(resolved=["10.9.0.7"], sources=["10.9.0.1"], is_first=False)
    assert (choice.own, choice.gate) == (IB, ListenAddress("10.9.0.7", 29500))


@pytest.mark.parametrize(("local", "named"), [("ib0", ()), ("10.9.0.1", ()), ("host0-ib", ("10.9.0.1",))])
def test_an_interface_an_address_or_a_name_that_is_asked_for_is_used(local, named):
    assert chosen(local=local, named=named).own == IB
    away = chosen(resolved=["10.9.0.7"], sources=["10.0.0.1"], local=local, named=named, is_first=False)
    assert (away.own, away.gate) == (IB, ListenAddress("10.9.0.7", 29500, "10.9.0.1"))


def test_of_two_addresses_of_an_interface_the_endpoints_kind_is_used():
    assert chosen(resolved=["fd00::1"], local="eth0").own == SIX
    assert (
        chosen(resolved=["fd00::9", "10.0.0.9"], sources=["fd00::1", "10.0.0.1"], is_first=False).gate.address
        == "10.0.0.9"
    )
    assert chosen(resolved=["fd00::9"], sources=["fd00::1"], is_first=False).own == SIX


def test_node_0_on_another_machine_than_its_endpoint_is_refused():
    printed = refused(host="host9", resolved=["10.0.0.9"])
    assert printed.startswith(
        "host9 in --rdzv-endpoint is 10.0.0.9, which is not an address of this machine, and this is node 0."
    )
    assert printed.endswith("--local-addr: 10.0.0.1 (eth0), 10.9.0.1 (ib0), fd00::1 (eth0), 127.0.0.1 (lo).")
    assert chosen(host="nat", resolved=["203.0.113.1"], local="eth0").gate == ListenAddress("10.0.0.1", 29500), (
        "forwarded to here"
    )


def test_a_host_name_that_is_the_loopback_here_is_refused_for_others_mean_another_machine():
    printed = refused(resolved=["127.0.1.1"])
    assert printed.startswith("On this machine host0 is 127.0.1.1 (see /etc/hosts), which no other machine can reach.")
    assert "10.0.0.1 (eth0)" in printed
    assert "10.0.0.1" not in refused(resolved=["127.0.1.1"], is_first=False), "another node's addresses are no help"
    assert chosen(resolved=["127.0.1.1", "10.0.0.1"]).own == ETH


def test_where_a_launcher_names_the_others_node_0_listens_on_the_way_to_them():
    message = {"resolved": ["127.0.1.1"], "are_elsewhere": True, "to_others": ["10.9.0.1"]}
    assert chosen(**message).gate == ListenAddress("10.9.0.1", 29500)
    assert "10.9.0.1" not in refused(**message, is_first=False), "that is for node 0 to know"
    assert "which no other machine can reach" in refused(**{**message, "to_others": ["127.0.0.1"]})


def test_the_loopback_is_used_when_it_is_asked_for_and_refused_when_nodes_are_elsewhere():
    assert chosen(host="localhost", resolved=["127.0.0.1"]).own == LO
    assert (
        chosen(host="127.0.0.1", resolved=["127.0.0.1"], sources=["127.0.0.1"], is_first=False).gate.address
        == "127.0.0.1"
    )
    assert "is each machine itself" in refused(host="localhost", resolved=["127.0.0.1"], are_elsewhere=True)
    assert "cannot reach 127.0.0.1 (lo)" in refused(local="lo", are_elsewhere=True)


def test_an_interface_that_does_not_exist_is_refused_with_those_that_do():
    for local in ("eth7", "*", "0.0.0.0", "::", "", "10.0.0.77"):
        printed = refused(local=local)
        assert printed.startswith(f"{local!r} in --local-addr is neither an address nor an interface of this machine.")
        assert "10.9.0.1 (ib0)" in printed


def test_no_route_to_the_endpoint_is_a_sentence():
    assert refused(resolved=["10.5.0.1"], sources=[""], is_first=False).startswith(
        "No interface of this machine leads to host0 (10.5.0.1)."
    )


ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@promise(
    "shut",
    "Nobody is told to listen on all interfaces, whatever endpoint and addresses are",
)
@given(st.lists(ADDRESSES, min_size=1, max_size=4), st.booleans(), st.sampled_from([None, False, True]), st.data())
def test_nobody_is_ever_told_to_listen_on_all_interfaces(resolved, is_first, are_elsewhere, data):
    own = tuple(Interface(f"if{n}", address) for n, address in enumerate([*resolved, "127.0.0.1"]))
    own = tuple(one for one in own if not ipaddress.ip_address(one.address).is_unspecified)
    local = data.draw(st.sampled_from([None, "if0", "*", "0.0.0.0", *resolved]))
    view = View(own, tuple(resolved), tuple(data.draw(st.sampled_from([a, ""])) for a in resolved))
    try:
        choice = choose(Endpoint("host", 1), view, local=local, is_first=is_first, are_elsewhere=are_elsewhere)
    except UsageError:
        return
    assert choice.own in own
    assert not (are_elsewhere and ipaddress.ip_address(choice.own.address).is_loopback)
    assert not is_first or choice.gate == ListenAddress(choice.own.address, 1)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["host0", "host0:", "::1", "[::1]", "fd00::7"], "has no port"),
        (
            [":29500", "", "::1:29500", "http://a:1", "a b:1", "[host]:1", "[10.0.0.1]:1", "-x:1", "..:1"],
            "names no host",
        ),
        ([f"host:{port}" for port in ("0", "65536", "x", "-1", "²", "1.5")], "from 1 to 65535"),
    ],
)
def test_an_endpoint_that_is_none_is_refused(texts, words):
    for text in texts:
        with pytest.raises(UsageError, match=words):
            Endpoint.parse(text)


def test_an_endpoint_is_read():
    assert Endpoint.parse("node-1.cluster:29500") == Endpoint("node-1.cluster", 29500)
    assert Endpoint.parse("[fd00::1]:29500") == Endpoint("fd00::1", 29500)
    assert str(ListenAddress("fd00::1", 29500)) == "[fd00::1]:29500"


def test_the_machine_knows_its_addresses_and_its_way_to_them():
    own = own_addresses()
    assert LO in own
    for interface in own:
        assert source_to(interface.address) == interface.address
    view = look(Endpoint("localhost", 29500), "eth7")
    assert view.own == own and "127.0.0.1" in view.resolved


def test_a_name_without_an_address_is_refused():
    with pytest.raises(
        UsageError, match=r"^nowhere\.invalid, the host in --rdzv-endpoint, has no address on this machine \(.+\)"
    ):
        look(Endpoint("nowhere.invalid", 1), None)


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(interfaces, "RESOLVE_S", 0.05)
    answered = threading.Event()
    with pytest.raises(UsageError, match="no name server answered"):
        resolve("slow", "x", lambda *_args, **_more: answered.wait() and [])
    answered.set()


def test_a_port_in_use_is_a_sentence():
    with listen(ListenAddress("127.0.0.1", 0)) as holder:
        place = ListenAddress("127.0.0.1", holder.getsockname()[1])
        with pytest.raises(PortTaken, match=rf"^{place} is in use by another process. End it, or choose another port"):
            listen(place)


def test_an_address_that_has_gone_is_a_sentence():
    with pytest.raises(UsageError, match=r"^192\.0\.2\.77 is no longer an address of this machine"):
        listen(ListenAddress("192.0.2.77", 0))


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::"])
def test_all_interfaces_are_never_listened_on(address):
    with pytest.raises(ValueError, match="one named address"):
        listen(ListenAddress(address, 0))


def test_a_socket_listens_where_it_should():
    with listen(ListenAddress("127.0.0.1", 0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
