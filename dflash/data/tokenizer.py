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

    place, options = model_place(target, revision)
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code, **options)
    if not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer of {target} is not a fast one; loss masks need its character offsets"
        )
    return tokenizer


def mask_token_of(tokenizer: Any, requested: int | None) -> int | None:
    """The mask token as far as the tokenizer alone tells: the requested one, else its own.

    Otherwise training takes an unused row of the embedding, which no text encodes to, or a reserved token; without the
    embedding it is not known which (None), and training refuses data that hold it.
    """
    own: int | None = tokenizer.mask_token_id
    return own if requested is None else requested


def model_place(target: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    """Where transformers finds a target: a name or a path, and the options that go with it.

    Raises:
        ValueError: neither of the four kinds.
    """
    if target == "demo":
        return str(DEMO_FOLDER), {}
    if target.startswith("hub:"):
        return target.removeprefix("hub:"), {"revision": revision}
    path = Path(target)
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    if (path / "config.json").is_file():
        return str(path), {}
    raise ValueError(
        f"target is {target!r}: use demo, hub:OWNER/NAME, a folder with a config.json, or a .gguf file that exists"
    )
