"""A rank that another one's death has stopped: what it had begun is given up before it meets the others again."""

import pytest

from lockstep.errors import PeerLost
from lockstep.transport.alone import AloneTransport
from lockstep.transport.history import History
from lockstep.transport.outliving import OutlivingTransport


class Dies(AloneTransport):
    """One rank whose exchanges fail as often as it is told."""

    def __init__(self, calls: list[str], losses: int) -> None:
        super().__init__()
        self.calls, self.losses = calls, losses

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        self.calls.append("exchange")
        if self.losses:
            self.losses -= 1
            raise PeerLost("Rank 1 ended.", is_dead=True)
        return [data]

    def give_up(self, lost: PeerLost) -> PeerLost:
        self.calls.append("give up")
        return lost


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_is_under_way_is_given_up_before_the_ranks_meet_again(is_whole: bool) -> None:
    calls: list[str] = []
    transport = OutlivingTransport(Dies(calls, 1), History())

    def rejoin(lost: PeerLost) -> Dies:
        calls.append("meet")
        return Dies(calls, 0)

    transport.rejoin = rejoin
    if is_whole:
        transport.whole(lambda: transport.all_gather_bytes(b"x"), lambda: calls.append("undo"))
        assert calls == ["exchange", "undo", "give up", "meet", "exchange", "exchange"]
    else:
        assert transport.all_gather_bytes(b"x") == [b"x"]
        assert calls == ["exchange", "give up", "meet", "exchange"]
    assert transport.generation == 1
