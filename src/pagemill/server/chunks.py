"""The chunks of a stream, written quickly: what stays the same is encoded once for each choice.

data: {"id":…,"object":…,"created":…,"model":…,"choices":[{"index":0,   <- constant
"delta":{"content":" it"}                                               <- encoded
,"logprobs":null,"finish_reason":null}]}                                <- mostly constant
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ChunkFrame:
    """What all chunks of one stream share.

    Args:
        envelope: ``id``, ``object``, ``created`` and ``model``.
        has_usage: whether a last chunk has the usage; then the others say that they have none.
    """

    def __init__(self, envelope: Mapping[str, Any], *, has_usage: bool) -> None:
        self._open = "data: " + json.dumps(envelope)[:-1] + ', "choices": ['
        self._close = ', "usage": null}\n\n' if has_usage else "}\n\n"
        self._heads: dict[int, str] = {}

    def chunk(
        self,
        index: int,
        content: str,
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        usage: dict[str, Any] | None = None,
    ) -> str:
        """One event of one choice.

        Args:
            index: which choice.
            content: its own part of the JSON object, such as ``"text": " it"``.
            logprobs: of its tokens, if they were asked for.
            finish_reason: None until the end.
            stop_reason: what ended it.
            usage: so far, if that was asked for in every chunk.
        """
        head = self._heads.get(index)
        if head is None:
            head = self._heads[index] = f'{self._open}{{"index": {index}, '
        shown = "null" if logprobs is None else json.dumps(logprobs)
        end = '"finish_reason": null}]'
        if finish_reason is not None:
            end = f'"finish_reason": "{finish_reason}", "stop_reason": {json.dumps(stop_reason)}}}]'
        close = self._close if usage is None else f', "usage": {json.dumps(usage)}}}\n\n'
        return f'{head}{content}, "logprobs": {shown}, {end}{close}'

    def usage(self, usage: dict[str, Any]) -> str:
        """The chunk after the last one of a choice."""
        return f'{self._open}], "usage": {json.dumps(usage)}}}\n\n'
