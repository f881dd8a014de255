"""Tables for a look at the data: counts, lengths, rejected rows, rendered samples."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("target", "target_loading.revision", "target_loading.trust_remote_code")


def work(stage: Stage) -> None:
    """Write the tables of `dflash.data.look`."""
    from dflash.data.look import look_at
    from dflash.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(stage.settings["target"], **stage.settings["target_loading"])
    print(look_at(stage.inputs["encode"], tokenizer, stage.folder))


if __name__ == "__main__":
    run_stage(work)
