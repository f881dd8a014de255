"""Check this machine before an expensive run: every finding in plain words, failures with their remedy."""

from dflash.store.stage import Stage, run_stage

SETTINGS = ("target", "target_loading", "drafter", "training.kernels", "training.compute_dtype")


def work(stage: Stage) -> None:
    """Write preflight.json with the findings of this machine; stops if one is bad."""
    import dataclasses
    import json
    import os
    from pathlib import Path

    import torch

    from dflash.batching.plan import load_plan
    from dflash.config.runtime import Runtime
    from dflash.model.device import device_of
    from dflash.model.drafter_config import Wishes, derive_config
    from dflash.model.drafter_files import weight_shapes
    from dflash.model.target import Loading, compute_dtype, load_facts
    from dflash.planning.kernel_check import check_kernels
    from dflash.planning.preflight import Need, check
    from dflash.transfer.packet import PacketLayout
    from dflash.transfer.roles import Topology

    runtime = Runtime.model_validate(stage.runtime, strict=False)
    facts = load_facts(stage.settings["target"], Loading(**stage.settings["target_loading"]))
    wishes = {name: value for name, value in stage.settings["drafter"].items() if name != "mask_token_id"}
    config, notices = derive_config(facts, Wishes(**wishes), 0)
    plan = load_plan(stage.inputs["build_plan"])
    layout = PacketLayout(len(config.taps) * config.hidden_size, config.hidden_size, torch.bfloat16)
    on_gpu = device_of(runtime.device, 0).type == "cuda"
    chosen = stage.settings["training"]["kernels"]
    need = Need(
        kernels="reference" if chosen == "auto" else chosen,
        num_gpus=Topology.parse(runtime.topology).local_ranks(runtime.num_nodes) if on_gpu else 0,
        drafter_parameters=sum(torch.Size(shape).numel() for shape in weight_shapes(config).values()),
        kept_checkpoints=runtime.keep_checkpoints,
        packet_bytes=max((layout.size(plan.max_rows(width), width) * 2 for width in plan.widths), default=0),
        ring_packets=runtime.ring_packets,
    )
    cache = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    findings = check(need, stage.folder, cache)
    if chosen == "triton" and on_gpu:
        cards = range(min(torch.cuda.device_count(), need.num_gpus))
        capabilities = [10 * major + minor for major, minor in map(torch.cuda.get_device_capability, cards)]
        dtype = compute_dtype(stage.settings["training"]["compute_dtype"], torch.device("cuda"))
        findings += check_kernels(
            config, {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype], capabilities
        )
    for each in findings:
        print(f"{'ok  ' if each.ok else 'FAIL'} {each.name}: {each.found}", flush=True)
    for notice in notices:
        print(f"note {notice}")
    (stage.folder / "measured").mkdir()
    record = [dataclasses.asdict(each) for each in findings]
    (stage.folder / "measured" / "preflight.json").write_text(json.dumps(record, indent=1) + "\n")
    if bad := [each for each in findings if not each.ok]:
        raise ValueError("; ".join(f"{each.name}: {each.found}; {each.remedy}" for each in bad))


if __name__ == "__main__":
    run_stage(work)
