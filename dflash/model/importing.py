"""Weights to go on from: a folder of our own, of the published layout or of the speculators layout."""

import json
from pathlib import Path

from torch import Tensor

from dflash.model.drafter_config import DrafterConfig, TargetFacts, check_fit
from dflash.model.drafter_files import SHAPE, load_drafter
from dflash.model.speculators import import_speculators
from dflash.model.zlab import CONFIG, import_zlab


def import_drafter(folder: Path, facts: TargetFacts) -> tuple[DrafterConfig, dict[str, Tensor]]:
    """Read a drafter for a target, whichever layout the folder has.

    Raises:
        ValueError: no drafter in the folder, or one that does not fit the target.
    """
    if (folder / SHAPE).is_file():
        config, _, weights = load_drafter(folder)
    elif not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} holds no drafter: neither {SHAPE} nor {CONFIG} is there")
    elif "speculators_model_type" in json.loads((folder / CONFIG).read_text()):
        config, weights = import_speculators(folder, facts)
    else:
        config, weights = import_zlab(folder, facts)
    check_fit(config, facts)
    return config, weights
