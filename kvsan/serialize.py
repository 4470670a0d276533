"""Findings to and from JSON: generic over the frozen dataclasses of `kvsan.findings`, never executing anything."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from operator import index
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from kvsan.errors import KvsanError
from kvsan.findings import Failure, Finding, Joined, PoolTotals, Report

T = TypeVar("T")


class SerializeError(KvsanError):
    """A value that is no finding: says which field, what it holds, and what belongs there."""


def to_dict(value: Any, *, defaults: bool = True) -> Any:
    """A value of `kvsan.findings` as JSON-able dicts, lists and scalars.

    Fields that hold their default are left out when `defaults` is false. NumPy integers become int.
    """
    if value is None or isinstance(value, (str, bool, float)):
        return value
    if is_dataclass(value):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        blank = {} if defaults else _defaults(cast(type, type(value)))
        return {
            name: to_dict(item, defaults=defaults) for name, item in pairs if name not in blank or item != blank[name]
        }
    if isinstance(value, dict):
        return {str(key): to_dict(item, defaults=defaults) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_dict(item, defaults=defaults) for item in value]
    return index(value)


def finding_from_dict(data: Any) -> Finding:
    """The finding that `to_dict` wrote; unknown fields are ignored. Raises SerializeError."""
    return from_dict(Finding, data)


def joined_from_dict(data: Any) -> Joined:
    """As finding_from_dict, for a later violation with the same cause."""
    return from_dict(Joined, data)


def totals_from_dict(data: Any) -> PoolTotals:
    """As finding_from_dict, for the totals of one pool."""
    return from_dict(PoolTotals, data)


def failure_from_dict(data: Any) -> Failure:
    """As finding_from_dict, for a failure of kvsan itself."""
    return from_dict(Failure, data)


def report_from_dict(data: Any) -> Report:
    """As finding_from_dict, for a whole report."""
    return from_dict(Report, data)


def from_dict(cls: type[T], data: Any) -> T:
    """Any dataclass of `kvsan.findings` from what `to_dict` made of it. Raises SerializeError."""
    return cast(T, _build(cls, data, cls.__name__))


def _build(wanted: Any, data: Any, place: str) -> Any:
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        (wanted,) = (choice for choice in get_args(wanted) if choice is not type(None))
        return _build(wanted, data, place)
    if is_dataclass(wanted):
        _expect(isinstance(data, dict), data, "an object", place)
        hints = _hints(cast(type, wanted))
        required = {f.name for f in fields(wanted) if f.default is MISSING and f.default_factory is MISSING}
        missing = sorted(required - data.keys())
        if missing:
            raise SerializeError(f"{place}: without {', '.join(missing)}")
        known = {name: _build(hints[name], data[name], f"{place}.{name}") for name in hints if name in data}
        return cast(type, wanted)(**known)
    if origin is tuple:
        _expect(isinstance(data, (list, tuple)), data, "a list", place)
        kinds = get_args(wanted)
        if kinds[-1] is Ellipsis:
            return tuple(_build(kinds[0], item, f"{place}[{n}]") for n, item in enumerate(data))
        _expect(len(data) == len(kinds), data, f"a list of {len(kinds)}", place)
        return tuple(_build(kind, item, place) for kind, item in zip(kinds, data, strict=True))
    if origin is dict:
        _expect(isinstance(data, dict), data, "an object", place)
        return {str(key): _build(get_args(wanted)[1], item, f"{place}.{key}") for key, item in data.items()}
    if wanted is float:
        _expect(isinstance(data, (int, float)) and not isinstance(data, bool), data, "a number", place)
    elif wanted is int:
        _expect(isinstance(data, int) and not isinstance(data, bool), data, "an integer", place)
    else:
        _expect(isinstance(data, wanted), data, f"a {wanted.__name__}", place)
    return data


def _expect(fits: bool, data: Any, what: str, place: str) -> None:
    if not fits:
        raise SerializeError(f"{place}: {what} belongs here, not {str(data)[:60]!r}")


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


@cache
def _defaults(cls: type) -> dict[str, Any]:
    found = {}
    for f in fields(cls):
        if f.default is not MISSING:
            found[f.name] = f.default
        elif f.default_factory is not MISSING:
            found[f.name] = f.default_factory()
    return found
