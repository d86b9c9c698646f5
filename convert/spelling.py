"""How the GGUF dialects spell the canonical metadata keys, and the canonical file in another dialect's words. Pure.

llama.cpp keeps everything below `dflash.`; Lucebox, ik_llama.cpp and their relatives keep what is DFlash's own one
level deeper, and store raw layer ids instead of shifted ones. Readers of all of them ignore keys they do not know, so
every file carries the whole spec and a round trip loses nothing but what a dialect forbids (Lucebox has no tokenizer).
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import InputError
from .fields import Field, boolean, text, u32
from .spec import DraftSpec

DIALECTS = {"canonical": "gguf", "lucebox": "lucebox", "ik": "ik"}
"""`--dialect` to the column of the tensor table."""

READERS: dict[str, str] = {
    "dflash": "gguf",
    "dspark": "gguf",
    "qwen35-dflash-draft": "lucebox",
    "gemma4-dflash-draft": "lucebox",
    "dflash-draft": "ik",
}
"""Architecture of a file to the column its tensors are most likely spelled in."""

OWN = frozenset({
    "block_size", "mask_token_id", "target_layer_ids", "format_version", "variant", "sample_from_anchor",
    "has_confidence_head",
})  # fmt: skip
"""Keys that Lucebox and ik keep below `<arch>.dflash.`; everything of the target and of Domino goes there too."""

CONV = frozenset({"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"})
"""Keys below `<arch>.dflash.dflash2.`."""

MAX_IK_TAPS = 8


def deep_key(rest: str, arch: str) -> str:
    """The key that Lucebox and ik use for the canonical `dflash.<rest>`."""
    if rest in CONV:
        return f"{arch}.dflash.dflash2.{rest}"
    deep = rest in OWN or rest.startswith(("target.", "domino."))
    return f"{arch}.dflash.{rest}" if deep else f"{arch}.{rest}"


def spellings(rest: str, arch: str) -> tuple[str, ...]:
    """Every key that may hold the canonical `dflash.<rest>` in a file of architecture `arch`."""
    return tuple(dict.fromkeys((f"{arch}.{rest}", deep_key(rest, arch))))


def architecture_of(column: str, target: str) -> str:
    """`general.architecture` of a file in a dialect, for a target of that architecture."""
    if column != "lucebox":
        return {"gguf": "dflash", "ik": "dflash-draft"}[column]
    family = next((f for f in ("qwen35", "gemma4") if target.startswith(f)), "")
    return f"{family}-dflash-draft" if family else "dflash-draft"


def spell_fields(
    fields: Mapping[str, Field], column: str, spec: DraftSpec, target: str, *, gated: bool = False
) -> dict[str, Field]:
    """The canonical `fields` in the keys of a dialect; `gated` where the draft has attention gates.

    Raises InputError where the dialect cannot say what the spec says.
    """
    if column == "gguf":
        return dict(fields)
    taps = len(spec.target_layer_ids)
    if column == "ik" and taps > MAX_IK_TAPS:
        raise InputError(
            "the ik dialect takes no more captured layers", found=f"{taps} layers", where="target_layer_ids",
            expected=f"at most {MAX_IK_TAPS}", fix="use --dialect canonical or lucebox",
        )  # fmt: skip
    arch = architecture_of(column, target)
    out: dict[str, Field] = {}
    for key, field in fields.items():
        family, _, rest = key.partition(".")
        if family != "dflash":
            if family != "tokenizer" or column != "lucebox":
                out[key] = field
        elif rest != "target_layers":
            out[deep_key(rest, arch)] = field
    out["general.architecture"] = text(arch)
    out[f"{arch}.dflash.n_target_layers"] = u32(taps)
    out[f"{arch}.dflash.n_target_features"] = u32(spec.feature_size)
    if column == "lucebox":
        out |= lucebox_head(fields, arch, spec)
    if gated:  # Laguna: heads have gates, and the context's K and V take the normed state
        out[f"{arch}.dflash.{'laguna' if column == 'ik' else 'context_kv_layer_norm'}"] = boolean(
            True
        )
    return out


def lucebox_head(fields: Mapping[str, Field], arch: str, spec: DraftSpec) -> dict[str, Field]:
    """What Lucebox says of a head beside the canonical keys.

    Raises InputError for a Domino head that predicts otherwise than its runtime does, where drafts would be accepted
    no more: it takes row 0 for the anchor and corrects every row behind it (server/src/common/domino_head.cpp).
    """
    rows = u32(spec.draft_vocab_size or spec.vocab_size)
    if spec.markov_rank:
        head = f"{arch}.dflash.dspark"
        out = {
            f"{head}.enabled": u32(1),
            f"{head}.markov_rank": u32(spec.markov_rank),
            f"{head}.vocab_size": rows,
        }
        if fields["dflash.has_confidence_head"].value:
            width = spec.hidden_size + spec.markov_rank
            out |= {f"{head}.confidence_dim": u32(width), f"{head}.confidence.enabled": u32(1)}
        return out
    if spec.domino is None:
        return {}
    prefix = spec.domino.pure_draft_prefix_len
    if spec.sample_from_anchor or prefix:
        raise InputError(
            "Lucebox runs a Domino head otherwise than this one was trained",
            found=f"sample_from_anchor {str(spec.sample_from_anchor).lower()}, pure_draft_prefix_len {prefix}",
            where="dflash.domino", expected="false and 0, which is all that its runtime does", fix="use --dialect canonical",
        )  # fmt: skip
    return {f"{arch}.dflash.domino.enabled": u32(1), f"{arch}.dflash.domino.vocab_size": rows}
