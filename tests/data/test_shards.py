"""Shards give back what was written, by random access, split by split."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dflash.data.shards import SCHEMA, Sample, Shards, write_shard


def samples(number: int, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    made = []
    for row, length in enumerate(rng.integers(1, 40, number)):
        ids = rng.integers(0, 1000, length).astype(np.int32)
        mask = rng.integers(0, 2, length).astype(np.uint8)
        made.append(Sample(ids, mask, int(rng.integers(0, 3)), int(rng.integers(0, 1 << 63)), row))
    return made


def test_every_sample_comes_back_in_order(tmp_path: Path) -> None:
    first, second = samples(1500), samples(30, seed=1)
    assert write_shard(tmp_path / "a.arrow", iter(first), {"file": "a"}) == 1500
    write_shard(tmp_path / "b.arrow", iter(second), {"file": "b"})
    for number, split in enumerate(("train", "validation", "test")):
        shards = Shards([tmp_path / "a.arrow", tmp_path / "b.arrow"], split)
        wanted = [each for each in first + second if each.split == number]
        assert len(shards) == len(wanted)
        np.testing.assert_array_equal(shards.lengths_N, [len(each.ids) for each in wanted])
        np.testing.assert_array_equal(shards.supervised_N, [each.mask.sum() for each in wanted])
        np.testing.assert_array_equal(shards.keys_N, np.array([each.key for each in wanted], dtype=np.uint64))
        for place in (0, len(wanted) // 2, len(wanted) - 1):
            ids, mask = shards.sample(place)
            np.testing.assert_array_equal(ids, wanted[place].ids)
            np.testing.assert_array_equal(mask, wanted[place].mask)


def test_no_sample_is_a_shard_too(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.arrow", iter(()), {})
    assert len(Shards([tmp_path / "a.arrow"], "train")) == 0
    assert len(Shards([], "test")) == 0


def test_a_wrong_file_or_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.arrow").write_text("no arrow")
    with pytest.raises(ValueError, match=r"x\.arrow is no Arrow file"):
        Shards([tmp_path / "x.arrow"], "train")
    with (
        pa.OSFile(str(tmp_path / "y.arrow"), "wb") as file,
        pa.ipc.new_file(file, pa.schema([("z", pa.int8())])),
    ):
        pass
    with pytest.raises(ValueError, match=r"y\.arrow has the columns \['z'\]"):
        Shards([tmp_path / "y.arrow"], "train")
    with pytest.raises(ValueError, match="no split 'dev'"):
        Shards([], "dev")
    write_shard(tmp_path / "a.arrow", iter(samples(3)), {})
    with pytest.raises(IndexError, match="no sample 99"):
        Shards([tmp_path / "a.arrow"], "train").sample(99)
    assert SCHEMA.names[0] == "input_ids"
