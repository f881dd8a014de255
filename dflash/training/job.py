"""What a run of `fit` is: plain values and paths in one file, which every rank reads."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.config.drafter import Anchors, Drafter, Objective
from dflash.config.runtime import Runtime
from dflash.config.target import TargetLoading
from dflash.config.training import Training


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        target: as the config names it.
        target_loading, drafter, anchors, objective, training, runtime: the sections.
        shards: token shards, in the order of sample ids.
        plan: folder of the plan.
        start_from: folder of a drafter whose weights are the first ones.
        state: folder that survives crashes. result: folder to fill.
    """

    target: str
    target_loading: TargetLoading
    drafter: Drafter
    anchors: Anchors
    objective: Objective
    training: Training
    runtime: Runtime
    shards: list[Path]
    plan: Path
    start_from: Path | None
    state: Path
    result: Path

    def save(self, path: Path) -> None:
        """Write the job atomically."""
        plain = {name: _plain(value) for name, value in vars(self).items()}
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)

    @staticmethod
    def load(path: Path) -> "Job":
        """Read what `save` wrote."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        sections = {name: section.model_validate(raw[name]) for name, section in SECTIONS.items()}
        start = raw["start_from"]
        return Job(
            target=raw["target"],
            **sections,
            shards=[Path(each) for each in raw["shards"]],
            plan=Path(raw["plan"]),
            start_from=Path(start) if start else None,
            state=Path(raw["state"]),
            result=Path(raw["result"]),
        )


SECTIONS: dict[str, Any] = {
    "target_loading": TargetLoading,
    "drafter": Drafter,
    "anchors": Anchors,
    "objective": Objective,
    "training": Training,
    "runtime": Runtime,
}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list):
        return [str(each) for each in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
