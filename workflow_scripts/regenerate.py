"""Replace the responses of a source by the target's own."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("regeneration", "target", "target_loading", "data.validation_share", "data.test_share")


def work(stage: Stage) -> None:
    """Write one JSONL a file."""
    import json

    import torch

    from dflash.data.split import prompt_bytes, split_of
    from dflash.data.tokenizer import load_tokenizer
    from dflash.evaluation.decoding import Limits, decode
    from dflash.evaluation.verifier import TargetVerifier
    from dflash.model.target import Loading, load_target

    settings, data = stage.settings["regeneration"], stage.settings["data"]
    target = load_target(stage.settings["target"], Loading(**stage.settings["target_loading"]))
    tokenizer = load_tokenizer(stage.settings["target"])
    print("threads", torch.get_num_threads(), target.embedding_VH.dtype, flush=True)
    files = sorted(stage.inputs["export_corpus"].glob("*.jsonl")) if stage.inputs.get("export_corpus") else stage.sources
    for path in files:
        chosen = []
        per_split = {0: settings["max_samples"] or 10**9, 1: 128, 2: 128}
        for line in path.open(encoding="utf-8"):
            row = json.loads(line)
            split = split_of(prompt_bytes(row["messages"]), data["validation_share"], data["test_share"])
            if per_split[split] > 0:
                per_split[split] -= 1
                chosen.append(row["messages"][:1])
        prompts = [
            tokenizer.apply_chat_template(each, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
            for each in chosen
        ]
        keep = [number for number, each in enumerate(prompts) if len(each) <= 512]
        limits = Limits(settings["max_new_tokens"], frozenset([target.facts.eos_token_id]), 0.0, 0)
        got = decode(TargetVerifier(target.model, target.layers, ()), None, [prompts[n] for n in keep], limits, 128)
        print(sum(len(each.tokens) for each in got.decoded), "tokens in", got.seconds, "s", flush=True)
        with (stage.folder / path.name).open("w", encoding="utf-8") as file:
            for number, each in zip(keep, got.decoded, strict=True):
                text = tokenizer.decode(each.tokens, skip_special_tokens=True)
                messages = [*chosen[number], {"role": "assistant", "content": text}]
                file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    run_stage(work)
