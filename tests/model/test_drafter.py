"""The draft model against a float64 re-statement, what its slots may see, and drafting with a cache."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dflash.kernels.anchor_attention import Backend
from dflash.model.anchors import AnchorRules, choose_anchors
from dflash.model.drafter import Blocks, Drafter
from dflash.model.drafter_config import DrafterConfig
from tests.model.restatement import forward
from tests.model.tiny import MASK, VOCABULARY, Rows, rows_of, tiny_drafter, tiny_target

TRITON = pytest.param(
    "triton",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton needs a GPU")],
)
BACKENDS = pytest.mark.parametrize("backend", ["reference", TRITON])
LAYOUTS = {"padded": [[21], [14], [9]], "packed": [[12, 9], [10, 11], [21]]}
# rows whose documents have borders at 12 and 10; the third has one document


def features_of(rows: Rows, config: DrafterConfig, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*rows.ids_BS.shape, len(config.taps) * config.hidden_size, generator=generator)


def drafted(
    drafter: Drafter, rows: Rows, features_BSF: Tensor, embedding_VH: Tensor, backend: Backend = "reference"
) -> Tensor:
    """The training forward, on the device of the backend; the result on the CPU."""
    device = "cuda" if backend == "triton" else "cpu"
    embedded = functional.embedding(rows.tokens_AL, embedding_VH).to(device)
    blocks = Blocks(*(each.to(device) for each in vars(rows.blocks).values()))
    positions_BS = rows.positions_BS.to(device)
    out = drafter.to(device).blocks(
        features_BSF.to(device), embedded, blocks, positions_BS=positions_BS, backend=backend
    )
    return out.cpu()


def restated(drafter: Drafter, rows: Rows, features_BSF: Tensor, embedding_VH: Tensor) -> np.ndarray:
    config = drafter.config
    weights = {name: value.double().numpy() for name, value in drafter.state_dict().items()}
    shape = {
        "head_size": config.head_size,
        "eps": config.rms_norm_eps,
        "theta": config.rope["rope_theta"],
        "rotated": config.head_size * config.rope["partial_rotary_factor"],
        "window": config.windows[0] or 0,
    }
    out = np.zeros((*rows.tokens_AL.shape, config.hidden_size))
    for row in range(rows.ids_BS.shape[0]):
        here = rows.anchors.rows_A == row
        embedded = embedding_VH.double().numpy()[rows.tokens_AL.numpy()[here]]
        anchors, starts = rows.anchors.anchors_A[here].tolist(), rows.anchors.starts_A[here].tolist()
        positions = rows.positions_BS[row].double().numpy()
        out[here] = forward(
            weights, features_BSF[row].double().numpy(), embedded, positions, anchors, starts, shape
        )
    return out


@BACKENDS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"sliding_window": 6},
        {"num_heads": 2, "num_key_value_heads": 1, "head_size": 16, "num_layers": 1},
        {"block_size": 9},
    ],
    ids=["plain", "window", "other heads", "long block"],
)
def test_equals_the_papers_masked_forward(layout: str, wishes: dict[str, int], backend: Backend) -> None:
    target = tiny_target()
    drafter = tiny_drafter(target, **wishes)
    rows = rows_of(LAYOUTS[layout], block_size=drafter.config.block_size)
    features_BSF = features_of(rows, drafter.config)
    mine = drafted(drafter, rows, features_BSF, target.embedding_VH, backend).detach().numpy()
    wanted = restated(drafter.cpu(), rows, features_BSF, target.embedding_VH)
    assert len(wanted) > 25 and np.abs(wanted).max() > 1
    assert np.abs(mine - wanted).max() < 2e-5


def test_part_of_a_head_may_rotate() -> None:
    target = tiny_target()
    config = tiny_drafter(target).config
    partly = Drafter(replace(config, rope={**config.rope, "partial_rotary_factor": 0.5}))
    partly.load_state_dict(tiny_drafter(target).state_dict())
    rows = rows_of(LAYOUTS["padded"])
    features_BSF = features_of(rows, config)
    wanted = restated(partly, rows, features_BSF, target.embedding_VH)
    assert (
        np.abs(drafted(partly, rows, features_BSF, target.embedding_VH).detach().numpy() - wanted).max()
        < 2e-5
    )
    assert (
        np.abs(
            drafted(tiny_drafter(target), rows, features_BSF, target.embedding_VH).detach().numpy() - wanted
        ).max()
        > 1e-3
    )


@BACKENDS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_block_sees_its_anchors_features_or_anything_later(layout: str, backend: Backend) -> None:
    target = tiny_target()
    drafter = tiny_drafter(target)
    rows = rows_of(LAYOUTS[layout])
    features_BSF = features_of(rows, drafter.config)
    before = drafted(drafter, rows, features_BSF, target.embedding_VH, backend)
    anchors = rows.anchors
    for block in range(0, len(anchors.rows_A), 3):
        row, anchor, start = anchors.rows_A[block], anchors.anchors_A[block], anchors.starts_A[block]
        changed = features_of(rows, drafter.config, seed=99)
        changed[row, start:anchor] = features_BSF[row, start:anchor]
        after = drafted(drafter, rows, changed, target.embedding_VH, backend)
        assert torch.equal(after[block], before[block]), "a block moved with what it must not see"
        # the check can fail: the feature just before the anchor is seen
        changed[row, anchor - 1] += 1.0
        seen = drafted(drafter, rows, changed, target.embedding_VH, backend)
        assert not torch.equal(seen[block], before[block])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_block_sees_a_later_token(layout: str) -> None:
    """From tokens on: the target's features and the block's inputs are made again from the changed text."""
    target = tiny_target()
    drafter = tiny_drafter(target)
    rows = rows_of(LAYOUTS[layout])

    def whole(ids_BS: Tensor) -> Tensor:
        features_BSF, _ = target.features(
            ids_BS, drafter.config.taps, positions_BS=_continued(rows.positions_BS)
        )
        tokens_AL = rows.tokens_AL.clone()
        tokens_AL[:, 0] = ids_BS[rows.blocks.rows_A, rows.blocks.anchors_A]
        embedded = functional.embedding(tokens_AL, target.embedding_VH)
        return drafter.blocks(features_BSF, embedded, rows.blocks, positions_BS=rows.positions_BS)

    before = whole(rows.ids_BS)
    for block in range(0, len(before), 3):
        row, anchor = rows.anchors.rows_A[block], rows.anchors.anchors_A[block]
        later = rows.ids_BS.clone()
        later[row, anchor + 1 :] = (later[row, anchor + 1 :] + 7) % MASK
        assert (whole(later)[block] - before[block]).abs().max() < 1e-6
        earlier = rows.ids_BS.clone()
        earlier[row, anchor - 1] = (earlier[row, anchor - 1] + 7) % MASK
        assert (whole(earlier)[block] - before[block]).abs().max() > 1e-4


def _continued(positions_BS: Tensor) -> Tensor:
    """Positions with the padding counted on, so that it is not a document of its own."""
    out = positions_BS.clone()
    for row in range(len(out)):
        for place in range(1, out.shape[1]):
            if out[row, place] == 0 and out[row, place:].sum() == 0:
                out[row, place] = out[row, place - 1] + 1
    return out


def test_drafting_with_a_cache_equals_the_training_forward() -> None:
    """Rows of different lengths, features in pieces, entries of rejected tokens overwritten, a row that leaves."""
    target = tiny_target()
    drafter = tiny_drafter(target)
    rows = rows_of(LAYOUTS["padded"])
    features_BSF = features_of(rows, drafter.config)
    trained = drafted(drafter, rows, features_BSF, target.embedding_VH)
    cache = drafter.context_cache(3, 30)
    noise = torch.randn(features_BSF.shape, generator=torch.Generator().manual_seed(5))
    positions_BS = torch.arange(features_BSF.shape[1]).expand(3, -1)
    with torch.no_grad():
        drafter.observe(cache, features_BSF[:, :4], positions_BS[:, :4])
        drafter.observe(cache, noise[:, 4:12], positions_BS[:, 4:12])
        drafter.observe(cache, features_BSF[:, 4:], positions_BS[:, 4:])
        last = [int(np.flatnonzero(rows.anchors.rows_A == row)[-1]) for row in range(3)]
        for chosen in (last, last[1:]):
            if len(chosen) < 3:
                cache.keep_rows(torch.tensor([1, 2]))
            embedded = functional.embedding(rows.tokens_AL[chosen], target.embedding_VH)
            mine = drafter.draft(cache, embedded, torch.from_numpy(rows.anchors.anchors_A[chosen]))
            assert (mine - trained[chosen]).abs().max() < 1e-5


def test_no_anchor_gives_nothing_and_a_gradient_of_nothing() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target)
    rows = rows_of([[6]], prompt=6)
    assert len(rows.anchors.rows_A) == 0
    out = drafted(drafter, rows, features_of(rows, drafter.config), target.embedding_VH)
    assert out.shape == (0, 5, 32)
    out.sum().backward()
    gradients = [weight.grad for weight in drafter.parameters()]
    assert all(each is None or not each.any() for each in gradients)


@pytest.mark.parametrize("tied", [True, False])
def test_a_fresh_drafter_starts_near_ln_v(tied: bool) -> None:
    target = tiny_target(tie_word_embeddings=tied, vocab_size=1024)
    drafter = tiny_drafter(target)
    drafter.initialize(0, target.head.weight_VH)
    rows = rows_of([[60]] * 4)
    out = drafted(drafter, rows, features_of(rows, drafter.config), target.embedding_VH)
    logits = out[:, 1:] @ target.head.weight_VH.T
    labels = torch.randint(0, 1024, logits.shape[:-1], generator=torch.Generator().manual_seed(0))
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert abs(loss.item() - math.log(1024)) < 0.5
    again = tiny_drafter(target, seed=9)
    again.initialize(0, target.head.weight_VH)
    assert all(torch.equal(a, b) for a, b in zip(drafter.parameters(), again.parameters(), strict=True))


def test_casting_the_module_does_not_round_the_rotation() -> None:
    drafter = tiny_drafter(tiny_target())
    speeds = drafter.speeds.clone()
    drafter.to(torch.bfloat16)
    assert drafter.speeds.dtype == torch.float32 and torch.equal(drafter.speeds, speeds)


def test_bfloat16_stays_near_float32() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target)
    rows = rows_of(LAYOUTS["packed"])
    features_BSF = features_of(rows, drafter.config)
    exact = drafted(drafter, rows, features_BSF, target.embedding_VH)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = drafted(drafter, rows, features_BSF.bfloat16(), target.embedding_VH.bfloat16())
    pure = drafted(drafter.to(torch.bfloat16), rows, features_BSF, target.embedding_VH)
    for each in (mixed, pure):
        assert (each.float() - exact).norm() / exact.norm() < 0.03


def test_anchors_in_any_row_draft_the_same() -> None:
    """A document drafts the same alone in a row, and behind another one."""
    target = tiny_target()
    drafter = tiny_drafter(target)
    together = rows_of([[9, 12]])
    features_BSF = features_of(together, drafter.config)
    behind = drafted(drafter, together, features_BSF, target.embedding_VH)
    anchors = choose_anchors(
        together.masks[1:], np.ones(1, np.uint64), np.array([0, 1]), 0, AnchorRules(1.0, 512, 4096, 0)
    )
    count = len(anchors.anchors_A)
    blocks = Blocks(
        *(torch.from_numpy(each) for each in (anchors.rows_A, anchors.starts_A, anchors.anchors_A))
    )
    embedded = functional.embedding(together.tokens_AL[-count:], target.embedding_VH)
    alone = drafter.blocks(features_BSF[:, 9:], embedded, blocks)
    assert count == 8 and (alone - behind[-count:]).abs().max() < 1e-5


def test_the_vocabulary_of_the_tiny_world_is_what_tests_assume() -> None:
    assert tiny_target().embedding_VH.shape[0] == VOCABULARY == MASK + 1


def test_a_block_without_context_sees_itself_alone() -> None:
    """An anchor at a document's first token has no key of context: no NaN, and the documents before are hidden."""
    target = tiny_target()
    drafter = tiny_drafter(target)
    rows = rows_of([[7, 8]], prompt=0)
    assert rows.anchors.anchors_A.tolist()[:1] == [0] and 7 in rows.anchors.anchors_A
    features_BSF = features_of(rows, drafter.config).requires_grad_()
    out = drafted(drafter, rows, features_BSF, target.embedding_VH)
    assert (
        np.abs(
            out.detach().numpy() - restated(drafter, rows, features_BSF.detach(), target.embedding_VH)
        ).max()
        < 2e-5
    )
    first = rows.anchors.anchors_A == rows.anchors.starts_A
    (gradient,) = torch.autograd.grad(out[torch.from_numpy(first)].sum(), features_BSF)
    assert torch.isfinite(out).all() and not gradient.any()
