"""Encoding: memory over many rows, and throughput against the tokenizers library alone.

    python benchmarks/data.py memory 1000000
    python benchmarks/data.py throughput 8000

Throughput: the same two-turn rows of 2 KB, with the demo target's tokenizer. Ours goes from JSONL to a token shard (parsing,
rendering, masks, splits, keys, writing), theirs is `encode_batch` of the texts that are rendered already, offsets included,
in batches of 1,024, on all cores that the process may use.
"""

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from dflash.data.encode import Rules, encode_file
from dflash.data.rendering import Rendering
from dflash.data.tokenizer import DEMO_FOLDER, load_tokenizer

RULES = Rules("messages", 4096, "truncate", 0.01, 0.02, 0.02)
NUM_CORES = len(os.sched_getaffinity(0))
TEXTS_PER_BATCH = 1024
REPEATS = 3


def two_turns(number: int, prompt: str, answer: str) -> dict:
    """A row of a question and an answer, different from every other."""
    question = {"role": "user", "content": f"{number} {prompt}"}
    return {"messages": [question, {"role": "assistant", "content": answer}]}


def write(path: Path, rows) -> None:
    """Write rows as JSONL."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def memory(num_rows: int) -> None:
    """Print the largest resident memory of this process and its workers together, sampled every 20 ms."""
    process, most, done = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            found = 0
            for each in (process, *process.children(recursive=True)):
                try:
                    found += each.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            most[0] = max(most[0], found)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(
            folder / "rows.jsonl", (two_turns(n, "def add(a, b):", "return a + b") for n in range(num_rows))
        )
        rendering = Rendering(load_tokenizer("demo"), None, {}, "all")
        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.perf_counter()
        counts = encode_file(folder / "rows.jsonl", folder, rendering, RULES, NUM_CORES)
        taken = time.perf_counter() - began
        done.set()
        watcher.join()
    print(
        f"{counts.samples} samples in {taken:.1f} s with {NUM_CORES} workers, peak {most[0] / 1e6:.0f} MB in all"
    )


def throughput(num_rows: int) -> None:
    """Print the rates of both, and ours over theirs; the best of some repeats in turn."""
    from tokenizers import Tokenizer

    text = "".join(
        Path(os.__file__).parent.joinpath(name).read_text() for name in ("argparse.py", "ast.py", "typing.py")
    )
    step = (len(text) - 2000) // num_rows
    rows = [two_turns(n, text[n * step :][:1000], text[n * step + 1000 :][:1000]) for n in range(num_rows)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder / "rows.jsonl", rows)
        rendering = Rendering(load_tokenizer("demo"), None, {}, "all")
        texts = [rendering.render(row["messages"])[0] for row in rows]
        plain = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))
        ours, theirs = [], []
        for _ in range(REPEATS):
            began = time.perf_counter()
            counts = encode_file(folder / "rows.jsonl", folder, rendering, RULES, NUM_CORES)
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            tokens = 0
            for start in range(0, num_rows, TEXTS_PER_BATCH):
                found = plain.encode_batch(texts[start : start + TEXTS_PER_BATCH], add_special_tokens=False)
                tokens += sum(len(each.ids) for each in found)
                for each in found:
                    each.offsets  # noqa: B018 - taking them is part of the work
            theirs.append(time.perf_counter() - began)
            assert counts.tokens == tokens, "both must encode the same"
    print(
        f"ours {num_rows / min(ours):.0f} rows/s, encode_batch {num_rows / min(theirs):.0f} rows/s: ", end=""
    )
    print(f"{min(theirs) / min(ours):.0%} (wanted: 75 %), {NUM_CORES} cores")


if __name__ == "__main__":
    {"memory": memory, "throughput": throughput}[sys.argv[1]](int(sys.argv[2]))
