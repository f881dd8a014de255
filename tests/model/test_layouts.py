"""Files: our own, the published layout, the speculators layout; what is written, read back, and refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.model.drafter import Drafter
from dflash.model.drafter_config import DrafterConfig, TargetFacts
from dflash.model.drafter_files import check_weights, load_drafter, save_drafter, weight_shapes
from dflash.model.importing import import_drafter
from dflash.model.speculators import export_speculators, import_speculators
from dflash.model.zlab import export_zlab, import_zlab
from tests.model.tiny import MASK, tiny_drafter, tiny_target

FACTS = tiny_target().facts
EXPORTS = {"zlab": (export_zlab, import_zlab), "speculators": (export_speculators, import_speculators)}


def made(**wishes: Any) -> tuple[DrafterConfig, dict[str, Tensor]]:
    drafter = tiny_drafter(tiny_target(), **wishes)
    return drafter.config, {name: value.detach().clone() for name, value in drafter.state_dict().items()}


def written(folder: Path, layout: str = "zlab", **wishes: Any) -> dict[str, Any]:
    config, weights = made(**wishes)
    EXPORTS[layout][0](folder, config, FACTS, weights, torch.float32)
    return json.loads((folder / "config.json").read_text())


def rewrite(folder: Path, raw: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(raw))


def test_names_and_shapes_are_the_published_ones() -> None:
    config, weights = made(num_layers=2, num_taps=3)
    assert {name: tuple(value.shape) for name, value in weights.items()} == weight_shapes(config)
    assert len(weights) == 3 + 11 * 2
    assert weights["fc.weight"].shape == (32, 3 * 32)
    assert weights["layers.1.self_attn.k_proj.weight"].shape == (2 * 8, 32) and weights[
        "layers.0.self_attn.q_norm.weight"
    ].shape == (8,)


def test_our_own_files_round_trip(tmp_path: Path) -> None:
    config, weights = made(sliding_window=9)
    save_drafter(tmp_path, config, FACTS, weights)
    first = (tmp_path / "drafter.safetensors").read_bytes()
    read_config, facts, read = load_drafter(tmp_path)
    assert (read_config, facts) == (config, FACTS)
    Drafter(read_config).load_state_dict(read)
    save_drafter(tmp_path, config, FACTS, dict(reversed(weights.items())))
    assert (tmp_path / "drafter.safetensors").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafter.json", "drafter.safetensors"]


@pytest.mark.parametrize("layout", EXPORTS)
@pytest.mark.parametrize(
    "wishes",
    [{}, {"sliding_window": 9}, {"num_taps": 1, "num_heads": 2, "num_key_value_heads": 1, "head_size": 4}],
)
def test_layouts_round_trip(tmp_path: Path, layout: str, wishes: dict[str, int]) -> None:
    config, weights = made(**wishes)
    export, read = EXPORTS[layout]
    notices = export(tmp_path, config, FACTS, weights, torch.bfloat16)
    again, values = read(tmp_path, FACTS)
    assert again == config
    assert all(
        values[name].dtype == torch.bfloat16 and torch.equal(values[name], weights[name].bfloat16())
        for name in weights
    )
    assert bool(notices) == ("sliding_window" in wishes)


def test_rope_scaling_stands_in_both_schemas(tmp_path: Path) -> None:
    config, weights = made()
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 1e6,
        "partial_rotary_factor": 1.0,
    }
    export_zlab(tmp_path, replace(config, rope=yarn), FACTS, weights, torch.float32)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["rope_parameters"] == yarn and raw["rope_theta"] == 1e6
    assert raw["rope_scaling"]["rope_type"] == "yarn" and raw["rope_scaling"]["factor"] == 4.0
    for dropped in ("rope_parameters", "rope_scaling"):
        rewrite(tmp_path, {key: value for key, value in raw.items() if key != dropped})
        assert import_zlab(tmp_path, FACTS)[0].rope == yarn


def test_every_place_that_an_engine_reads_is_written(tmp_path: Path) -> None:
    raw = written(tmp_path, block_size=8)
    config, _ = made(block_size=8)
    assert raw["block_size"] == raw["dflash_config"]["block_size"] == 8
    assert raw["num_target_layers"] == raw["dflash_config"]["num_target_layers"] == 8
    assert raw["dflash_config"]["target_layer_ids"] == list(config.taps) and max(config.taps) < 7
    assert raw["dflash_config"]["mask_token_id"] == MASK
    assert raw["layer_types"] == ["full_attention"] * 2 and raw["is_causal"] is False
    assert raw["architectures"] == ["DFlashDraftModel"] and raw["model_type"] == "qwen3"
    assert raw["max_position_embeddings"] == FACTS.max_position_embeddings
    assert raw["head_dim"] == 8 and raw["rope_parameters"]["rope_theta"] == raw["rope_theta"]


def test_the_speculators_config_leaves_nothing_to_be_filled_in(tmp_path: Path) -> None:
    raw = written(tmp_path, "speculators", block_size=8)
    config, _ = made(block_size=8)
    assert raw["aux_hidden_state_layer_ids"] == [tap + 1 for tap in config.taps]
    assert (raw["draft_vocab_size"], raw["block_size"], raw["mask_token_id"]) == (97, 8, MASK)
    assert raw["sample_from_anchor"] is False
    assert raw["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 7
    assert raw["speculators_config"]["verifier"] == {
        "name_or_path": "tiny",
        "architectures": ["Qwen3ForCausalLM"],
    }


def test_old_configs_and_sharded_prefixed_files_are_read(tmp_path: Path) -> None:
    raw = written(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    own = raw.pop("dflash_config")
    for key in ("rope_parameters", "num_target_layers", "layer_types", "head_dim"):
        raw.pop(key)
    rewrite(
        tmp_path,
        {**raw, "dflash_config": {"mask_token_id": MASK, "target_layer_ids": own["target_layer_ids"]}},
    )
    names = sorted(weights)
    shards = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for shard, inside in shards.items():
        save_file({f"model.{name}": weights[name] for name in inside}, tmp_path / shard)
    extra = {"lm_head.weight": torch.zeros(97, 32)}
    save_file(extra, tmp_path / "c.safetensors")
    places = {f"model.{name}": shard for shard, inside in shards.items() for name in inside} | {
        "lm_head.weight": "c.safetensors"
    }
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config, read = import_zlab(tmp_path, FACTS)
    assert config == made()[0]
    assert all(torch.equal(read[name], weights[name]) for name in names) and read.keys() == weights.keys()


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        (
            "zlab",
            {"dflash_config": {}, "block_size": None},
            "no block_size, mask_token_id, taps; a drafter's config must say them",
        ),
        (
            "zlab",
            {"sample_from_anchor": True},
            "slots of this drafter predict the token after their own place",
        ),
        ("zlab", {"attention_bias": True}, "attention_bias is true; this drafter's projections have no bias"),
        ("zlab", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; this drafter's is silu"),
        (
            "zlab",
            {"intermediate_size": 64},
            r"gate_proj.weight has shape \(48, 32\), but its config makes it \(64, 32\)",
        ),
        (
            "zlab",
            {"num_hidden_layers": 3, "layer_types": None},
            "missing tensors .*layers.2.*these are not the weights of its config",
        ),
        (
            "speculators",
            {"speculators_model_type": "eagle3"},
            "speculators_model_type is 'eagle3'; only dflash drafters",
        ),
        (
            "speculators",
            {"block_size": None, "mask_token_id": None},
            "no block_size, mask_token_id; a drafter's config must say them",
        ),
        (
            "speculators",
            {"sample_from_anchor": True},
            "slots of this drafter predict the token after their own place",
        ),
        (
            "speculators",
            {"draft_vocab_size": 50},
            "draft_vocab_size is 50; only the target's whole vocabulary is trained here",
        ),
        (
            "speculators",
            {"transformer_layer_config": {"hidden_size": 32}},
            "no intermediate_size, num_hidden_layers, num_attention_heads, vocab_size",
        ),
    ],
)
def test_foreign_configs_are_refused(
    tmp_path: Path, layout: str, change: dict[str, Any], message: str
) -> None:
    raw = written(tmp_path, layout)
    rewrite(tmp_path, {**raw, **change})
    with pytest.raises(ValueError, match=message):
        EXPORTS[layout][1](tmp_path, FACTS)


def test_bad_weights_are_refused(tmp_path: Path) -> None:
    config, weights = made()
    lacking = {name: value for name, value in weights.items() if name != "norm.weight"}
    with pytest.raises(ValueError, match=r"missing tensors \['norm.weight'\], unknown tensors \['more'\]"):
        check_weights(tmp_path, config, {**lacking, "more": torch.zeros(1)})
    weights["norm.weight"][3] = float("nan")
    for export, _ in EXPORTS.values():
        with pytest.raises(ValueError, match="norm.weight holds values that are not finite"):
            export(tmp_path, config, FACTS, weights, torch.float32)


def test_windows_of_two_sizes_cannot_be_exported(tmp_path: Path) -> None:
    config, weights = made()
    for export, _ in EXPORTS.values():
        with pytest.raises(
            ValueError, match=r"the drafter's layers have windows \[8, 16\]; checkpoint layouts know one size"
        ):
            export(tmp_path, replace(config, windows=(8, 16)), FACTS, weights, torch.float32)


def test_an_export_that_does_not_read_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, weights = made()
    other = replace(config, rms_norm_eps=1e-3)
    for layout, (export, read) in EXPORTS.items():
        monkeypatch.setattr(
            f"dflash.model.{layout}.import_{layout}", lambda *args, read=read: (other, read(*args)[1])
        )
        with pytest.raises(ValueError, match="what was written does not read back as the same drafter"):
            export(tmp_path, config, FACTS, weights, torch.float32)


def test_facts_are_plain(tmp_path: Path) -> None:
    save_drafter(tmp_path, *made()[:1], FACTS, made()[1])
    assert TargetFacts(**json.loads((tmp_path / "drafter.json").read_text())["target"]) == FACTS


def test_any_layout_is_found_and_fitted(tmp_path: Path) -> None:
    config, weights = made()
    save_drafter(tmp_path / "own", config, FACTS, weights)
    for layout in EXPORTS:
        written(tmp_path / layout, layout)
    for folder in ("own", "zlab", "speculators"):
        again, read = import_drafter(tmp_path / folder, FACTS)
        assert again == config and all(torch.equal(read[name], weights[name]) for name in weights)
        with pytest.raises(
            ValueError, match="the drafter was made for a target with hidden_size 32, but tiny has 16"
        ):
            import_drafter(tmp_path / folder, replace(FACTS, hidden_size=16))
    with pytest.raises(ValueError, match="holds no drafter: neither drafter.json nor config.json is there"):
        import_drafter(tmp_path, FACTS)
