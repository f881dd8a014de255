"""Our checkpoints, logits, losses and gradients against speculators 0.9.0, in its own environment.

Differences that are named here and reproduced, not hidden:

- its loss is the weighted sum divided by the number of supervised tokens plus 1e-5; ours is divided by the step's static
  weight. Compared is the weighted sum.
- it supervises against the target only; that is our `target_argmax` (its `ce`) and `target_distribution` (`kl_div`).
- it never anchors in the last block_size places of a row, and anchors wherever the mask is 1; compared are its anchors.
- its sliding windows count from the anchor for every slot of a block; ours, vLLM's and Transformers' count from the slot
  itself. Slot 0 sees one token more there. Compared is slot 0 with a window that is one token wider.
- it lets a block that reaches into the next document of a packed row learn that document's tokens; ours ends there.
"""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dflash.model.drafter import Drafter
from dflash.model.objective import Objective, micro_batch_loss
from dflash.model.speculators import export_speculators, import_speculators
from dflash.model.target import Target
from dflash.model.zlab import export_zlab
from tests.model.tiny import MASK, Rows, rows_of, tiny_drafter, tiny_target

FOLDER = Path(__file__).parent
PYTHON = FOLDER.parents[1] / ".venv-interop" / "bin" / "python"
GAMMA, ALPHA = 4.0, 0.5
LOSSES = [
    ("argmax-decay", '{"ce": 1.0}', "fixed-exp-decay"),
    ("argmax-dpace", '{"ce": 1.0}', "dpace"),
    ("distribution-decay", '{"kl_div": 1.0}', "fixed-exp-decay"),
]
CASES: dict[str, dict[str, Any]] = {
    "qwen3": {"family": "qwen3", "num_layers": 2, "num_taps": 3},
    "llama": {"family": "llama", "num_layers": 1, "num_taps": 2},
    "deep": {"family": "llama", "num_layers": 3, "num_taps": 5, "block_size": 8},
    "one-tap": {
        "family": "qwen3",
        "num_layers": 1,
        "num_taps": 1,
        "num_heads": 2,
        "num_key_value_heads": 1,
        "head_size": 16,
    },
    "window": {"family": "qwen3", "num_layers": 1, "num_taps": 2, "sliding_window": 6},
    "packed": {"family": "qwen3", "num_layers": 2, "num_taps": 2},
}
ROWS = {"packed": [[19, 21]]}
SAME = [name for name in CASES if name != "window"]

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason="no .venv-interop; `python tests/interop/create_environment.py` makes it (about a minute)",
)


class Ours:
    """One case on our side: target, drafter, a row, and the exported folders."""

    def __init__(self, name: str, folder: Path) -> None:
        wishes = dict(CASES[name])
        self.target: Target = tiny_target(wishes.pop("family"))
        self.drafter: Drafter = tiny_drafter(self.target, **wishes)
        self.config = self.drafter.config
        # prompts longer than a block, so that no block reaches a supervised token of the next document
        self.rows: Rows = rows_of(ROWS.get(name, [[40]]), block_size=self.config.block_size, prompt=9)
        self.documents = (self.rows.positions_BS == 0).cumsum(1) - 1
        verifier = folder / "target"
        self.target.model.save_pretrained(verifier)
        self.target.facts = type(self.target.facts)(**{**vars(self.target.facts), "name": str(verifier)})
        self.folders = {"speculators": folder / "speculators", "zlab": folder / "zlab"}
        weights = {key: value.detach() for key, value in self.drafter.state_dict().items()}
        export_speculators(
            self.folders["speculators"], self.config, self.target.facts, weights, torch.float32
        )
        export_zlab(self.folders["zlab"], self.config, self.target.facts, weights, torch.float32)
        self.last_hidden = self._before_final_norm()
        positions = self.rows.positions_BS if name in ROWS else None
        self.features, self.final = self.target.features(
            self.rows.ids_BS, self.config.taps, positions_BS=positions, final=True
        )

    def _before_final_norm(self) -> Tensor:
        kept: list[Tensor] = []
        norm = self.target.backbone.norm
        assert isinstance(norm, nn.Module)
        handle = norm.register_forward_pre_hook(lambda _module, inputs: kept.append(inputs[0]))
        self.target.backbone(input_ids=self.rows.ids_BS, position_ids=self.rows.positions_BS, use_cache=False)
        handle.remove()
        return kept[0].detach()

    def case(self, layout: str) -> dict[str, Any]:
        mask = torch.from_numpy(np.concatenate(self.rows.masks).astype("int64"))[None]
        return {
            "folder": str(self.folders[layout]),
            "verifier": self.target.facts.name,
            "ids": self.rows.ids_BS,
            "features": self.features.detach().clone(),
            "last_hidden": self.last_hidden,
            "documents": self.documents,
            "positions": self.rows.positions_BS,
            "mask": mask,
            "anchors": self.peers_anchors(),
            "max_anchors": int(mask[:, : -self.config.block_size].sum()),
            "gamma": GAMMA,
            "dpace_alpha": ALPHA,
            "losses": LOSSES if layout == "speculators" else [],
        }

    def peers_anchors(self) -> list[int]:
        """Ours without those that the peer never takes: the last places of the row."""
        return [int(place) for place in self.rows.anchors.anchors_A if place < 40 - self.config.block_size]

    def drafted(self, drafter: Drafter, count: int) -> Tensor:
        rows = self.rows
        embedded = nn.functional.embedding(rows.tokens_AL, self.target.embedding_VH)
        return drafter.blocks(self.features, embedded, rows.blocks, positions_BS=rows.positions_BS)[:count]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ours, dict[str, Any], dict[str, Any]]]:
    """Every case on our side, and what the peer made of both layouts."""
    root = tmp_path_factory.mktemp("interop")
    ours = {name: Ours(name, root / name) for name in CASES}
    cases = [each.case(layout) for each in ours.values() for layout in ("speculators", "zlab")]
    torch.save(cases, root / "cases.pt")
    command = [PYTHON, FOLDER / "peer.py", root / "cases.pt", root / "results.pt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=root, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = torch.load(root / "results.pt", weights_only=True)
    return {
        name: (ours[name], results[2 * number], results[2 * number + 1]) for number, name in enumerate(CASES)
    }


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("layout", ["speculators", "zlab"])
def test_loads_with_nothing_missing_and_gives_the_same_logits(both: Any, name: str, layout: str) -> None:
    ours, *results = both[name]
    theirs = results[layout == "zlab"]
    assert theirs["info"].keys() >= {"missing_keys", "unexpected_keys", "mismatched_keys"}
    assert {key: value for key, value in theirs["info"].items() if value} == {}
    assert (theirs["block_size"], theirs["mask_token_id"]) == (ours.config.block_size, MASK)
    logits = ours.drafted(ours.drafter, len(theirs["logits"])).detach() @ ours.target.head.weight_VH.T
    assert len(logits) > 15
    assert (logits - theirs["logits"]).abs().max() < 1e-5


@pytest.mark.parametrize("layout", [1, 2], ids=["speculators", "zlab"])
def test_windows_count_from_the_slot_here_and_from_the_anchor_there(both: Any, layout: int) -> None:
    ours, theirs = both["window"][0], both["window"][layout]
    assert {key: value for key, value in theirs["info"].items() if value} == {}
    wider = Drafter(replace(ours.config, windows=(7,)))
    wider.load_state_dict(ours.drafter.state_dict())
    head_HV = ours.target.head.weight_VH.T
    mine, same = (ours.drafted(each, len(theirs["logits"])) @ head_HV for each in (wider, ours.drafter))
    if layout == 1:
        assert (mine[:, 0] - theirs["logits"][:, 0]).abs().max() < 1e-5
    assert (same[:, 0] - theirs["logits"][:, 0]).abs().max() > 1e-3


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("loss", [name for name, *_ in LOSSES])
def test_loss_and_gradients_agree(both: Any, name: str, loss: str) -> None:
    ours, theirs, _ = both[name]
    ours.drafter.zero_grad()
    count = len(theirs["logits"])
    labels, weighting = loss.split("-")
    kept = ours.rows.slots.blocks_M < count
    slots = type(ours.rows.slots)(*(each[kept] for each in vars(ours.rows.slots).values()))
    result = micro_batch_loss(
        ours.drafted(ours.drafter, count),
        slots,
        ours.rows.ids_BS,
        ours.final,
        ours.target.head,
        Objective(
            "target_argmax" if labels == "argmax" else "target_distribution",
            "dpace" if weighting == "dpace" else "decay",
            GAMMA,
            ALPHA,
        ),
    )
    value = result.loss_sum / (kept.sum() + 1e-5)
    value.backward()
    assert value.item() == pytest.approx(theirs[loss]["loss"], rel=1e-5)
    mine = {key: each.grad for key, each in ours.drafter.named_parameters()}
    assert mine.keys() == theirs[loss]["gradients"].keys()
    for key, gradient in theirs[loss]["gradients"].items():
        assert (mine[key] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-7, key


def test_import_gives_the_same_drafter(both: Any) -> None:
    ours, *_ = both["deep"]
    config, weights = import_speculators(ours.folders["speculators"], ours.target.facts)
    assert config == ours.config
    assert all(torch.equal(weights[name], value) for name, value in ours.drafter.state_dict().items())
