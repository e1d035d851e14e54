"""Lanes and threads that nobody names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.protocol.layout.mesh import Form, choose_mesh


@pytest.mark.parametrize(
    ("form", "ranks", "lanes", "threads"),
    [
        *((Form(), ranks, 4, 16) for ranks in (1, 2, 3, 4)),
        (Form(), 8, 8, 8),
        (Form("zero1"), 2, 4, 16),
        (Form("model_parallel"), 2, 1, 32),
        (Form("pipeline"), 2, 8, 32),
        (Form(mesh="model_parallel=2,ddp=2"), 4, 2, 16),
        (Form("hogwild"), 2, 2, 32),
        (Form("dp"), 1, 1, 64),
    ],
)
def test_one_to_four_ranks_have_the_same_lanes_and_threads_where_lanes_move(form, ranks, lanes, threads):
    mesh = choose_mesh(form, ranks)
    assert mesh.default_lanes() == lanes
    assert mesh.default_threads(64, lanes, ranks) == threads


@given(st.integers(1, 256), st.integers(1, 8), st.integers(1, 8), st.integers(0, 40))
def test_the_ranks_of_a_node_take_no_more_than_its_cores_and_one_each(cores, ranks_here, nodes, more):
    mesh = choose_mesh(Form(), ranks_here * nodes)
    threads = mesh.default_threads(cores, mesh.num_ranks + more, ranks_here)
    assert threads == 1 or threads * ranks_here <= cores
