"""Every byte of a state is copied by one rank that holds it, and all copy about as much."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits.rank.checkpoint.format.sources import Source, inventory_of, sources
from samebits.rank.checkpoint.format.state import State, TensorSet
from samebits.rank.checkpoint.format.tensor_file import Described, TensorFileWriter, order_of
from samebits.rank.checkpoint.store.checkpointer import copy_pieces, lay_out
from samebits.rank.checkpoint.store.memory import PIECE_BYTES, StateMemory, share_out

MANY = 3 * PIECE_BYTES // 4
SHAPES = st.sampled_from([(), (0,), (5,), (MANY,), (1, MANY), (3, MANY), (MANY, 3), (7, 0), (2, 500, 300)])
SOURCES = st.builds(
    lambda rank, code, shape, is_everywhere: Source(rank, Described(code, shape), is_everywhere),
    st.integers(0, 3),
    st.sampled_from(["F32", "U8", "F64"]),
    SHAPES,
    st.booleans(),
)
FOUND = st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.sampled_from("wxyz"), SOURCES))
REACH = st.sets(st.integers(0, 3)).map(sorted)


def intervals(found, pieces):
    """By file and name, the bytes of each piece."""
    bytes_of = {}
    for piece in pieces:
        tensor = torch.empty(found[piece.file][piece.name].described.shape, dtype=torch.uint8, device="meta")
        size = piece.of(tensor).numel() * found[piece.file][piece.name].described.dtype.itemsize
        bytes_of.setdefault((piece.file, piece.name), []).append((piece.offset, piece.offset + size))
    return bytes_of


@given(FOUND, REACH)
def test_each_byte_is_copied_once_by_a_rank_that_holds_it(found, reach):
    shares = share_out(found, reach)
    for rank, pieces in shares.items():
        assert all(found[one.file][one.name].is_everywhere or found[one.file][one.name].rank == rank for one in pieces)
    bytes_of = intervals(found, [piece for pieces in shares.values() for piece in pieces])
    for file, tensors in found.items():
        for name, source in tensors.items():
            ends = [0]
            for begin, end in sorted(bytes_of.get((file, name), [])):
                assert begin == ends[-1]
                ends.append(end)
            is_reached = bool(reach) if source.is_everywhere else source.rank in reach
            assert ends[-1] == (source.described.size_bytes if is_reached else 0)


@given(FOUND, REACH)
def test_ranks_that_list_tensors_in_other_orders_share_them_out_in_the_same_way(found, reach):
    turned = {file: dict(reversed(tensors.items())) for file, tensors in reversed(found.items())}
    assert share_out(found, reach) == share_out(turned, reach)


def test_what_all_hold_is_given_to_those_that_hold_less_alone():
    found = {
        "model": {f"{number}": Source(0, Described("F32", (1000, 1000)), is_everywhere=True) for number in range(4)},
        "optimizer": {"a": Source(1, Described("F32", (1000, 2000))), "b": Source(2, Described("F32", (1000, 2000)))},
    }
    shares = share_out(found, [0, 1, 2])
    loads = [
        sum(end - begin for parts in intervals(found, pieces).values() for begin, end in parts)
        for pieces in shares.values()
    ]
    assert sum(loads) == 32_000_000
    assert max(loads) <= 32_000_000 / 3 + PIECE_BYTES


@pytest.mark.parametrize("threads", [1, 3])
def test_what_ranks_copy_is_the_file_that_one_rank_writes(tmp_path, threads):
    tensors = {"wide": torch.randn(3, MANY // 2), "turned": torch.randn(500, 2500).T, "scale": torch.tensor(2.0)}
    contents, told = (
        State(files={"a": TensorSet(tensors)}),
        inventory_of(TensorSet(tensors), set(map(id, tensors.values()))),
    )
    found = {"a": sources([told, told])}
    images, end = lay_out(found)
    memory = StateMemory()
    memory.reserve(end)
    shares = share_out(found, [0, 1])
    assert all(shares.values())
    for pieces in shares.values():
        copy_pieces(memory.mapped, images, contents, pieces, threads)
    memory.write(images["a"].at, images["a"].header)
    writer = TensorFileWriter(tmp_path / "a", {name: one.described for name, one in found["a"].items()})
    for name in order_of({name: one.described for name, one in found["a"].items()}):
        writer.write(tensors[name])
    assert writer.finish()["size"] == images["a"].size
    assert os.pread(memory.descriptor, images["a"].size, images["a"].at) == (tmp_path / "a").read_bytes()
    memory.close()


def test_only_what_every_rank_says_to_be_equal_may_come_from_any():
    both, mine = torch.ones(2), torch.ones(3)
    one = inventory_of(TensorSet({"both": both, "mine": mine}), {id(both)})
    other = inventory_of(TensorSet({"both": both, "mine": mine}), {id(both), id(mine)})
    assert {name: found.is_everywhere for name, found in sources([one, other]).items()} == {"both": True, "mine": False}
    assert not sources([one, {}])["both"].is_everywhere
    assert not inventory_of(TensorSet({"a": both}, {"a": 1}), {id(both)})["a"][-2], "a holder counts more"
