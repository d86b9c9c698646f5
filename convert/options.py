"""The options that say what a draft's source is and what it lost, for every command that reads one."""

from __future__ import annotations

from typing import Any

import click

from .console import PATH
from .errors import UsageError
from .published import by_name


def integer_list(
    _: click.Context, __: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """`1,16,31` as numbers."""
    try:
        return None if value is None else tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(
            "expected whole numbers separated by commas, like 1,16,31"
        ) from error


HUB = (
    click.option("--revision", help="Branch, tag or commit of a hub repository."),
    click.option("--subfolder", metavar="NAME", help="Folder of a hub repository that the draft lies in."),
)  # fmt: skip
"""Where in a hub repository the draft is."""

TARGET = click.option("--target", type=PATH, help="The target: a GGUF or a Hugging Face folder.")

FIELD_OPTIONS = (
    click.option("--published", metavar="NAME", help="Take what the source lost from this published draft."),
    click.option("--config", type=PATH, help="config.json to read the fields from."),
    click.option("--fc", type=click.Choice(["transposed", "mislabelled"]), help="Turn an fc that lies the wrong way round, or its shape."),
    click.option("--block-size", type=int, help="Tokens in a block, anchor included."),
    click.option("--mask-token-id", type=int, help="Token of the unknown rows."),
    click.option("--target-layer-ids", callback=integer_list, metavar="I,J,...", help="Captured layers, 0-based, state after the layer."),
    click.option("--rope-theta", type=float, help="RoPE base."),
    click.option("--sliding-window", type=int, help="Window of the sliding layers; 0 for none."),
    click.option("--sliding-layers", callback=integer_list, metavar="0|1,...", help="Which layers slide, one 0 or 1 a layer."),
    click.option("--causal", type=click.Choice(["none", "all", "sliding"]), help="Which layers are causal inside a block."),
)  # fmt: skip
"""What a source may lack; each wins over the source."""

PLAIN = ("block_size", "mask_token_id", "target_layer_ids", "rope_theta", "sliding_window")
"""Options that are the field of their name."""


def given_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The spec fields that options supply, those of a published draft under those that are given one by one."""
    given = by_name(values["published"]).supplied() if values["published"] else {}
    return given | own_fields(values)


def own_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The spec fields that are given one by one."""
    given = {name: values[name] for name in PLAIN if values[name] is not None}
    if values["sliding_layers"] is not None:
        if not set(values["sliding_layers"]) <= {0, 1}:
            raise UsageError(
                "not a flag for each layer", found=",".join(map(str, values["sliding_layers"])), where="--sliding-layers",
                expected="0 or 1 for each layer, such as 1,1,0",
            )  # fmt: skip
        given["sliding_layers"] = tuple(bool(v) for v in values["sliding_layers"])
    if values["causal"] is not None:
        given["causality"] = values["causal"]
    return given


def given_sources(values: dict[str, Any]) -> dict[str, str]:
    """The place of every field of `given_fields`: its option, or the published draft that knows it."""
    place = f"published {values['published']}"
    own = own_fields(values)
    return {name: "option" if name in own else place for name in given_fields(values)}
