"""Settings of the pages."""

from pydantic import Field

from dflash.config.section import Section


class Report(Section):
    """The experiment page and the comparison."""

    title: str | None = None
    """Title of the page. Unset: the experiment's name."""
    sample_decodes: int = Field(default=6, ge=0)
    """Decoded prompts shown with their accepted runs."""
