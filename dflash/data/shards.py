"""Token shards: one Arrow IPC file a source file, memory-mapped, a row a sample.

Columns: input_ids list<int32>, loss_mask list<uint8> (1 = supervised), length int32, supervised int32, split int8 (0
train, 1 validation, 2 test), key uint64 (first 8 bytes of the sample's content digest), row int64 (row of the source
file), part int16 (number of the piece where a sample was split).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash.data.split import SPLIT_NAMES

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("length", pa.int32()),
        ("supervised", pa.int32()),
        ("split", pa.int8()),
        ("key", pa.uint64()),
        ("row", pa.int64()),
        ("part", pa.int16()),
    ]
)
ROWS_PER_BATCH = 1024
KEYS_PER_PASS = 1 << 18


@dataclass(frozen=True)
class Sample:
    """One tokenized conversation: int32 tokens, uint8 mask, and where it came from."""

    ids: np.ndarray
    mask: np.ndarray
    split: int
    key: int
    row: int
    part: int = 0


def write_shard(path: Path, samples: Iterable[Sample], metadata: dict[str, str]) -> int:
    """Write samples as they come, atomically; memory holds `ROWS_PER_BATCH` of them. Gives their number."""
    waiting = iter(samples)
    groups = iter(lambda: list(islice(waiting, ROWS_PER_BATCH)), [])
    return write_batches(path, map(record_batch, groups), metadata)


def write_batches(path: Path, batches: Iterable[pa.RecordBatch], metadata: dict[str, str]) -> int:
    """Write record batches of `SCHEMA` as they come, atomically. Gives the number of their rows."""
    part, count = path.with_name(path.name + ".part"), 0
    with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, SCHEMA.with_metadata(metadata)) as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    os.replace(part, path)
    return count


def count_duplicates(path: Path, num_samples: int) -> int:
    """How many samples of a shard equal an earlier one. Keys are read in passes of one range of values each, so that
    memory holds about `KEYS_PER_PASS` of them, however many there are.
    """
    num_passes = max(1, -(-num_samples // KEYS_PER_PASS))
    width = -(-(1 << 64) // num_passes)
    distinct = 0
    for number in range(num_passes):
        first, last = np.uint64(number * width), np.uint64(min((number + 1) * width, 1 << 64) - 1)
        found = [np.zeros(0, np.uint64)]
        # read, not mapped: mapped pages would count as this process's memory
        with pa.OSFile(str(path), "rb") as file:
            chosen = pa.ipc.IpcReadOptions(included_fields=[SCHEMA.get_field_index("key")])
            reader = pa.ipc.open_file(file, options=chosen)
            for place in range(reader.num_record_batches):
                keys = reader.get_batch(place).column("key").to_numpy()
                found.append(keys[(keys >= first) & (keys <= last)])
        distinct += len(np.unique(np.concatenate(found)))
    return num_samples - distinct


def record_batch(batch: Sequence[Sample]) -> pa.RecordBatch:
    """One or more samples as a record batch of `SCHEMA`."""
    lengths = np.array([len(each.ids) for each in batch], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.concatenate([each.ids for each in batch]).astype(np.int32)
    mask = np.concatenate([each.mask for each in batch]).astype(np.uint8)
    columns = [
        pa.ListArray.from_arrays(offsets, ids),
        pa.ListArray.from_arrays(offsets, mask),
        pa.array(lengths),
        pa.array(np.array([int(each.mask.sum()) for each in batch], dtype=np.int32)),
        pa.array([each.split for each in batch], pa.int8()),
        pa.array([each.key for each in batch], pa.uint64()),
        pa.array([each.row for each in batch], pa.int64()),
        pa.array([each.part for each in batch], pa.int16()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Shards:
    """Random access to the samples of one split. A sample id is its place among that split's rows, shard after shard."""

    def __init__(self, paths: Sequence[Path], split: str) -> None:
        """Map the shards; nothing but the small columns is read.

        Raises:
            ValueError: no such split, or a file that is no token shard.
        """
        if split not in SPLIT_NAMES:
            raise ValueError(f"there is no split {split!r}; there are {', '.join(SPLIT_NAMES)}")
        number = SPLIT_NAMES.index(split)
        self._batches: list[pa.RecordBatch] = []
        small: dict[str, list[np.ndarray]] = {
            name: [] for name in ("length", "supervised", "key", "batch", "place")
        }
        for batch in _mapped(paths):
            chosen = np.flatnonzero(batch.column("split").to_numpy() == number)
            for name in ("length", "supervised", "key"):
                small[name].append(batch.column(name).to_numpy()[chosen])
            small["batch"].append(np.full(len(chosen), len(self._batches), dtype=np.int32))
            small["place"].append(chosen.astype(np.int32))
            self._batches.append(batch)
        joined = {
            name: np.concatenate(each) if each else np.zeros(0, np.int32) for name, each in small.items()
        }
        self.lengths_N: np.ndarray = joined["length"].astype(np.int32)
        self.supervised_N: np.ndarray = joined["supervised"].astype(np.int32)
        self.keys_N: np.ndarray = joined["key"].astype(np.uint64)
        self._batch_N, self._place_N = joined["batch"], joined["place"]

    def __len__(self) -> int:
        return len(self.lengths_N)

    def sample(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 [length] and mask uint8 [length] of a sample, without a copy.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"there is no sample {number}; the split has {len(self)}")
        batch, place = self._batches[self._batch_N[number]], int(self._place_N[number])
        found = []
        for name in ("input_ids", "loss_mask"):
            column = batch.column(name)
            start, end = column.offsets[place].as_py(), column.offsets[place + 1].as_py()
            found.append(column.values.slice(start, end - start).to_numpy())
        return found[0], found[1]


def _mapped(paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{path} is no Arrow file ({error}); make it again with the encode stage"
            ) from None
        if reader.schema.remove_metadata() != SCHEMA:
            raise ValueError(
                f"{path} has the columns {reader.schema.names}, not those of a token shard {SCHEMA.names}"
            )
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
