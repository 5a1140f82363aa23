from __future__ import annotations

import pytest

from conformance.base.profile import WHOLE, Shard, read_shard
from conformance.errors import UsageError


def test_every_position_belongs_to_one_shard() -> None:
    """Whatever the number of shards, each example is run once, and numbered in order."""
    for count in (1, 2, 3, 7):
        shards = [Shard(index=index, count=count) for index in range(1, count + 1)]
        for position in range(50):
            assert sum(shard.owns(position) for shard in shards) == 1
        for shard in shards:
            owned = [position for position in range(50) if shard.owns(position)]
            assert owned == [shard.position(number) for number in range(len(owned))]


def test_shards_are_written_as_a_fraction() -> None:
    """2/4 is the second of four; 1/1 is the whole run."""
    assert read_shard(" 2/4 ") == Shard(index=2, count=4)
    assert read_shard("1/1") == WHOLE
    assert str(Shard(index=2, count=4)) == "2/4"


@pytest.mark.parametrize(
    "text",
    ["", "2", "0/4", "5/4", "1/0", "a/b", "1/4/4", "-1/4", "1/1001", "1.0/2", "\u0661/\u0662"],
)
def test_other_shards_are_refused(text: str) -> None:
    """What names no shard is bad input."""
    with pytest.raises(UsageError, match="--shard"):
        read_shard(text)
