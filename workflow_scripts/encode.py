"""Encode a source: conversations to token shards with loss masks, one shard a source file."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("data", "target", "target_loading")


def work(stage: Stage) -> None:
    """Write one Arrow shard a file."""
    import hashlib
    import json

    import numpy as np

    from dflash.data.shards import Sample, write_shard
    from dflash.data.split import prompt_bytes, split_of
    from dflash.data.tokenizer import load_tokenizer

    data = stage.settings["data"]
    tokenizer = load_tokenizer(stage.settings["target"])
    files = stage.sources
    for upstream in ("regenerate", "export_corpus"):
        if upstream in stage.inputs:
            files = sorted(stage.inputs[upstream].glob("*.jsonl"))
            break

    def samples(path):
        for row, line in enumerate(path.open(encoding="utf-8")):
            messages = json.loads(line)["messages"]
            got = tokenizer.apply_chat_template(
                messages, return_assistant_tokens_mask=True, return_dict=True, tokenize=True
            )
            ids = np.array(got["input_ids"], dtype=np.int32)[: data["max_length"]]
            mask = np.array(got["assistant_masks"], dtype=np.uint8)[: data["max_length"]]
            if not mask.any():
                continue
            split = split_of(prompt_bytes(messages), data["validation_share"], data["test_share"])
            key = int.from_bytes(hashlib.blake2b(ids.tobytes() + mask.tobytes(), digest_size=8).digest(), "little")
            yield Sample(ids, mask, split, key, row)

    for number, path in enumerate(files):
        write_shard(stage.folder / f"{number:05d}-{path.stem}.arrow", samples(path), {"file": path.name})


if __name__ == "__main__":
    run_stage(work)
