"""Export the built-in corpus: functions of the running Python's standard library, as conversations."""

from dflash.store.stage import Stage, run_stage

# The sources belong to the Python that runs; see `dflash.data.corpus`.
SETTINGS = ()


def work(stage: Stage) -> None:
    """Write stdlib.jsonl and corpus.json."""
    from dflash.data.corpus import export_corpus

    counts = export_corpus(stage.folder)
    print(
        f"{counts['conversations']} conversations from {counts['definitions']} definitions "
        f"({counts['near_duplicates']} near-duplicates left out)",
        flush=True,
    )


if __name__ == "__main__":
    run_stage(work)
