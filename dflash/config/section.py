"""The base of every section: frozen, strict, unknown keys forbidden."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings. Strict types: `1e-4` in YAML 1.1 is a string and is refused as such."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
