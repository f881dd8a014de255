"""Pretrain the demo target on the train split of the built-in corpus: the folder `dflash/demo`, made anew."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("data.validation_share", "data.test_share")
NUM_STEPS = 2400
LEARNING_RATE = 5e-3
SEED = 0


def work(stage: Stage) -> None:
    """Write the model's folder (weights, tokenizer, chat template) and figures.json."""
    import json

    from dflash.training.pretraining import heldout_figures, pretrain, read_split, write_demo

    data = stage.settings["data"]
    (corpus,) = stage.inputs["export_corpus"].glob("*.jsonl")
    texts = read_split(corpus, data["validation_share"], data["test_share"])
    model, tokenizer, figures = pretrain(
        texts, stage.state, num_steps=NUM_STEPS, learning_rate=LEARNING_RATE, seed=SEED, compiled=True
    )
    figures |= heldout_figures(model, tokenizer, texts)
    figures["heldout_conversations"] = len(texts["validation"]) + len(texts["test"])
    write_demo(stage.folder, model, tokenizer)
    (stage.folder / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    run_stage(work, publish_all=True)
