"""One training step of the drafter, forward and backward, beside speculators 0.9.0 on the same CPU.

Both sides get the same float32 weights, features, tokens and anchors: H = 1,024, five layers, blocks of 16, a context of
2,048. Every point runs in a process of its own under a limit on its memory; a side that does not fit says so. Compared
are the objective that each side trains by default, and the same objective on both.

    python tests/interop/create_environment.py
    python benchmarks/drafter_step.py [--vocabularies 32000 150000] [--anchors 64 128 512] [--threads 2] [--limit-gib 12]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HIDDEN, WIDE, LAYERS, HEADS, KEY_HEADS, HEAD_SIZE, BLOCK, CONTEXT, TAPS = (
    1024,
    3072,
    5,
    16,
    8,
    64,
    16,
    2048,
    5,
)
GAMMA, ALPHA = 7.0, 0.5
OBJECTIVES = {
    "ours": {"default": ("data", "decay"), "equal": ("target_argmax", "dpace")},
    "speculators": {"default": ("argmax", "dpace"), "equal": ("argmax", "dpace")},
}
"""Labels and weights. The peer knows no labels of the data; its default is D-PACE on the target's argmax."""


def inputs(vocabulary: int, num_anchors: int) -> dict[str, Any]:
    """The same numbers on both sides: a seed each."""
    import torch

    from dflash.model.drafter_config import DrafterConfig
    from dflash.model.drafter_files import weight_shapes

    config = DrafterConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_size=HEAD_SIZE,
        vocab_size=vocabulary,
        taps=tuple(range(1, 1 + TAPS)),
        block_size=BLOCK,
        mask_token_id=vocabulary - 1,
        num_target_layers=28,
        rope={"rope_theta": 1e6, "rope_type": "default", "partial_rotary_factor": 1.0},
        windows=(None,) * LAYERS,
    )
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(0.0, 0.02, generator=generator)

    weights = {
        name: normal(*shape) if len(shape) == 2 else torch.ones(shape)
        for name, shape in sorted(weight_shapes(config).items())
    }
    return {
        "config": config,
        "weights": weights,
        "embedding": normal(vocabulary, HIDDEN),
        "head": normal(vocabulary, HIDDEN),
        "features": 50 * normal(1, CONTEXT, TAPS * HIDDEN),
        # of unit root mean square, so that the peer's norm leaves it as it is
        "final": torch.nn.functional.rms_norm(normal(1, CONTEXT, HIDDEN), (HIDDEN,)),
        "ids": torch.randint(0, vocabulary - 1, (1, CONTEXT), generator=generator),
        "anchors": torch.randperm(CONTEXT - BLOCK - 1, generator=generator)[:num_anchors].sort().values + 1,
    }


def our_step(given: dict[str, Any], labels: Any, weighting: Any) -> Callable[[], float]:
    """Forward and backward of `dflash.model`."""
    import numpy as np
    import torch
    from torch.nn import functional

    from dflash.model.anchors import Anchors, supervised_slots
    from dflash.model.drafter import Blocks, Drafter, block_tokens
    from dflash.model.objective import Head, Objective, micro_batch_loss

    drafter = Drafter(given["config"])
    drafter.load_state_dict(given.pop("weights"))
    anchors_A, ids = given["anchors"], given["ids"]
    nothing = np.zeros(len(anchors_A), dtype=np.int64)
    places = Anchors(nothing, nothing, nothing + CONTEXT, anchors_A.numpy(), 0)
    slots = supervised_slots(places, np.ones((1, CONTEXT), dtype=np.uint8), BLOCK)
    blocks = Blocks(torch.from_numpy(nothing), torch.from_numpy(nothing), anchors_A)
    head, objective = Head(given["head"]), Objective(labels, weighting, GAMMA, ALPHA)

    def step() -> float:
        drafter.zero_grad()
        tokens = block_tokens(ids[0, anchors_A], BLOCK, given["config"].mask_token_id)
        drafted = drafter.blocks(given["features"], functional.embedding(tokens, given["embedding"]), blocks)
        loss = micro_batch_loss(drafted, slots, ids, given["final"], head, objective)
        mean = loss.loss_sum / len(slots.slots_M)
        mean.backward()
        return mean.item()

    return step


def peer_step(given: dict[str, Any], weighting: str, attention: str) -> Callable[[], float]:
    """Forward and backward of speculators, with the anchors given instead of drawn."""
    import torch
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import DFlashSpeculatorConfig, core
    from transformers import Qwen3Config

    from dflash.model.zlab import qwen3_fields

    config = given["config"]
    shape = Qwen3Config(**qwen3_fields(config))
    shape._attn_implementation = attention
    model = core.DFlashDraftModel(
        DFlashSpeculatorConfig(
            transformer_layer_config=shape,
            draft_vocab_size=config.vocab_size,
            block_size=BLOCK,
            aux_hidden_state_layer_ids=[tap + 1 for tap in config.taps],
            mask_token_id=config.mask_token_id,
        )
    )
    model.load_state_dict(given.pop("weights"), strict=False)
    model.embed_tokens.weight.data = given["embedding"]
    # the package keeps two heads; here they share their memory, which is to its advantage
    model.lm_head.weight.data = given["head"]
    model.verifier_lm_head.weight.data = given["head"]
    torch.nn.init.ones_(model.verifier_norm.weight)
    anchors = given["anchors"]
    core.select_anchors = lambda *_: (anchors, torch.ones(len(anchors), dtype=torch.bool))
    losses = resolve_loss_config('{"ce": 1.0}', "eager")

    def step() -> float:
        model.zero_grad()
        _, loss, _ = model(
            hidden_states=given["features"],
            input_ids=given["ids"],
            loss_mask=torch.ones(1, CONTEXT, dtype=torch.long),
            verifier_last_hidden_states=given["final"],
            document_ids=torch.zeros(1, CONTEXT, dtype=torch.long),
            max_anchors=len(anchors),
            loss_config=losses,
            gamma=GAMMA,
            per_position_loss_weight=weighting,
            dpace_alpha=ALPHA,
        )
        loss.backward()
        return float(loss.detach())

    return step


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own: the best of the repeats, in seconds, and the peak of resident memory, in bytes.

    CPU seconds are the fair measure where other work shares the cores, best with one thread (threads that wait spin).
    """
    resource.setrlimit(resource.RLIMIT_AS, (options.limit_gib << 30,) * 2)
    import torch

    torch.set_num_threads(options.threads)
    given = inputs(options.vocabularies[0], options.anchors[0])
    labels, weighting = OBJECTIVES[options.child][options.objective]
    try:
        step = (
            our_step(given, labels, weighting)
            if options.child == "ours"
            else peer_step(given, weighting, options.attention)
        )
        held = _resident()
        loss, walls, cpus = step(), [], []
        for _ in range(options.repeats):
            wall, cpu = time.perf_counter(), time.process_time()
            loss = step()
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        return {"out_of_memory": True}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    frozen = 2 * 4 * HIDDEN * options.vocabularies[0]
    times = {"seconds": min(walls), "cpu_seconds": min(cpus)}
    return {**times, "peak": peak, "held": held, "beyond_frozen": peak - frozen, "loss": loss}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def point(
    side: str, vocabulary: int, anchors: int, objective: str, options: argparse.Namespace
) -> dict[str, Any]:
    """One point; of the peer, the faster of its two attentions that run on CPUs."""
    python = sys.executable if side == "ours" else str(ROOT / ".venv-interop" / "bin" / "python")
    found = []
    for attention in ("reference",) if side == "ours" else ("eager", "sdpa"):
        command = [python, __file__, "--child", side, "--objective", objective, "--attention", attention]
        command += [
            "--vocabularies",
            str(vocabulary),
            "--anchors",
            str(anchors),
            "--threads",
            str(options.threads),
        ]
        command += ["--limit-gib", str(options.limit_gib), "--repeats", str(options.repeats)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode < 0:
            found.append({"out_of_memory": True, "attention": attention})
        elif done.returncode:
            raise SystemExit(done.stderr[-3000:])
        else:
            found.append({**json.loads(done.stdout.splitlines()[-1]), "attention": attention})
    return min(found, key=lambda each: each.get("cpu_seconds", float("inf")))


def main() -> None:
    """All points, a line each, and the ratios where both sides ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32000, 150000])
    parser.add_argument("--anchors", type=int, nargs="+", default=[64, 128, 512])
    parser.add_argument("--objectives", nargs="+", default=["default", "equal"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--limit-gib", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--child", choices=sorted(OBJECTIVES), help=argparse.SUPPRESS)
    parser.add_argument("--objective", default="equal", help=argparse.SUPPRESS)
    parser.add_argument("--attention", default="eager", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options)))
        return
    print(
        "vocabulary anchors objective side         seconds  CPU s  peak GiB  beyond head and embedding  loss"
    )
    for vocabulary in options.vocabularies:
        for anchors in options.anchors:
            # both objectives of the peer are the same, so it runs once
            peer = point("speculators", vocabulary, anchors, "equal", options)
            for objective in options.objectives:
                sides = {"ours": point("ours", vocabulary, anchors, objective, options), "speculators": peer}
                for side, each in sides.items():
                    print(f"{vocabulary:10d} {anchors:7d} {objective:9s} {side:12s} {_row(each)}", flush=True)
                print(_ratio(sides), flush=True)


def _row(each: dict[str, Any]) -> str:
    if "out_of_memory" in each:
        return "out of memory"
    peak, beyond = each["peak"] / 2**30, each["beyond_frozen"] / 2**30
    times = f"{each['seconds']:7.2f} {each['cpu_seconds']:6.2f}"
    return f"{times}  {peak:8.2f}  {beyond:25.2f}  {each['loss']:.5f}  {each['attention']}"


def _ratio(sides: dict[str, dict[str, Any]]) -> str:
    if any("out_of_memory" in each for each in sides.values()):
        return "  no ratio: one side ran out of memory"
    ours, peer = sides["ours"], sides["speculators"]
    wall, cpu = peer["seconds"] / ours["seconds"], peer["cpu_seconds"] / ours["cpu_seconds"]
    memory = ours["peak"] / peer["peak"]
    return (
        f"  times as fast: {wall:.2f} by the clock, {cpu:.2f} by CPU time; share of peak memory: {memory:.2f}"
    )


if __name__ == "__main__":
    main()
