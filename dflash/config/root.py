"""The whole config, and what a user's mistake in it looks like in one line."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from dflash.config.batching import Batching
from dflash.config.data import Data, Regeneration
from dflash.config.drafter import Anchors, Drafter, Objective
from dflash.config.evaluation import Evaluation, Export
from dflash.config.report import Report
from dflash.config.runtime import Runtime
from dflash.config.section import Section
from dflash.config.target import TargetLoading
from dflash.config.training import Training

Model = TypeVar("Model", bound=BaseModel)


class Settings(Section):
    """The settings of one experiment."""

    target: str = Field(default="demo", min_length=1)
    """The frozen target: `demo` (built in), `hub:OWNER/NAME`, a model folder, or a GGUF file."""
    target_loading: TargetLoading = TargetLoading()
    data: Data = Data()
    regeneration: Regeneration = Regeneration()
    batching: Batching = Batching()
    drafter: Drafter = Drafter()
    anchors: Anchors = Anchors()
    objective: Objective = Objective()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    export: Export = Export()
    report: Report = Report()
    runtime: Runtime = Runtime()

    @model_validator(mode="after")
    def _possible(self) -> "Settings":
        names = [source.name for source in self.data.sources]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"data.sources: the name {doubled[0]!r} stands twice; give every source its own")
        bounds = self.batching.boundaries
        if bounds is not None and any(b <= a for a, b in zip([0, *bounds], bounds, strict=False)):
            raise ValueError(f"batching.boundaries is {bounds}; the bounds must be positive and increasing")
        taps = self.drafter.taps
        if taps is not None and any(b <= a for a, b in zip([-1, *taps], taps, strict=False)):
            raise ValueError(f"drafter.taps is {taps}; layer numbers must be 0 or more and increasing")
        return self


class Experiment(Section):
    """A named variation of the config: any setting may be given again."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """Name of the experiment; its results lie under `results/NAME/`."""
    change: dict[str, Any] = {}
    """Settings that differ, nested as in the config."""


class Config(Settings):
    """The config file: the settings, and the experiments that vary them."""

    experiment: str = "default"
    """The experiment that `train`, `plan` and the other single targets work on."""
    experiments: list[Experiment] = Field(default=[Experiment(name="default")], min_length=1)
    """What `compare` trains and lays side by side."""

    @model_validator(mode="after")
    def _named(self) -> "Config":
        names = [experiment.name for experiment in self.experiments]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(
                f"experiments: the name {doubled[0]!r} stands twice; give every experiment its own"
            )
        if self.experiment not in names:
            raise ValueError(
                f"experiment is {self.experiment!r}, which experiments does not list; it has {names}"
            )
        return self


def resolve(raw: Mapping[str, Any]) -> tuple[str, dict[str, Settings]]:
    """Validate a config and give the settings of each of its experiments.

    Args:
        raw: the parsed YAML.

    Returns:
        The name of the experiment to train, and every experiment's settings by name, in the listed order.

    Raises:
        ValueError: one line a mistake: the key's path, the value, what is allowed, a close spelling.
    """
    config = _validated(Config, raw, "")
    shared = {key: value for key, value in raw.items() if key in Settings.model_fields}
    settings = {
        each.name: _validated(Settings, _merged(shared, each.change), f"experiments.{each.name}.change.")
        for each in config.experiments
    }
    return config.experiment, settings


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `change` over it; sections merge, lists and scalars are replaced."""
    merged = dict(base)
    for key, value in change.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and key != "template_options":
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def _validated(model: type[Model], raw: Mapping[str, Any], prefix: str) -> Model:
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        lines = [_line(model, mistake, prefix) for mistake in error.errors()]
        raise ValueError("\n".join(dict.fromkeys(lines))) from None


def _line(model: type[BaseModel], mistake: Any, prefix: str) -> str:
    path = list(mistake["loc"])
    where = prefix + ".".join(str(part) for part in path if not _is_type_tag(part))
    if mistake["type"] == "extra_forbidden":
        known = sorted(_keys_beside(model, path))
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        advice = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
        return f"config: {where} is not a setting; {advice}"
    if mistake["type"] == "value_error":
        return f"config: {mistake['ctx']['error']}"
    return f"config: {where} is {mistake['input']!r}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}"


def _is_type_tag(part: int | str) -> bool:
    """Whether a part of a path is pydantic's name of a union's branch (`int`, `literal['auto']`)."""
    return isinstance(part, str) and (part in {"int", "str", "float", "none"} or "[" in part)


def _keys_beside(model: type[BaseModel], path: list[Any]) -> Iterator[str]:
    """The settings that are known where the last key of `path` stands."""
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next(each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel))
    yield from model.model_fields
