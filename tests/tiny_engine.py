"""Engines over the tiny random models, for the tests of engine, generation and ring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from dflash_gguf.runtime.engine import Engine, EngineOptions
from tiny_gguf import DraftShape, Sizes, once

EXACT = EngineOptions(kv_type="f32", threads=1)
"""F32 caches, so that a plain model is near; one thread, because the models are tiny."""

TEXT = [int(t) for t in np.random.default_rng(5).integers(0, 99, 80)]
SMALL = Sizes(layers=2, vocab=12)
"""For drafts whose proposals should sometimes be right: of 12 tokens a random one often is."""


def open_pair(folder: Path, d: DraftShape, **options: object) -> Engine:
    """The random target and the draft `d`, files in `folder`, EXACT unless `options` say otherwise."""
    target = Sizes(vocab=d.sizes.vocab)
    return Engine(once(folder, target), once(folder, d), replace(EXACT, **options))
