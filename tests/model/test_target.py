"""Features from the backbone alone, against Transformers' own hidden states."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from dflash.data.tokenizer import DEMO_FOLDER, model_place
from dflash.model.target import (
    Loading,
    compute_dtype,
    facts_of,
    load_facts,
    load_target,
    wrap_target,
)
from tests.model.tiny import SHAPE, tiny_config, tiny_target


def wide_target(kind: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    return wrap_target(AutoModelForCausalLM.from_config(kind(**{**SHAPE, **changes})).float(), kind.__name__)


FAMILIES: dict[str, Any] = {
    "qwen3": lambda: tiny_target("qwen3"),
    "llama": lambda: tiny_target("llama"),
    "gemma3": lambda: wide_target(Gemma3TextConfig, sliding_window=6),
    "granite": lambda: wide_target(GraniteConfig, logits_scaling=8.0),
    "mixture": lambda: wide_target(
        Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
}
LINEAR = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_hidden_states_after_the_tapped_layers(family: str) -> None:
    target = FAMILIES[family]()
    ids_BS = torch.randint(3, 96, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = target.model(ids_BS, output_hidden_states=True)
    features_BSF, final_BSH = target.features(ids_BS, [1, 4], final=True)
    # index 0 of hidden_states is the embedding, so layer i is at i + 1
    assert torch.equal(features_BSF, torch.cat([output.hidden_states[2], output.hidden_states[5]], dim=-1))
    logits = torch.nn.functional.linear(final_BSH, target.head.weight_VH)
    assert (logits - output.logits).abs().max() < 1e-5
    embedded = output.hidden_states[0]
    scale = getattr(target.model.config, "embedding_multiplier", 1.0)
    assert (target.embedding_VH[ids_BS] * scale - embedded).abs().max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_alone_and_in_a_padded_batch_agree(family: str) -> None:
    target = FAMILIES[family]()
    ids_BS = torch.randint(3, 96, (3, 16), generator=torch.Generator().manual_seed(1))
    lengths = [16, 5, 11]
    padded = ids_BS.clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = 0
    features_BSF, final_BSH = target.features(padded, [1, 5], final=True)
    for row, length in enumerate(lengths):
        alone, final_alone = target.features(ids_BS[row : row + 1, :length], [1, 5], final=True)
        assert (features_BSF[row, :length] - alone[0]).abs().max() < 1e-4
        assert (final_BSH[row, :length] - final_alone[0]).abs().max() < 1e-4


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3"])
def test_documents_of_a_row_have_the_features_they_have_alone(family: str) -> None:
    target = FAMILIES[family]()
    ids_BS = torch.randint(3, 96, (2, 20), generator=torch.Generator().manual_seed(2))
    positions_BS = torch.stack(
        [torch.cat([torch.arange(8), torch.arange(12)]), torch.cat([torch.arange(15), torch.arange(5)])]
    )
    together, _ = target.features(ids_BS, [1, 5], positions_BS=positions_BS)
    for row, border in enumerate((8, 15)):
        for begin, end in ((0, border), (border, 20)):
            alone, _ = target.features(ids_BS[row : row + 1, begin:end], [1, 5])
            assert (together[row, begin:end] - alone[0]).abs().max() < 1e-4


def test_packed_rows_are_refused_where_state_crosses_the_border() -> None:
    """Linear attention carries its state over; no mask can stop it."""
    target = wide_target(Qwen3NextConfig, **LINEAR)
    ids_BS = torch.randint(3, 96, (1, 20))
    target.features(ids_BS, [1])
    with pytest.raises(
        ValueError, match="batching.policy 'packed' puts several documents in a row, but Qwen3NextConfig"
    ):
        target.features(ids_BS, [1], positions_BS=torch.arange(20)[None])


def test_a_head_that_is_not_the_models_own_is_refused() -> None:
    """Labels from states before the final norm cost others a third of the acceptance (TorchSpec #169)."""
    target = tiny_target()
    target.logit_scale = 0.5
    with pytest.raises(
        ValueError, match="its own logits, so labels of the target would be wrong; set objective.labels: data"
    ):
        target.features(torch.zeros(1, 4, dtype=torch.long), [1], final=True)


def test_layers_after_the_last_tap_run_only_where_final_states_are_asked_for() -> None:
    target = tiny_target()
    ran: list[int] = []
    for number, layer in enumerate(target.layers):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    ids_BS = torch.zeros(1, 4, dtype=torch.long)
    assert target.features(ids_BS, [3, 1])[1] is None
    assert max(ran) == 3
    assert target.features(ids_BS, [1], final=True)[1] is not None
    assert max(ran) == 7
    assert all(len(layer._forward_hooks) == 1 for layer in target.layers), "a hook stayed"


def test_features_can_enter_a_backward_pass() -> None:
    target = tiny_target()
    features_BSF, _ = target.features(torch.zeros(1, 4, dtype=torch.long), [1])
    weight = torch.ones(32, requires_grad=True)
    (features_BSF * weight).sum().backward()
    assert weight.grad is not None and not any(each.requires_grad for each in target.model.parameters())


def test_loads_a_folder_and_its_facts(tmp_path: Path) -> None:
    tiny_target("llama").model.save_pretrained(tmp_path)
    target = load_target(str(tmp_path), Loading(dtype="float32"))
    ids_BS = torch.arange(3, 9)[None]
    assert torch.equal(target.features(ids_BS, [2])[0], tiny_target("llama").features(ids_BS, [2])[0])
    assert target.facts == load_facts(str(tmp_path), Loading())
    assert (target.facts.num_layers, target.facts.head_size, target.facts.vocab_size) == (8, 8, 97)
    assert load_target(str(tmp_path), Loading(dtype="bfloat16")).embedding_VH.dtype == torch.bfloat16


def test_a_target_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"target is '/nowhere': use demo, hub:OWNER/NAME, a folder with a config.json"
    ):
        model_place("/nowhere", None)
    assert model_place("demo", None) == (str(DEMO_FOLDER), {})
    assert model_place("hub:a/b", "main") == ("a/b", {"revision": "main"})


def test_code_in_a_models_folder_is_not_run(tmp_path: Path) -> None:
    """A folder whose config points to its own module, which leaves a mark when it is imported."""
    (tmp_path / "config.json").write_text(
        '{"model_type": "homemade", "auto_map": {"AutoConfig": "homemade.Config", "AutoModelForCausalLM": "homemade.Model"}}'
    )
    (tmp_path / "homemade.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_target(str(tmp_path), Loading())
    assert not (tmp_path / "mark").exists()


def test_compute_types() -> None:
    assert compute_dtype("float16", torch.device("cpu")) == torch.float16
    assert compute_dtype("auto", torch.device("cpu")) in (torch.float32, torch.bfloat16)


def test_a_model_without_plain_parts_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    model.config.num_hidden_layers = 5
    with pytest.raises(
        ValueError, match="has no plain decoder layers, embedding and head; it cannot be a target"
    ):
        wrap_target(model, "odd")


def test_facts_of_configs_that_nest_or_lack_things() -> None:
    gemma = facts_of(Gemma3TextConfig(**SHAPE), "g")
    assert gemma.rope["rope_theta"] == 1_000_000 and gemma.intermediate_size == 48
    partial = facts_of(Qwen3_5TextConfig(**SHAPE), "q")
    assert partial.rope["partial_rotary_factor"] == 0.25

    text = SimpleNamespace(num_hidden_layers=4, num_attention_heads=2, vocab_size=9)
    odd = SimpleNamespace(model_type="odd", get_text_config=lambda decoder: text)
    with pytest.raises(
        ValueError, match=r"the config of x \(odd\) has no hidden_size; it cannot be a target"
    ):
        facts_of(odd, "x")


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, target: Any) -> None:
    """A target as a GGUF file of float32."""
    writer, config = gguf.GGUFWriter(path, "qwen3"), target.model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    for name, weight in target.model.state_dict().items():
        parts = name.removesuffix(".weight").split(".", 3)
        inside = f"blk.{parts[2]}.{GGUF_NAMES[parts[3]]}" if len(parts) > 3 else GGUF_NAMES[".".join(parts)]
        writer.add_tensor(f"{inside}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_a_target(tmp_path: Path) -> None:
    # transformers reads no head size from such a file and takes Qwen3's 128
    made = tiny_target(num_hidden_layers=4, num_attention_heads=1, num_key_value_heads=1, head_dim=128)
    write_gguf(tmp_path / "made.gguf", made)
    target = load_target(str(tmp_path / "made.gguf"), Loading(dtype="float32"))
    ids_BS = torch.arange(3, 12)[None]
    assert (target.features(ids_BS, [2])[0] - made.features(ids_BS, [2])[0]).abs().max() < 1e-5
    assert load_facts(str(tmp_path / "made.gguf"), Loading()).num_layers == 4
