"""Replace the responses of a source by the target's own: in process, or by a server."""

from typing import TYPE_CHECKING

from dflash.store.stage import Stage, run_stage

if TYPE_CHECKING:
    from dflash.data.rounds import Respond

SETTINGS = (
    "regeneration",
    "target",
    "target_loading",
    "data.sources",
    "data.chat_template",
    "data.template_options",
    "data.validation_share",
    "data.test_share",
    "data.max_length",
)


def work(stage: Stage) -> None:
    """Write a JSONL of messages for every source file, and regeneration.json with the counts."""
    import json

    from dflash.data.conversations import choose, read_conversations
    from dflash.data.rounds import rewrite

    settings, data = stage.settings["regeneration"], stage.settings["data"]
    (source,) = data["sources"]
    dialect = source["dialect"]
    files = stage.sources
    if "export_corpus" in stage.inputs:
        files, dialect = sorted(stage.inputs["export_corpus"].glob("*.jsonl")), "messages"
    respond = responder(stage)
    totals = []
    for number, path in enumerate(files):
        found, bad = read_conversations(path, dialect, data["validation_share"], data["test_share"])
        chosen = choose(found, settings["max_samples"])
        print(
            f"{path.name}: {len(chosen)} of {len(found)} conversations, {bad} rows were none",
            flush=True,
        )
        rewritten = rewrite(chosen, respond, stage.state / f"answers-{number:05d}.jsonl")
        kept = [each for each in rewritten if each.answers]
        with (stage.folder / f"{number:05d}-{path.name.split('.')[0]}.jsonl").open(
            "w", encoding="utf-8"
        ) as file:
            file.writelines(each.row() for each in kept)
        totals.append(
            {
                "file": path.name,
                "bad_rows": bad,
                "conversations": len(found),
                "chosen": len(chosen),
                "kept": len(kept),
                "answers": sum(len(each.answers) for each in kept),
                "cut": sum(each.answers[-1].is_cut for each in kept),
                "ended_early": sum(len(each.answers) < len(each.conversation.pieces) for each in kept),
            }
        )
        print(json.dumps(totals[-1]), flush=True)
    (stage.folder / "regeneration.json").write_text(json.dumps(totals, indent=1) + "\n")


def responder(stage: Stage) -> "Respond":
    """What answers prompts, as the config wants it."""
    settings = stage.settings["regeneration"]
    if settings["engine"] != "server":
        from dflash.evaluation.responses import InProcess

        return InProcess(stage.settings, stage.runtime.get("device", "auto")).respond
    from functools import partial

    from dflash.data.server import Server, respond_to_all

    fields = (
        "url",
        "model",
        "api_key_variable",
        "temperature",
        "max_new_tokens",
        "concurrency",
        "retries",
        "timeout_seconds",
    )
    options = stage.settings["data"]["template_options"]
    return partial(
        respond_to_all, Server(**{name: settings[name] for name in fields}, template_options=options)
    )


if __name__ == "__main__":
    run_stage(work)
