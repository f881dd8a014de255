"""What a rank needs to start: the data, the target, and the drafter at its first weights."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dflash.batching.batch import Batch
from dflash.batching.description import digest_of_column
from dflash.batching.plan import Plan, load_plan
from dflash.data.shards import Shards
from dflash.data.tokenizer import load_tokenizer
from dflash.model.anchors import AnchorRules
from dflash.model.drafter import Drafter
from dflash.model.drafter_config import DrafterConfig, TargetFacts, Wishes, derive_config, paper_gamma
from dflash.model.importing import import_drafter
from dflash.model.mask_token import choose_mask_token
from dflash.model.objective import Head, Objective
from dflash.model.target import Loading, Target, load_target
from dflash.training.job import Job
from dflash.training.stream import Costs, Samples, Stream, heldout_batches, largest_packet, total_steps
from dflash.transfer.roles import Topology


@dataclass(frozen=True)
class Data:
    """The plan, the samples and the order of work. largest: rows and width of the largest micro-batch."""

    plan: Plan
    samples: Samples
    heldout: Samples
    heldout_batches: list[Batch]
    stream: Stream
    largest: tuple[int, int]


def open_data(job: Job, topology: Topology) -> Data:
    """Open plan and shards.

    Raises:
        ValueError: the plan was made for other data.
    """
    plan = load_plan(job.plan)
    samples, heldout = Shards(job.shards, "train"), Shards(job.shards, "validation")
    if digest_of_column(samples.lengths_N) != plan.description.lengths_digest:
        raise ValueError(
            f"{job.plan} was built for other lengths than those of the token shards; build it again"
        )
    config = plan.description.config
    chosen = heldout_batches(heldout, job.training.heldout_samples, config.budget_tokens)
    costs = Costs(config.limits, job.anchors.share, job.anchors.max_per_sample)
    num_steps = total_steps(plan, job.training.num_steps, job.training.num_epochs)
    stream = Stream(
        plan, samples, (heldout, chosen), costs, topology, num_steps, job.training.heldout_interval_steps
    )
    rows = [plan.max_rows(width) for width in plan.widths]
    return Data(plan, samples, heldout, chosen, stream, largest_packet(plan.widths, rows, chosen))


@dataclass(frozen=True)
class TargetEnds:
    """What a drafter uses of its target; a rank that only trains keeps nothing else of it."""

    facts: TargetFacts
    embedding_VH: Tensor
    head: Head


def ends_of(target: Target, device: torch.device) -> TargetEnds:
    """The ends of a target on a device. Embedding and head may be one tensor, and stay one."""
    embedding_VH = target.embedding_VH.detach().to(device)
    tied = target.head.weight_VH.data_ptr() == target.embedding_VH.data_ptr()
    bias_V = None if target.head.bias_V is None else target.head.bias_V.detach().to(device)
    weight_VH = embedding_VH if tied else target.head.weight_VH.detach().to(device)
    return TargetEnds(target.facts, embedding_VH, Head(weight_VH, bias_V, target.head.softcap))


def open_target(job: Job, device: torch.device) -> tuple[Target, DrafterConfig, list[str]]:
    """Load the target, and derive the drafter's shape from it; with notices worth showing."""
    loading = job.target_loading
    target = load_target(
        job.target,
        Loading(loading.revision, loading.dtype, loading.attention, loading.trust_remote_code),
        device,
    )
    tokenizer = load_tokenizer(
        job.target, revision=loading.revision, trust_remote_code=loading.trust_remote_code
    )
    mask_token_id = choose_mask_token(tokenizer, target.embedding_VH, job.drafter.mask_token_id)
    wishes = job.drafter.model_dump(exclude={"mask_token_id"})
    taps = wishes.pop("taps")
    config, notices = derive_config(
        target.facts, Wishes(taps=None if taps is None else tuple(taps), **wishes), mask_token_id
    )
    return target, config, notices


def objective_of(job: Job) -> Objective:
    """The objective with the paper's decay where none is set."""
    settings = job.objective
    gamma = paper_gamma(job.drafter.block_size) if settings.gamma is None else settings.gamma
    return Objective(settings.labels, settings.weighting, gamma, settings.dpace_alpha)


def rules_of(job: Job) -> AnchorRules:
    """Which positions become anchors."""
    return AnchorRules(**job.anchors.model_dump())


def new_drafter(job: Job, config: DrafterConfig, ends: TargetEnds) -> Drafter:
    """A drafter at its first weights, float32: drawn from the seed, or read from `start_from`.

    Raises:
        ValueError: the drafter to start from has another shape.
    """
    drafter = Drafter(config)
    if job.start_from is None:
        drafter.initialize(job.training.seed, ends.head.weight_VH.cpu())
        return drafter
    other, weights = import_drafter(job.start_from, ends.facts)
    differing = [name for name, value in vars(config).items() if vars(other)[name] != value]
    if differing:
        named = ", ".join(
            f"{name} {getattr(other, name)!r} (config: {getattr(config, name)!r})" for name in differing
        )
        raise ValueError(
            f"training.start_from: the drafter in {job.start_from} has {named}; give the config the same shape"
        )
    drafter.load_state_dict({name: value.float() for name, value in weights.items()})
    return drafter


def identity_of(job: Job, data: Data, config: DrafterConfig) -> dict[str, Any]:
    """What must stay the same for a run to go on: plan, drafter, anchors, objective, training."""
    return {
        "plan": {"plan_id": data.plan.plan_id, **asdict(data.plan.description.config)},
        "drafter": config.as_json(),
        "anchors": job.anchors.model_dump(),
        "objective": asdict(objective_of(job)),
        "training": job.training.model_dump(
            mode="json", exclude={"kernels", "deterministic", "max_bad_steps"}
        ),
        "target": {"name": job.target, **job.target_loading.model_dump(exclude={"trust_remote_code"})},
    }
