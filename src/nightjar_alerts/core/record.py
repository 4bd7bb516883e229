"""Base of the records that results consist of."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct


class Record(Struct, kw_only=True, omit_defaults=True, rename={"class_name": "class"}):
    """Base of results and their parts.

    Fields are attributes, and can also be read by their names in JSON: ``step.class_name`` is ``step["class"]``.
    """

    def members(self) -> dict[str, Any]:
        """Return the fields that JSON has, by name; arrays and records among the values stay as they are."""
        names, nullable, tag = _members_of(type(self))
        values = zip(names, msgspec.structs.astuple(self), strict=True)
        return tag | {name: value for name, value in values if value is not None or name in nullable}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that JSON has as plain dictionaries and lists."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=np.ndarray.tolist)
        return plain

    def keys(self) -> Iterable[str]:
        """Return the names of the fields that JSON has."""
        return self.members().keys()

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name in JSON. Raises KeyError if it is absent."""
        return self.members()[name]

    def __contains__(self, name: object) -> bool:
        """Return True if JSON has the field."""
        return name in self.members()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by its name in JSON, or the default if it is absent."""
        return self.members().get(name, default)


@cache
def _members_of(kind: type[Record]) -> tuple[tuple[str, ...], frozenset[str], dict[str, Any]]:
    """Return the names of the fields, those that JSON has even if they are null, and the tag."""
    fields, config = msgspec.structs.fields(kind), kind.__struct_config__
    nullable = frozenset(field.encode_name for field in fields if field.required)
    tag = {} if config.tag is None else {str(config.tag_field): config.tag}
    return tuple(field.encode_name for field in fields), nullable, tag
