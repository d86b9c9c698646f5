"""An importance matrix from real speculation: what every matrix of the draft was multiplied with, as llama.cpp stores it."""

from __future__ import annotations

import numpy as np

from ..convert.errors import InputError
from ..quantize.imatrix import Imatrix
from .engine import Engine


def importance_of(engine: Engine, dataset: str) -> Imatrix:
    """What `engine` collected since `collect_inputs`, as an importance matrix of `dataset`.

    A chunk is a drafted block: `chunk_size` is its rows, `chunk_count` the blocks that were run. Raises InputError,
    naming the tensor, where no row was drafted, or a sum is not finite or has no float32.
    """
    assert engine.spec is not None  # it collects, so it has a draft
    inputs = engine.collected()
    block = engine.spec.block_size
    blocks = inputs["blk.0.attn_q.weight"].rows // block if "blk.0.attn_q.weight" in inputs else 0
    if blocks == 0:
        raise InputError(
            "nothing was drafted, so nothing was collected", expected="at least one round",
            fix="use longer prompts or a larger --max-new",
        )  # fmt: skip
    for name, seen in inputs.items():
        bad = np.flatnonzero(~(seen.sums <= np.finfo(np.float32).max))
        if bad.size:
            raise InputError(
                "the draft's activations are not finite", found=seen.sums[bad[0]], where=f"{name}: column {bad[0]}",
                expected="sums of squares that a float32 holds", fix="mend the draft first: dflash-inspect",
            )  # fmt: skip
    return Imatrix(
        sums={name: seen.sums.astype(np.float32)[None, :] for name, seen in inputs.items()},
        counts={name: np.array([seen.rows], np.float32) for name, seen in inputs.items()},
        datasets=(dataset,),
        chunk_count=blocks,
        chunk_size=block,
    )
