"""Recipes from names, TOML files and settings; a recipe as TOML.

A TOML file has every field of a recipe, as ``nightjar-train describe`` prints it, or changes a shipped recipe::

    extends = "astro-moe-pe"

    [optimizer]
    lr = 3e-4

A setting of the command line changes one field: ``--set optimizer.lr=3e-4``. The string "null" is no value, which TOML
cannot express. A table ``network`` of another architecture replaces that of the shipped recipe.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from nightjar_alerts.training.recipes.catalogue import RECIPES
from nightjar_alerts.training.recipes.schema import Recipe

NULL = "null"
Fields = dict[str, Any]


class RecipeError(ValueError):
    """Recipe that does not exist or has a wrong field."""


def resolve(source: str, settings: Sequence[str] = ()) -> Recipe:
    """Return a recipe by the name of a shipped one or by a TOML file, with settings such as ``optimizer.lr=3e-4``.

    A file without ``name`` gets its own name without suffix.

    Raises
    ------
    RecipeError
        If there is no such recipe, or a field is unknown or of the wrong type.
    OSError
        If the file cannot be read.
    """
    base, changes = _read(Path(source)) if source.endswith(".toml") else (_shipped(source), {})
    fields = _merged(base, changes)
    for setting in settings:
        fields = _merged(fields, _parse(setting))
    try:
        return Recipe.model_validate(_with_nulls(fields))
    except ValidationError as error:
        known = list(_paths(base or _shipped("default")))
        problems = [_describe(details, known) for details in error.errors(include_url=False)]
        raise RecipeError("\n".join(f"{source}: {problem}" for problem in problems)) from error


def _shipped(name: str) -> Fields:
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(RECIPES)}."
        raise RecipeError(f"unknown recipe {name!r}; {hint} A file of a recipe ends in .toml")
    return RECIPES[name]().model_dump()


def _read(path: Path) -> tuple[Fields, Fields]:
    """Return the fields that a file extends and those that it has."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error
    extends = content.pop("extends", None)
    if extends is not None and (not isinstance(extends, str) or extends.endswith(".toml")):
        raise RecipeError(f"{path}: extends must be the name of a shipped recipe, not {extends!r}")
    return {} if extends is None else _shipped(extends), {"name": path.stem} | content


def _parse(setting: str) -> Fields:
    """Return the nested fields of ``a.b=value``; a value that is not TOML is a string."""
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise RecipeError(f"--set {setting}: write it as field=value, such as optimizer.lr=3e-4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for name in reversed(path.strip().split(".")):
        value = {name: value}
    fields: Fields = value
    return fields


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Fields:
    if changes.get("architecture", base.get("architecture")) != base.get("architecture"):
        return dict(changes)
    merged = dict(base)
    for name, value in changes.items():
        inner = merged.get(name)
        merged[name] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def _with_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    return None if value == NULL else value


def _paths(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in fields.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")


def _describe(details: Any, known: Sequence[str]) -> str:
    """Describe an error of pydantic, with known fields of similar names for an unknown one."""
    location = [str(part) for part in details["loc"]]
    if location[:1] == ["network"] and len(location) > 1:
        del location[1]  # the architecture, by which pydantic chooses the model
    path = ".".join(location)
    if details["type"] != "extra_forbidden":
        return f"{path}: {details['msg']}, not {details['input']!r}"
    own = [name for name in known if name.rpartition(".")[2] == location[-1]]
    near = own or get_close_matches(path, known, 3) or get_close_matches(location[-1], known, 3)
    return f"{path} is not a field of a recipe" + (f"; did you mean {' or '.join(near)}?" if near else "")


def as_toml(recipe: Recipe) -> str:
    """Return a recipe as TOML that :func:`resolve` reads, with the descriptions of the fields as comments."""
    return "\n".join(_lines(recipe, "")) + "\n"


def _lines(model: BaseModel, path: str) -> list[str]:
    lines, tables = [f"[{path}]"] if path else [], []
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        comment = f"  # {info.description}" if info.description else ""
        if isinstance(value, BaseModel):
            tables += ["", *_lines(value, f"{path}.{name}" if path else name)]
        else:
            lines.append(f"{name} = {_value(value)}{comment}")
    return lines + tables


def _value(value: Any) -> str:
    if value is None:
        return f'"{NULL}"'
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_value(name)} = {_value(inner)}' for name, inner in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
