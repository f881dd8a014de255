"""Encode a source: conversations to token shards with loss masks, one shard a source file."""

from dflash.store.stage import Stage, run_stage

SETTINGS = (
    "data",
    "target",
    "target_loading.revision",
    "target_loading.trust_remote_code",
    "drafter.mask_token_id",
)


def work(stage: Stage) -> None:
    """Write `NNNNN-NAME.arrow` and its rejected rows for every file, and counts.json. Each file is encoded once."""
    import json
    import os
    import shutil
    from pathlib import Path

    from dflash.data.encode import Rules, encode_file
    from dflash.data.rendering import Rendering
    from dflash.data.tokenizer import load_tokenizer, mask_token_of

    data = stage.settings["data"]
    (source,) = data["sources"]
    above = next((name for name in ("regenerate", "export_corpus") if name in stage.inputs), None)
    tokenizer = load_tokenizer(stage.settings["target"], **stage.settings["target_loading"])
    rules = Rules(
        dialect=source["dialect"] if above is None else "messages",
        mask_token=mask_token_of(tokenizer, stage.settings["drafter"]["mask_token_id"]),
        **{
            name: data[name]
            for name in ("max_length", "too_long", "max_rejected", "validation_share", "test_share")
        },
    )
    template = data["chat_template"]
    rendering = Rendering(
        tokenizer,
        Path(template).read_text(encoding="utf-8") if template else None,
        data["template_options"],
        data["supervise"],
    )
    if above is None:
        files = dict(zip(stage.sources, stage.digests, strict=True))
    else:
        listed = stage.manifest(above)["files"]
        files = {
            stage.inputs[above] / name: listed[name]["sha256"] for name in listed if name.endswith(".jsonl")
        }
    num_workers = stage.runtime.get("num_threads") or len(os.sched_getaffinity(0))
    progress_seconds = stage.runtime.get("progress_interval_seconds", 5.0)
    totals = []
    for number, (path, digest) in enumerate(files.items()):
        parts = {"sha256": digest}

        def encode(folder: Path, path: Path = path) -> None:
            counts = encode_file(path, folder, rendering, rules, num_workers, progress_seconds)
            rejected = sum(counts.rejected.values())
            print(
                f"{counts.file} ({counts.dialect}): {counts.samples} samples of {counts.rows} rows, {rejected} rejected, "
                f"{counts.tokens} tokens, {counts.supervised / max(1, counts.tokens):.0%} supervised",
                flush=True,
            )

        made = stage.memo("file", parts, encode)
        shutil.copyfile(made / "samples.arrow", stage.folder / f"{number:05d}-{path.stem}.arrow")
        shutil.copyfile(made / "rejected.jsonl", stage.folder / f"{number:05d}-{path.stem}.rejected.jsonl")
        totals.append(json.loads((made / "counts.json").read_text()))
    (stage.folder / "counts.json").write_text(json.dumps(totals, indent=1) + "\n")


if __name__ == "__main__":
    run_stage(work)
