"""Runs inside `.venv-interop`: loads exported drafters with speculators 0.9.0 and writes down what it computes.

    python peer.py INPUT.pt OUTPUT.pt

INPUT is a list of cases, each a dict of plain values and tensors; OUTPUT has one dict a case.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.convert.entrypoints import maybe_convert_external_checkpoint
from speculators.losses import resolve_loss_config


def load(folder: str, verifier: str | None, attention: str) -> tuple[Any, dict[str, Any]]:
    """A drafter and what the loader had to say about its tensors."""
    raw = json.loads((Path(folder) / "config.json").read_text())
    if "speculators_model_type" not in raw:
        folder = maybe_convert_external_checkpoint(folder, verifier=verifier, cache_dir=None, config_dict=raw)
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = attention
    model, info = SpeculatorModel.from_pretrained(
        folder, config=config, output_loading_info=True, dtype=torch.float32
    )
    # what from_pretrained does itself where no loading info is asked for
    model.load_verifier_weights()
    return model, {key: sorted(map(str, value)) for key, value in info.items()}


def forward(model: Any, case: dict[str, Any], mask: torch.Tensor, max_anchors: int, **options: Any) -> Any:
    """The model's training forward on one packed row."""
    width = case["features"].shape[1]
    common = {
        "hidden_states": case["features"],
        "input_ids": case["ids"],
        "loss_mask": mask,
        "verifier_last_hidden_states": case["last_hidden"],
        "document_ids": case.get("documents", torch.zeros(1, width, dtype=torch.long)),
        "position_ids": case.get("positions"),
        "max_anchors": max_anchors,
    }
    return model._backbone_forward(**common) if not options else model(**common, **options)


def run(case: dict[str, Any]) -> dict[str, Any]:
    """What one case asks for: loading lists, logits of given anchors, losses with gradients."""
    model, info = load(case["folder"], case.get("verifier"), case.get("attention", "eager"))
    model.train()
    anchors = case["anchors"]
    only_anchors = torch.zeros_like(case["mask"])
    only_anchors[0, anchors] = 1
    with torch.no_grad():
        logits = forward(model, case, only_anchors, len(anchors))[1]
    result: dict[str, Any] = {"info": info, "logits": logits[0].view(len(anchors), -1, logits.shape[-1])}
    result["block_size"], result["mask_token_id"] = model.block_size, model.mask_token_id
    for name, loss, weighting in case.get("losses", []):
        model.zero_grad()
        options = {
            "gamma": case["gamma"],
            "per_position_loss_weight": weighting,
            "dpace_alpha": case["dpace_alpha"],
        }
        config = resolve_loss_config(loss, "eager")
        _, value, _ = forward(model, case, case["mask"], case["max_anchors"], loss_config=config, **options)
        value.backward()
        named = {key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None}
        result[name] = {"loss": float(value), "gradients": named}
    return result


if __name__ == "__main__":
    source, sink = sys.argv[1:]
    torch.set_num_threads(1)
    read = partial(torch.load, weights_only=True)
    torch.save([run(case) for case in read(source)], sink)
