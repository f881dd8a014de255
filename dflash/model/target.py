"""The frozen target: loading it, and its features from the backbone alone.

Rows are padded on the right and the target is causal, so no real token ever sees padding and no mask is needed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dflash.data.tokenizer import model_place
from dflash.model.drafter_config import TargetFacts
from dflash.model.objective import Head


@dataclass(frozen=True)
class Loading:
    """How a target is loaded: plain values of the config's `target_loading`."""

    revision: str | None = None
    dtype: str = "auto"
    attention: str = "sdpa"
    trust_remote_code: bool = False


class _LastTapReached(BaseException):
    """Ends a forward pass whose remaining layers nobody needs."""


@dataclass
class Target:
    """A frozen causal language model.

    Attributes:
        model: the whole model, for decoding. backbone: it without its head. layers: its decoder layers.
        facts: its shape, as far as a drafter needs it.
        embedding_VH: what its embedding layer gives for every token (scaled where the model scales it).
        head: its projection to the vocabulary.
        logit_scale: factor between `head` and the logits, put on the final states instead.
    """

    model: PreTrainedModel
    backbone: nn.Module
    layers: nn.ModuleList
    facts: TargetFacts
    embedding_VH: Tensor
    head: Head
    logit_scale: float
    proved: set[str] = field(default_factory=set)

    @property
    def device(self) -> torch.device:
        """Where the embedding lies."""
        return self.embedding_VH.device

    @torch.no_grad()
    def features(
        self, ids_BS: Tensor, taps: Sequence[int], *, positions_BS: Tensor | None = None, final: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Features [B, S, F], and the final states [B, S, H] if they are asked for.

        Args:
            ids_BS: int64 tokens, padded on the right with any token.
            taps: layers, 0-based; their outputs are concatenated in this order.
            positions_BS: int64 positions that start at 0 with every document, for rows that hold several; None where
                each row is one document.
            final: also give the states after the final norm, times the factor that makes `head` give the logits.

        Raises:
            ValueError: several documents a row and an attention that looks past their borders; final states whose
                projection by `head` is not the model's logits. Both are tried out once.
        """
        if positions_BS is not None:
            self._prove("documents", self._check_documents)
        if final:
            self._prove("head", self._check_head)
        return self._run(ids_BS, taps, positions_BS, final)

    def _run(
        self, ids_BS: Tensor, taps: Sequence[int], positions_BS: Tensor | None, final: bool
    ) -> tuple[Tensor, Tensor | None]:
        last = None
        with _tapped(self.layers, taps, stop=not final) as outputs, suppress(_LastTapReached):
            last = self.backbone(
                input_ids=ids_BS, position_ids=positions_BS, use_cache=False
            ).last_hidden_state
        features_BSF = torch.cat([outputs[tap] for tap in taps], dim=-1)
        return features_BSF, None if last is None else last * self.logit_scale

    def _prove(self, name: str, check: Any) -> None:
        if name not in self.proved:
            check()
            self.proved.add(name)

    def _probe_ids(self, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, self.facts.vocab_size, (1, length), generator=generator).to(self.device)

    def _check_documents(self) -> None:
        """Two documents in a row must have the features that they have alone."""
        ids = self._probe_ids(24)
        taps = [self.facts.num_layers - 2]
        positions = torch.cat([torch.arange(11), torch.arange(13)]).to(self.device)[None]
        together, _ = self._run(ids, taps, positions, False)
        alone, _ = self._run(ids[:, 11:], taps, None, False)
        error = float((together[:, 11:] - alone).float().norm() / alone.float().norm())
        if not error < (1e-3 if alone.dtype == torch.float32 else 0.03):
            raise ValueError(
                f"batching.policy 'packed' puts several documents in a row, but {self.facts.name} ({self.facts.model_type}, attention "
                f"{self.model.config._attn_implementation!r}) looks past their borders: the second document's features are "
                f"{100 * error:.0f} % off those it has alone. Use another policy, or another target_loading.attention"
            )

    def _check_head(self) -> None:
        """The head on the final states must give the model's own logits."""
        ids = self._probe_ids(12)
        _, final = self._run(ids, [0], None, True)
        assert final is not None
        wanted = self.model(input_ids=ids, use_cache=False).logits.float()
        logits = nn.functional.linear(final, self.head.weight_VH, self.head.bias_V).float()
        if self.head.softcap is not None:
            logits = self.head.softcap * torch.tanh(logits / self.head.softcap)
        error = float((logits - wanted).norm() / wanted.norm())
        if not error < (1e-4 if final.dtype == torch.float32 else 0.05):
            raise ValueError(
                f"the head of {self.facts.name} ({self.facts.model_type}) on its final states is {100 * error:.0f} % off its own logits, "
                "so labels of the target would be wrong; set objective.labels: data"
            )


def load_target(target: str, loading: Loading, device: str | torch.device = "cpu") -> Target:
    """Load a target for inference.

    Args:
        target: `demo`, `hub:OWNER/NAME`, a model folder, or a GGUF file (which is dequantized).
        loading: revision, type, attention, whether code in the model's folder may run.

    Raises:
        ValueError: there is no such target, or one of a kind that cannot be tapped.
    """
    device = torch.device(device)
    place, options = model_place(target, loading.revision)
    dtype = compute_dtype(loading.dtype, device)
    options |= {"trust_remote_code": loading.trust_remote_code}
    model = AutoModelForCausalLM.from_pretrained(
        place, dtype=dtype, attn_implementation=loading.attention, **options
    )
    model.to(device)  # type: ignore[arg-type]
    return wrap_target(model, public_name(target))


def load_facts(target: str, loading: Loading) -> TargetFacts:
    """The shape of a target, without its weights (but for a GGUF file, whose header is read)."""
    place, options = model_place(target, loading.revision)
    config = AutoConfig.from_pretrained(place, trust_remote_code=loading.trust_remote_code, **options)
    return facts_of(config, public_name(target))


def public_name(target: str) -> str:
    """A target as other libraries find it; the demo's is a path from the project's folder."""
    return "dflash/demo" if target == "demo" else target.removeprefix("hub:")


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type of a setting; `auto` is bfloat16 where the device multiplies it natively, else float32."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        # without either, bfloat16 products are slower than float32 ones; with AVX-512 BF16 405 against 140 GFLOP/s on two cores
        native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def wrap_target(model: PreTrainedModel, name: str) -> Target:
    """Freeze a loaded model and find the parts that a drafter uses.

    Raises:
        ValueError: no list of as many decoder layers as the config says, or no embedding or head of one matrix.
    """
    model = model.eval().requires_grad_(False)
    model.config.architectures = model.config.architectures or [type(model).__name__]
    facts = facts_of(model.config, name)
    backbone = model.get_decoder()
    lists = [
        each
        for each in backbone.modules()
        if isinstance(each, nn.ModuleList) and len(each) == facts.num_layers
    ]
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not lists or not isinstance(head, nn.Linear) or not isinstance(embedding, nn.Embedding):
        raise ValueError(
            f"{name} ({facts.model_type}) has no plain decoder layers, embedding and head; it cannot be a target"
        )
    scale = getattr(embedding, "embed_scale", 1.0)
    config = model.config.get_text_config(decoder=True)
    return Target(
        model=model,
        backbone=backbone,
        layers=lists[0],
        facts=facts,
        embedding_VH=embedding.weight
        if scale == 1.0
        else embedding.weight * torch.as_tensor(scale).to(embedding.weight),
        head=Head(head.weight, head.bias, getattr(config, "final_logit_softcapping", None)),
        logit_scale=getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0),
    )


def facts_of(config: Any, name: str) -> TargetFacts:
    """The facts of a transformers config; of a multimodal one, those of its text decoder.

    Raises:
        ValueError: the config lacks what every decoder has.
    """
    text = config.get_text_config(decoder=True)
    missing = [
        key
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        if not hasattr(text, key)
    ]
    if missing:
        raise ValueError(
            f"the config of {name} ({config.model_type}) has no {', '.join(missing)}; it cannot be a target"
        )
    heads = text.num_attention_heads
    even = None if text.hidden_size % heads else text.hidden_size // heads
    return TargetFacts(
        name=name,
        architecture=(config.architectures or [config.model_type])[0],
        model_type=config.model_type,
        hidden_size=text.hidden_size,
        intermediate_size=_single(getattr(text, "intermediate_size", None)),
        num_layers=text.num_hidden_layers,
        num_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_size=getattr(text, "head_dim", None) or even,
        vocab_size=text.vocab_size,
        rms_norm_eps=getattr(text, "rms_norm_eps", None) or 1e-6,
        rope=_rope_of(text),
        max_position_embeddings=getattr(text, "max_position_embeddings", None) or 32768,
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
    )


def _single(size: Any) -> int | None:
    """A size that is the same in every layer; some configs give a list."""
    sizes = set(size) if isinstance(size, (list, tuple)) else {size}
    return sizes.pop() if len(sizes) == 1 else None


def _rope_of(text: Any) -> dict[str, Any]:
    """Rope parameters; of a model with several kinds of layers, those of full attention."""
    rope = getattr(text, "rope_parameters", None) or {}
    if "full_attention" in rope:
        rope = rope["full_attention"]
    return {"rope_theta": getattr(text, "rope_theta", 10000.0), **rope}


@contextmanager
def _tapped(layers: nn.ModuleList, taps: Sequence[int], *, stop: bool) -> Iterator[dict[int, Tensor]]:
    """Collect the outputs of layers; with `stop`, the pass ends at the last of them."""
    outputs: dict[int, Tensor] = {}

    def keep(tap: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            outputs[tap] = output[0] if isinstance(output, tuple) else output
            if stop and tap == max(taps):
                raise _LastTapReached

        return hook

    handles = [layers[tap].register_forward_hook(keep(tap)) for tap in taps]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
