"""Two launchers prove the run's key to each other; a proof fits one connection, one role and one address."""

import pytest

from samebits.launcher.nodes.session import (
    GREETING_BYTES,
    HELLO_BYTES,
    MAGIC,
    PROOF_BYTES,
    WRONG_ADDRESS,
    WRONG_KEY,
    CallerHello,
    HasNoKey,
    HostHello,
    NotSamebits,
    WrongAddress,
    WrongKey,
    address_bytes,
)
from tests.support.promises import promise

KEY, OTHER = b"a key" * 8, b"another" * 5
HERE = address_bytes("10.0.0.1", 29500)


def talk(host, caller, own=(HERE,)):
    answer, keys = host.answer(caller.hello(host.greeting), own)
    return keys, caller.session(host.greeting, answer)


def test_both_sides_get_the_same_keys_two_of_them_and_new_ones_each_time():
    first, same = talk(HostHello(KEY), CallerHello(KEY, HERE))
    second, _ = talk(HostHello(KEY), CallerHello(KEY, HERE))
    assert first == same
    assert len({first.from_caller, first.from_host, second.from_caller, second.from_host}) == 4
    assert repr(KEY)[2:-1] not in f"{HostHello(KEY)}{CallerHello(KEY, HERE)}" and "from_host" not in repr(first)


def test_the_sizes_are_fixed_so_a_stranger_may_send_so_much_and_no_more():
    host, caller = HostHello(KEY), CallerHello(KEY, HERE)
    hello = caller.hello(host.greeting)
    assert (len(host.greeting), len(hello)) == (GREETING_BYTES, HELLO_BYTES)
    assert len(host.answer(hello, [HERE])[0]) == PROOF_BYTES == len(WRONG_KEY) == len(WRONG_ADDRESS)


@promise(
    "shut",
    "Both sides of a connection between nodes refuse another key, and a proof that is repeated, sent "
    "back or led to another address",
    also=["test_a_proof_of_an_earlier_connection_is_worth_nothing"],
)
def test_another_key_is_refused_by_both():
    host = HostHello(KEY)
    with pytest.raises(WrongKey):
        host.answer(CallerHello(OTHER, HERE).hello(host.greeting), [HERE])
    false_host, caller = HostHello(OTHER), CallerHello(KEY, HERE)
    answer, _ = false_host.answer(CallerHello(OTHER, HERE, caller.nonce).hello(false_host.greeting), [HERE])
    for answered in (answer, WRONG_KEY, bytes(PROOF_BYTES)):
        with pytest.raises(WrongKey):
            caller.session(false_host.greeting, answered)


def test_a_proof_of_an_earlier_connection_is_worth_nothing():
    first, again = HostHello(KEY), HostHello(KEY)
    hello = CallerHello(KEY, HERE).hello(first.greeting)
    first.answer(hello, [HERE])
    with pytest.raises(WrongKey):
        again.answer(hello, [HERE])


def test_a_proof_that_is_sent_back_is_worth_nothing():
    host, caller = HostHello(KEY), CallerHello(KEY, HERE)
    with pytest.raises(WrongKey):
        caller.session(host.greeting, caller.hello(host.greeting)[-PROOF_BYTES:])
    other = HostHello(KEY, nonce=host.nonce)
    answer, _ = other.answer(caller.hello(other.greeting), [HERE])
    with pytest.raises(WrongKey):
        host.answer(MAGIC + caller.nonce + HERE + answer, [HERE])


def test_whoever_is_led_to_another_node_0_with_the_same_key_is_told():
    host, caller = HostHello(KEY), CallerHello(KEY, address_bytes("10.0.0.9", 29500))
    hello = caller.hello(host.greeting)
    with pytest.raises(WrongAddress):
        host.answer(hello, [HERE])
    with pytest.raises(WrongAddress):
        caller.session(host.greeting, WRONG_ADDRESS)
    changed = hello[:48] + HERE + hello[-32:]
    with pytest.raises(WrongKey):
        host.answer(changed, [HERE])


def test_an_address_may_be_meant_by_another_name_of_node_0():
    outside = address_bytes("192.0.2.7", 29500)
    keys, same = talk(HostHello(KEY), CallerHello(KEY, outside), own=[HERE, outside])
    assert keys == same
    assert address_bytes("::ffff:10.0.0.1", 29500) == HERE != address_bytes("10.0.0.1", 29501)


def test_a_node_0_without_a_key_says_so_and_lets_nobody_in():
    host = HostHello(None)
    with pytest.raises(HasNoKey):
        CallerHello(KEY, HERE).hello(host.greeting)
    with pytest.raises(WrongKey):
        host.answer(CallerHello(KEY, HERE).hello(HostHello(KEY, host.nonce).greeting), [HERE])


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n".ljust(GREETING_BYTES), MAGIC])
def test_what_else_may_answer_is_no_node_0(greeting):
    with pytest.raises(NotSamebits):
        CallerHello(KEY, HERE).hello(greeting)
