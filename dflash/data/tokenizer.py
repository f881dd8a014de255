"""The target's tokenizer, without its weights."""

from pathlib import Path
from typing import Any

import dflash

DEMO_FOLDER = Path(dflash.__path__[0]) / "demo"


def load_tokenizer(target: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a target: `demo`, `hub:OWNER/NAME`, a model folder, or a GGUF file.

    Raises:
        ValueError: there is no such target, or its tokenizer has no character offsets (a slow one).
    """
    from transformers import AutoTokenizer

    place, options = _place(target)
    if target.startswith("hub:"):
        options["revision"] = revision
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code, **options)
    if not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer of {target} is not a fast one; loss masks need its character offsets"
        )
    return tokenizer


def _place(target: str) -> tuple[str, dict[str, Any]]:
    if target == "demo":
        return str(DEMO_FOLDER), {}
    if target.startswith("hub:"):
        return target.removeprefix("hub:"), {}
    path = Path(target)
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    raise ValueError(
        f"target is {target!r}: use demo, hub:OWNER/NAME, a model folder, or a .gguf file that exists"
    )
