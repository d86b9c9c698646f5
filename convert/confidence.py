"""A confidence head that does not see the Markov embedding, as one that does: zeros for the weights it lacks. Exact.

Runtimes feed the head the hidden state and, behind it, the embedding of the token before (H + R values). A head of
`confidence_head_with_markov: false` has weights for the first H alone; zeros for the other R add nothing to its sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from .errors import InputError
from .files import open_regular
from .ggml import FLOATS, tensor_bytes
from .names import lookup, plain
from .plan import Span
from .spec import DraftSpec

HEAD = "conf_proj.weight"


def widened(
    spec: DraftSpec, spans: Mapping[str, Span], column: str, sees: bool | None = None
) -> dict[str, Span]:
    """The spans, a confidence head that is only as wide as the hidden state with its zeros.

    `sees` is what the source says of the head (None where nothing). The head's bytes, H values, are read here. Raises InputError where
    head and source contradict each other.
    """
    if not spec.markov_rank:
        return dict(spans)
    name = next((n for n in spans if is_head(n, column)), "")
    if not name:
        return dict(spans)
    span, wide = spans[name], (1, spec.hidden_size + spec.markov_rank)
    narrow = span.shape == (1, spec.hidden_size)
    if sees is not None and (narrow if sees else span.shape == wide):
        raise InputError(
            "the confidence head contradicts the config", found=f"{list(span.shape)}, confidence_head_with_markov {str(sees).lower()}",
            where=f"{span.file}: {name}", expected=f"[1, {wide[1] if sees else spec.hidden_size}]",
            fix="use the config.json that belongs to the weights",
        )  # fmt: skip
    return dict(spans) | ({name: padded(span, wide)} if narrow and span.type in FLOATS else {})


def is_head(name: str, column: str) -> bool:
    """Whether `name` is that of the confidence head's weights."""
    own = plain(name) if column == "hf" else name
    rule = lookup(column).get(own)
    return rule is not None and rule.gguf == HEAD


def padded(span: Span, shape: tuple[int, ...]) -> Span:
    """The one row of `span`, followed by zeros up to `shape`."""
    nbytes = tensor_bytes(span.type, shape[::-1], span.name)
    with open_regular(Path(span.file)) as file:
        file.seek(span.offset)
        raw = file.read(span.nbytes)
    return replace(
        span, name=f"{span.name} and zeros", shape=shape, nbytes=nbytes, overlay=raw.ljust(nbytes, b"\0"), overlay_at=0
    )  # fmt: skip
