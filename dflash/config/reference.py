"""The JSON schema and the reference page of the settings, generated from the models."""

import json
from typing import Any

from pydantic import BaseModel

from dflash.config.root import Config
from dflash.config.section import Section

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """The JSON schema of the config file, for editors."""
    schema = {"$schema": SCHEMA_DIALECT, **Config.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def reference_text() -> str:
    """The reference page: every setting with its type, its default and what it means, in Markdown."""
    lines = [
        "# Settings",
        "",
        "Generated from the models in `dflash/config/` by `make config`; edit those. `config.yaml` beside this page is the",
        "built-in default and differs from the defaults below where it says so. A file of your own goes over it:",
        "`snakemake train --configfile mine.yaml`. Sections merge; lists and single values are replaced.",
        "",
    ]
    sections = [(name, field.annotation) for name, field in Config.model_fields.items()]
    lines += ["## Top level", "", *_table(Config)]
    for name, annotation in sections:
        for model in _models(annotation):
            lines += ["", f"## `{name}`" if model is annotation else f"## Each of `{name}`", ""]
            lines += [_flat(model.__doc__), "", *_table(model)]
            for inner, field in model.model_fields.items():
                for nested in _models(field.annotation):
                    lines += [
                        "",
                        f"### Each of `{name}.{inner}`",
                        "",
                        _flat(nested.__doc__),
                        "",
                        *_table(nested),
                    ]
    return "\n".join(lines) + "\n"


def _table(model: type[BaseModel]) -> list[str]:
    """The settings of one section that are no sections themselves."""
    schema = model.model_json_schema()
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            continue
        default = "required" if field.is_required() else f"`{_value(field.get_default())}`"
        meaning = _flat(field.description)
        rows.append(
            f"| `{name}` | {_type(schema['properties'][name])} | {default} | {meaning} |".replace("||", "| |")
        )
    return rows


def _type(schema: dict[str, Any]) -> str:
    """What a value may be, with its bounds."""
    if "anyOf" in schema:
        return ", ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    kind = {"null": "unset", "object": "mapping"}.get(schema.get("type", "any"), schema.get("type", "any"))
    if kind == "array":
        items = schema.get("items", {})
        return f"list of {_type(items)}" if items else "list of numbers"
    bounds = [
        f"{sign} {schema[key]}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    return " ".join([kind, *bounds])


def _value(value: Any) -> str:
    """A default as it would stand in the YAML, on one line."""
    if isinstance(value, Section):
        return _value(value.model_dump(exclude_defaults=True) or value.model_dump(exclude_unset=True))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + "}"
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _models(annotation: Any) -> list[type[Section]]:
    """The sections that an annotation is made of."""
    found = [annotation, *getattr(annotation, "__args__", ())]
    return [each for each in found if isinstance(each, type) and issubclass(each, Section)]


def _flat(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
