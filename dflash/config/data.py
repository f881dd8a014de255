"""Settings of the data: where conversations come from and how they become samples."""

from typing import Any, Literal

from pydantic import Field

from dflash.config.section import Section


class Source(Section):
    """One source of conversations."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the source in files, tables and figures. Letters, digits, `_`, `.`, `-`."""
    location: str = Field(min_length=1)
    """`builtin:stdlib`, or a file, folder or glob (JSONL plain, gz or zst; Parquet; Arrow; text)."""
    dialect: Literal["auto", "messages", "sharegpt", "prompt_response", "instruction", "tokens", "text"] = (
        "auto"
    )
    """Shape of a row. `auto` finds it from the rows and shows it."""


class Data(Section):
    """From conversations to samples."""

    sources: list[Source] = Field(default=[Source(name="stdlib", location="builtin:stdlib")], min_length=1)
    """The sources, in the order in which their samples are numbered."""
    identity: Literal["content", "stat"] = "content"
    """How source files are known: by sha256 of the content, or by size and mtime where they are too large to hash."""
    max_length: int = Field(default=2048, ge=8, le=1 << 20)
    """Longest sample in tokens."""
    too_long: Literal["error", "drop", "truncate", "split"] = "truncate"
    """What happens to longer samples; counted in samples and tokens. A truncated sample must keep a supervised token."""
    supervise: Literal["all", "last"] = "all"
    """Which assistant turns are supervised."""
    chat_template: str | None = None
    """File of a Jinja chat template that replaces the target's."""
    template_options: dict[str, Any] = {}
    """Variables passed to the chat template, such as `enable_thinking: false`."""
    max_rejected: float = Field(default=0.01, ge=0.0, le=1.0)
    """Largest share of rejected rows; more stop the run."""
    validation_share: float = Field(default=0.02, ge=0.0, lt=0.5)
    """Share of prompts held out for validation during training, by a hash of the prompt."""
    test_share: float = Field(default=0.02, ge=0.0, lt=0.5)
    """Share of prompts held out for the final evaluation, by a hash of the prompt."""


class Regeneration(Section):
    """Replacing the responses by the target's own (the published recipe)."""

    engine: Literal["off", "in_process", "server"] = "in_process"
    """`off` trains on the data's responses; the others write every answer of a conversation anew, each after the new ones before it; a conversation ends at an answer that is cut off, and turns that call a tool stay as they are. `in_process` decodes with transformers; `server` asks an OpenAI-compatible server."""
    url: str = "http://127.0.0.1:8000/v1"
    """Base address of the server."""
    model: str | None = None
    """Model name sent to the server. Unset: the first one it lists."""
    api_key_variable: str | None = None
    """Name of the environment variable that holds the key. The key itself is never stored."""
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    """Sampling temperature; 0 is greedy."""
    max_new_tokens: int = Field(default=192, ge=1)
    """Longest response in tokens; rows cut off there are marked (`cut`), and the end of turn that the template gives them is not supervised."""
    max_samples: int | None = Field(default=None, ge=1)
    """Regenerate at most this many conversations of each source file and split, the first by hash; the rest is left out."""
    batch_size: int = Field(default=64, ge=1)
    """Prompts decoded at once in process."""
    concurrency: int = Field(default=32, ge=1)
    """Requests in flight at a server."""
    retries: int = Field(default=5, ge=0)
    """Attempts after a failed request, with growing pauses."""
    timeout_seconds: float = Field(default=600.0, gt=0)
    """Time limit of one request."""
