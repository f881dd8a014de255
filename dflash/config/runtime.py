"""Settings of execution alone: they change no result and enter no key."""

from typing import Literal

from pydantic import Field

from dflash.config.section import Section


class Runtime(Section):
    """Execution: devices, ranks, limits."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: cuda where there is a GPU."""
    topology: str = Field(
        default="colocated: 1", pattern=r"^(colocated: [1-9]\d*|targets: [1-9]\d*, drafters: [1-9]\d*)$"
    )
    """`targets: T, drafters: D`, or `colocated: N` where every rank plays both."""
    num_gpus: int | None = Field(default=None, ge=1)
    """GPUs that `advise` may split into targets and drafters. Unset: those of `topology`, at least 2."""
    num_nodes: int = Field(default=1, ge=1)
    """Machines; ranks are spread evenly."""
    num_threads: int | None = Field(default=None, ge=1)
    """CPU threads of a stage. Unset: all that the process may use, divided by the ranks on the machine."""
    ring_packets: int = Field(default=4, ge=2)
    """Packets in flight between a target and a drafter."""
    ring_bytes: int = Field(default=2 << 30, ge=1 << 20)
    """Bytes of a ring at most, on either side."""
    packet_path: Literal["direct", "host"] = "direct"
    """Between GPUs: from card to card by NCCL, or through the machine's memory where preflight finds that cards can't."""
    save_interval_seconds: float = Field(default=600.0, gt=0.0)
    """Time between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept, beside the best by held-out acceptance."""
    wait_timeout_seconds: float = Field(default=300.0, gt=0.0)
    """Longest wait for another rank; then stacks are written and the run stops."""
    wall_time_seconds: float | None = Field(default=None, gt=0.0)
    """Time limit of the job: shortly before, the run saves and exits with status 75."""
    on_out_of_memory: Literal["stop", "auto_reduce"] = "stop"
    """`auto_reduce` splits a micro-batch that does not fit."""
    progress_interval_seconds: float = Field(default=5.0, gt=0.0)
    """Time between progress lines."""
