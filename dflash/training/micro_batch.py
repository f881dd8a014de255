"""One micro-batch on a drafter: its rows and anchors, its loss and its gradients."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash.batching.batch import Batch
from dflash.kernels.anchor_attention import Backend
from dflash.model.anchors import (
    AnchorRules,
    Anchors,
    Slots,
    choose_anchors,
    padded_rows,
    refuse_mask_token,
    supervised_slots,
)
from dflash.model.drafter import Blocks, Drafter, block_tokens
from dflash.model.objective import Head, MicroBatchLoss, Objective, micro_batch_loss
from dflash.training.memory import is_out_of_memory, out_of_memory_message
from dflash.training.stream import Samples


@dataclass(frozen=True)
class Rows:
    """The rows of a micro-batch.

    Attributes:
        ids_BS: int64 tokens, padded with 0. positions_BS: int64 positions inside documents, None for one document a row.
        anchors, slots: what is trained on; None on a rank that only runs the target.
    """

    ids_BS: Tensor
    positions_BS: Tensor | None
    anchors: Anchors | None
    slots: Slots | None

    def part(self, first: int, last: int) -> "Rows":
        """The rows [first, last), with their anchors."""
        positions_BS = None if self.positions_BS is None else self.positions_BS[first:last]
        if self.anchors is None or self.slots is None:
            return Rows(self.ids_BS[first:last], positions_BS, None, None)
        chosen = (self.anchors.rows_A >= first) & (self.anchors.rows_A < last)
        begin = int(np.argmax(chosen)) if chosen.any() else 0
        inside = (self.slots.rows_M >= first) & (self.slots.rows_M < last)
        kept = {name: value[chosen] for name, value in vars(self.anchors).items() if name != "num_cut"}
        kept["rows_A"] = kept["rows_A"] - first
        slots = {name: value[inside] for name, value in vars(self.slots).items()}
        slots["rows_M"], slots["blocks_M"] = slots["rows_M"] - first, slots["blocks_M"] - begin
        # What the cap took away is counted once.
        cut = self.anchors.num_cut if first == 0 else 0
        return Rows(self.ids_BS[first:last], positions_BS, Anchors(**kept, num_cut=cut), Slots(**slots))


def rows_of(batch: Batch, samples: Samples, device: torch.device) -> tuple[Rows, list[np.ndarray]]:
    """The rows without anchors, as a target needs them, and the loss mask of every document."""
    read = [samples.sample(int(number)) for number in batch.sample_ids]
    documents, masks = [ids for ids, _ in read], [mask for _, mask in read]
    ids_BS = torch.from_numpy(padded_rows(documents, batch.row_offsets, batch.width).astype(np.int64)).to(
        device
    )
    positions_BS = None
    if len(batch.sample_ids) > batch.num_rows:
        positions = padded_rows([np.arange(len(each)) for each in documents], batch.row_offsets, batch.width)
        positions_BS = torch.from_numpy(positions).to(device)
    return Rows(ids_BS, positions_BS, None, None), masks


@dataclass(frozen=True)
class Learner:
    """What turns rows and features into a loss.

    Attributes:
        embedding_VH: the target's. compute_dtype: of the drafter's products; float32 runs without autocast.
    """

    drafter: Drafter
    embedding_VH: Tensor
    head: Head
    objective: Objective
    rules: AnchorRules
    compute_dtype: torch.dtype
    backend: Backend

    def rows(self, batch: Batch, samples: Samples, epoch: int) -> Rows:
        """The rows of a micro-batch with their anchors.

        Raises:
            ValueError: the mask token stands in the data.
        """
        plain, masks = rows_of(batch, samples, self.embedding_VH.device)
        refuse_mask_token(
            [samples.sample(int(number))[0] for number in batch.sample_ids], self.drafter.config.mask_token_id
        )
        anchors = choose_anchors(
            masks, samples.keys_N[batch.sample_ids], batch.row_offsets, epoch, self.rules
        )
        mask_BS = padded_rows(masks, batch.row_offsets, batch.width)
        slots = supervised_slots(anchors, mask_BS, self.drafter.config.block_size)
        return Rows(plain.ids_BS, plain.positions_BS, anchors, slots)

    def loss(self, rows: Rows, features_BSF: Tensor, final_BSH: Tensor | None) -> MicroBatchLoss:
        """The loss of a micro-batch that has anchors."""
        assert rows.anchors is not None and rows.slots is not None
        device = self.embedding_VH.device
        places = (rows.anchors.rows_A, rows.anchors.starts_A, rows.anchors.anchors_A)
        blocks = Blocks(*(torch.from_numpy(each).to(device) for each in places))
        config = self.drafter.config
        tokens_AL = block_tokens(
            rows.ids_BS[blocks.rows_A, blocks.anchors_A], config.block_size, config.mask_token_id
        )
        mixed = self.compute_dtype != torch.float32
        with torch.autocast(device.type, self.compute_dtype, enabled=mixed):
            drafted_ALH = self.drafter.blocks(
                features_BSF,
                self.embedding_VH[tokens_AL],
                blocks,
                positions_BS=rows.positions_BS,
                backend=self.backend,
            )
            return micro_batch_loss(
                drafted_ALH, rows.slots, rows.ids_BS, final_BSH, self.head, self.objective, self.backend
            )

    def gradients(
        self, rows: Rows, features_BSF: Tensor, final_BSH: Tensor | None, splits: bool
    ) -> "Learned":
        """The sums and gradients of a micro-batch that has anchors.

        Args:
            splits: halve the rows of a micro-batch that does not fit in memory, instead of stopping. The loss is a sum,
                so halves add up to the same.

        Raises:
            ValueError: out of memory.
        """
        parameters = list(self.drafter.parameters())
        try:
            loss = self.loss(rows, features_BSF, final_BSH)
            gradients = torch.autograd.grad(loss.loss_sum, parameters)
            return Learned(loss.loss_sum.detach(), loss.static_weight, list(gradients))
        except RuntimeError as error:
            halves = self._halves(rows, features_BSF, final_BSH, splits, error)
        whole = Learned(
            torch.zeros((), device=features_BSF.device), 0.0, [torch.zeros_like(each) for each in parameters]
        )
        for half in halves:
            whole.add(self.gradients(*half, splits))
        return whole

    def counts(self, rows: Rows, features_BSF: Tensor, final_BSH: Tensor | None, splits: bool) -> Tensor:
        """Held-out counts [len(COUNTED), A, L] of a micro-batch that has anchors; as `gradients` where memory runs out."""
        try:
            return self.loss(rows, features_BSF, final_BSH).counts_CAL
        except RuntimeError as error:
            halves = self._halves(rows, features_BSF, final_BSH, splits, error)
        return torch.cat([self.counts(*half, splits) for half in halves], dim=1)

    def _halves(
        self,
        rows: Rows,
        features_BSF: Tensor,
        final_BSH: Tensor | None,
        splits: bool,
        error: RuntimeError,
    ) -> list[tuple[Rows, Tensor, Tensor | None]]:
        """Those halves of a micro-batch that have anchors, after an error that said that it did not fit."""
        assert rows.anchors is not None
        num_rows, width = rows.ids_BS.shape
        if not is_out_of_memory(error):
            raise error
        if not splits or num_rows == 1:
            raise ValueError(
                out_of_memory_message("drafter", num_rows, width, len(rows.anchors.rows_A), splits)
            ) from error
        halves = []
        for first, last in ((0, num_rows // 2), (num_rows // 2, num_rows)):
            part = rows.part(first, last)
            if part.anchors is not None and len(part.anchors.rows_A):
                final = None if final_BSH is None else final_BSH[first:last]
                halves.append((part, features_BSF[first:last], final))
        return halves


@dataclass
class Learned:
    """What a micro-batch adds to its step: weighted loss, static weight, float32 gradients in the parameters' order."""

    loss_sum: Tensor
    static_weight: float
    gradients: list[Tensor]

    def add(self, other: "Learned") -> None:
        """Add another part of the same micro-batch."""
        self.loss_sum = self.loss_sum + other.loss_sum
        self.static_weight += other.static_weight
        torch._foreach_add_(self.gradients, other.gradients)
