"""The paper's masked forward (arXiv:2602.06036), stated again in NumPy and float64: one dense mask, no shortcuts.

Keys are [context 0 .. S-1 | block 1 | block 2 | ...] of one row. A query of block j sees the context strictly before its
anchor, in the anchor's document and within the window, and its own block; nothing else.
"""

import numpy as np

Weights = dict[str, np.ndarray]


def norm(states: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return states / np.sqrt((states**2).mean(axis=-1, keepdims=True) + eps) * weight


def rotated(states: np.ndarray, positions: np.ndarray, theta: float, size: int) -> np.ndarray:
    """[T, heads, D] turned by its positions in the first `size` dimensions."""
    out = states.copy()
    for pair in range(size // 2):
        angle = positions * theta ** (-2.0 * pair / size)
        x, y = states[..., pair], states[..., pair + size // 2]
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out[..., pair], out[..., pair + size // 2] = x * c - y * s, y * c + x * s
    return out


def allowed(
    width: int, anchors: list[int], starts: list[int], block_size: int, window: int | None
) -> np.ndarray:
    """The whole mask, entry by entry: bool [blocks x slots, width + blocks x slots]."""
    queries = len(anchors) * block_size
    mask = np.zeros((queries, width + queries), dtype=bool)
    for query in range(queries):
        block, slot = divmod(query, block_size)
        for key in range(width):
            near = window is None or anchors[block] + slot - key < window
            mask[query, key] = starts[block] <= key < anchors[block] and near
        for key in range(queries):
            mask[query, width + key] = key // block_size == block
    return mask


def forward(
    weights: Weights,
    features: np.ndarray,
    embedded: np.ndarray,
    positions: np.ndarray,
    anchors: list[int],
    starts: list[int],
    shape: dict[str, float],
) -> np.ndarray:
    """Hidden states after the final norm, [blocks, slots, H], of the blocks of one row.

    `shape`: head_size, eps, theta, rotated (dimensions), window (0 for none).
    """
    blocks, slots, hidden = embedded.shape
    size, eps, window = int(shape["head_size"]), shape["eps"], int(shape["window"]) or None
    context = norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    states = embedded.reshape(blocks * slots, hidden)
    block_positions = np.concatenate([positions[anchor] + np.arange(slots) for anchor in anchors])
    all_positions = np.concatenate([positions, block_positions])
    mask = allowed(len(features), anchors, starts, slots, window)
    layer = 0
    while f"layers.{layer}.input_layernorm.weight" in weights:
        own = {
            name.split(".", 2)[2]: value
            for name, value in weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        inputs = norm(states, own["input_layernorm.weight"], eps)
        states = states + _attention(own, inputs, context, mask, all_positions, block_positions, shape, size)
        inputs = norm(states, own["post_attention_layernorm.weight"], eps)
        gate = inputs @ own["mlp.gate_proj.weight"].T
        states = (
            states
            + (gate / (1 + np.exp(-gate)) * (inputs @ own["mlp.up_proj.weight"].T))
            @ own["mlp.down_proj.weight"].T
        )
        layer += 1
    return norm(states, weights["norm.weight"], eps).reshape(blocks, slots, hidden)


def _attention(
    own: Weights,
    inputs: np.ndarray,
    context: np.ndarray,
    mask: np.ndarray,
    all_positions: np.ndarray,
    block_positions: np.ndarray,
    shape: dict[str, float],
    size: int,
) -> np.ndarray:
    everything = np.concatenate([context, inputs])
    queries = (inputs @ own["self_attn.q_proj.weight"].T).reshape(len(inputs), -1, size)
    keys = (everything @ own["self_attn.k_proj.weight"].T).reshape(len(everything), -1, size)
    values = (everything @ own["self_attn.v_proj.weight"].T).reshape(len(everything), -1, size)
    turn = (shape["theta"], int(shape["rotated"]))
    queries = rotated(norm(queries, own["self_attn.q_norm.weight"], shape["eps"]), block_positions, *turn)
    keys = rotated(norm(keys, own["self_attn.k_norm.weight"], shape["eps"]), all_positions, *turn)
    out = np.zeros_like(queries)
    for head in range(queries.shape[1]):
        group = head // (queries.shape[1] // keys.shape[1])
        scores = np.where(mask, queries[:, head] @ keys[:, group].T / np.sqrt(size), -np.inf)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = chances / chances.sum(axis=1, keepdims=True) @ values[:, group]
    return out.reshape(len(inputs), -1) @ own["self_attn.o_proj.weight"].T
