"""Dataclasses as groups of command line options.

typer takes each option from a parameter of the command's function; several commands share dozens.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

R = TypeVar("R")


def expand_options(
    defaults: Mapping[str, Any],
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a command take option groups: a parameter whose type is a dataclass stands for one
    option for each of its fields, and receives the dataclass filled in.

    Args:
        defaults: what the help of this command shows as the defaults of some fields, besides the
            groups' own.
    """

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        return _expanded(command, defaults)

    return decorate


def _expanded(command: Callable[..., R], defaults: Mapping[str, Any]) -> Callable[..., R]:
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            groups[parameter.name] = hint
            parameters += _parameters_of(hint, defaults)
        else:
            parameters.append(
                parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            )

    def expanded(**arguments: Any) -> R:
        for name, group in groups.items():
            own = {f.name: arguments.pop(f.name) for f in dataclasses.fields(group)}
            arguments[name] = group(**own)
        return command(**arguments)

    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__annotations__ = {p.name: p.annotation for p in parameters}
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return expanded


def _parameters_of(group: type, defaults: Mapping[str, Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    shown = {**vars(group)["DEFAULTS"], **defaults}
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=f.default,
            annotation=_showing(hints[f.name], shown.get(f.name)),
        )
        for f in dataclasses.fields(group)
    ]


def _showing(annotation: Any, default: Any) -> Any:
    """An option's type with its default in the help."""
    value_type, option = get_args(annotation)
    if default is None:
        return annotation
    option = copy.copy(option)
    shown = f"{default:g}" if isinstance(default, float) else default
    option.help = f"{option.help.removesuffix('.')}; default {shown}."
    return Annotated[value_type, option]
