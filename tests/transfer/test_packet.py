"""Layout of packets, size of rings, and topologies."""

import pytest
import torch

from dflash.transfer.packet import PacketLayout, ring_size
from dflash.transfer.ring import ReceiveRing, SendRing
from dflash.transfer.roles import Topology


@pytest.mark.parametrize("hidden_size", [0, 3])
def test_views_tile_the_packet(hidden_size: int) -> None:
    layout = PacketLayout(5, hidden_size, torch.bfloat16)
    buffer = torch.zeros(layout.size(2, 4) + 7, dtype=torch.bfloat16)
    features_BSF, final_BSH = layout.views(buffer, 2, 4)
    assert features_BSF.shape == (2, 4, 5)
    features_BSF.add_(1)
    if hidden_size:
        assert final_BSH is not None and final_BSH.shape == (2, 4, 3)
        final_BSH.add_(1)
    else:
        assert final_BSH is None
    assert buffer.tolist() == [1.0] * layout.size(2, 4) + [0.0] * 7
    assert layout.num_bytes(2, 4) == 2 * layout.size(2, 4)


def test_a_ring_is_bounded_by_packets_and_by_bytes() -> None:
    assert ring_size(100, 8, 10_000) == 8
    assert ring_size(100, 8, 399) == 3
    with pytest.raises(ValueError, match="raise runtime.ring_bytes to 200"):
        ring_size(100, 8, 199)


def test_slots_return_in_the_order_of_their_use() -> None:
    send = SendRing(2)
    assert [send.fill(), send.fill()] == [0, 1] and not send.may_fill()
    assert send.send() == 0 and not send.may_fill()
    send.left()
    assert send.may_fill() and send.fill() == 0 and send.queued == 2
    receive = ReceiveRing(2)
    assert [receive.post(), receive.post()] == [0, 1] and not receive.may_post()
    assert receive.take() == 0 and not receive.may_post() and receive.queued == 1
    receive.release()
    assert receive.post() == 0


@pytest.mark.parametrize(("targets", "drafters"), [(7, 1), (6, 2), (3, 2), (4, 6)])
def test_every_target_feeds_one_group_and_every_group_is_fed_alike(targets: int, drafters: int) -> None:
    topology = Topology.parse(f"targets: {targets}, drafters: {drafters}")
    fed = [target for group in range(topology.num_groups) for target in topology.targets_of(group)]
    assert fed == list(range(targets))
    groups = [topology.group_of_drafter(drafter) for drafter in range(drafters)]
    assert {groups.count(group) for group in groups} == {drafters // topology.num_groups}
    assert topology.drafter_ranks == list(range(targets, targets + drafters))
    assert str(topology) == f"targets: {targets}, drafters: {drafters}"


@pytest.mark.parametrize("text", ["targets: 0, drafters: 1", "colocated: 0", "targets: 2", "7-1"])
def test_no_topology_is_guessed(text: str) -> None:
    with pytest.raises(ValueError, match=r"runtime\.topology is"):
        Topology.parse(text)
