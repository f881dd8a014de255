"""Replace the responses of a source by the target's own: in process, or by a server."""

from dflash.store.stage import Stage, run_stage

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

    from dflash.data.conversations import choose, read_prompts, row_of

    settings, data = stage.settings["regeneration"], stage.settings["data"]
    (source,) = data["sources"]
    dialect = source["dialect"]
    files = stage.sources
    if "export_corpus" in stage.inputs:
        files, dialect = sorted(stage.inputs["export_corpus"].glob("*.jsonl")), "messages"
    totals = []
    for number, path in enumerate(files):
        prompts, bad = read_prompts(path, dialect, data["validation_share"], data["test_share"])
        chosen = choose(prompts, settings["max_samples"])
        print(
            f"{path.name}: {len(chosen)} of {len(prompts)} prompts, {bad} rows were no conversation",
            flush=True,
        )
        if settings["engine"] == "server":
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
            server = Server(
                **{name: settings[name] for name in fields}, template_options=data["template_options"]
            )
            responses = respond_to_all(server, chosen, stage.state / f"responses-{number:05d}.jsonl")
        else:
            from dflash.evaluation.responses import respond_in_process

            responses = respond_in_process(stage.settings, chosen, stage.runtime.get("device", "auto"))
        cut = 0
        answered = {prompt.name: (prompt, text, is_cut) for prompt, text, is_cut in responses}
        with (stage.folder / f"{number:05d}-{path.name.split('.')[0]}.jsonl").open(
            "w", encoding="utf-8"
        ) as file:
            for name in sorted(answered):
                prompt, text, is_cut = answered[name]
                cut += is_cut
                if text.strip():
                    file.write(row_of(prompt, text, is_cut))
        empty = sum(not text.strip() for _, text, _ in answered.values())
        totals.append(
            {
                "file": path.name,
                "prompts": len(prompts),
                "responses": len(answered),
                "cut": cut,
                "empty": empty,
                "bad_rows": bad,
            }
        )
    (stage.folder / "regeneration.json").write_text(json.dumps(totals, indent=1) + "\n")


if __name__ == "__main__":
    run_stage(work)
