"""An inspection in words: lines of `name  value`. Pure."""

from __future__ import annotations

from .defects import Defect
from .draft import Draft
from .errors import one_line
from .inspection import Inspection, bytes_by_type, notes
from .runtimes import Verdict, verdicts
from .spec import to_upstream_layers

DIALECTS = {
    "hf": "Hugging Face checkpoint",
    "gguf": "GGUF, llama.cpp's dialect",
    "lucebox": "GGUF, Lucebox's dialect",
    "ik": "GGUF, the dialect of ik_llama.cpp and its relatives",
    "laguna": "GGUF, Poolside's variant of llama.cpp's dialect for a Laguna decoder",
    "any": "GGUF, the names of several dialects mixed",
}

VARIANTS = {
    "dflash1": "DFlash (version 1: no convolution, no selector)",
    "dflash2": "DFlash 2 (convolutions and a candidate selector)",
    "dspark": "DSpark (Markov tables)",
    "domino": "Domino (a recurrent head)",
}

Row = tuple[str, str]


def render_inspection(found: Inspection) -> str:
    """The inspection as text."""
    rows: list[Row] = [("file", str(found.path))]
    draft = found.draft
    if draft is not None:
        rows += describe(draft, found.stood_in)
        rows += [("published", f"looks like {found.known[0].name}")] if found.known else []
        rows += runtimes_in_words(draft)
        rows.append(
            (
                "weights",
                "every value read" if found.weights_read else "not read (--weights reads them)",
            )
        )
        rows += [("note", text) for text in notes(draft)]
    rows += [("warning", text) for text in found.warnings]
    for defect in found.defects:
        rows.append(("defect", in_one_line(defect)))
        for option, value in defect.options.items():
            known = (
                f"{option} {value} ({defect.because})"
                if value and defect.because
                else f"{option} {value}".strip()
            )
            rows.append(
                ("  needs", known if value else f"{option}, whose value the file cannot show")
            )
    if found.repair is not None:
        rows.append(("mend by", found.repair.command))
    for check in found.pairing or ():
        word = {True: "fits", False: "DOES NOT FIT", None: "not known"}[check.fits]
        rows.append(("pairing", f"{check.name}: {check.draft}, target {check.target}: {word}"))
    return "\n".join(f"{name:<12}{one_line(value, 600)}" for name, value in rows)


def in_one_line(defect: Defect) -> str:
    """What is wrong, without the fix where the rows below say it."""
    parts = defect.error.parts()
    if defect.mended:
        parts.pop("fix", None)
    return "; ".join([parts.pop("what"), *(f"{name} {value}" for name, value in parts.items())])


def describe(draft: Draft, unknown: frozenset[str] = frozenset()) -> list[Row]:
    """What the draft is, and where each value came from; nothing of the fields that are `unknown`."""
    s = draft.spec

    def came(*fields: str, silent: str = "") -> str:
        places = list(dict.fromkeys(p for f in fields if (p := draft.sources.get(f))))
        return f" ({', '.join(places)})" if places else silent

    scaling = f", {s.rope_scaling.type} x{s.rope_scaling.factor:g}" if s.rope_scaling else ""
    sections = ", rotary sections written" if draft.facts.multi_section_rope and draft.gguf else ""
    window = (
        f"{s.sliding_window} tokens, {in_words(s.sliding_layers, 'sliding', 'full')}"
        if s.sliding_window
        else "none"
    )
    rows = [
        ("dialect", "", DIALECTS[draft.dialect] + architecture(draft)),
        ("made by", "", maker(draft)),
        ("variant", "", VARIANTS[s.variant]),
        ("geometry", "", f"{s.num_hidden_layers} layers, hidden {s.hidden_size}, feed-forward {s.intermediate_size}, "
                         f"{s.num_attention_heads} heads over {s.num_key_value_heads} of {s.head_dim}, vocabulary {s.vocab_size}"),
        ("block", "block_size", f"{s.block_size} tokens, anchor included{came('block_size')}"),
        ("mask token", "mask_token_id", f"{s.mask_token_id}{came('mask_token_id')}"),
        ("captures", "target_layer_ids", f"after layers {numbers(s.target_layer_ids)} (0-based; llama.cpp counts "
                                         f"{numbers(to_upstream_layers(s.target_layer_ids))}){came('target_layer_ids', 'target_layers', 'shifted_layer_ids')}"),
        ("target", "", f"{s.num_target_layers or 'unknown number of'} layers of hidden {s.target_hidden_size}"
                       f"{came('num_target_layers')}{', architecture ' + draft.facts.architecture if draft.facts.architecture else ''}"),
        ("window", "sliding_window", window + came("sliding_window", "sliding_layers", "layer_types", "use_sliding_window", silent=" (no key)")),
        ("causality", "sliding_layers", in_words(s.causal_layers, "causal", "two-sided")
                      + came("causality", "causal_layers", "causal", "is_causal", "non_causal", silent=" (no key: by the reference's rule, sliding layers are)")),
        ("RoPE", "rope_theta", f"base {s.rope_theta:g}{came('rope_theta')}, {s.rope_dimension_count} of {s.head_dim} dims"
                               f"{came('rope_dimension_count')}{scaling}{sections}"),
    ]  # fmt: skip
    if s.conv and s.selector:
        rows.append(("DFlash 2", "", f"convolution of {s.conv.kernel_size} taps in groups of {s.conv.group_size}, "
                                     f"selector of rank {s.selector.rank}, {s.selector.top_k} candidates"))  # fmt: skip
    sizes = ", ".join(f"{kind} {count} bytes" for kind, count in bytes_by_type(draft).items())
    rows.append(("tensors", "", f"{len(draft.matches)}: {sizes}"))
    return [(name, text) for name, field, text in rows if field not in unknown and text]


def architecture(draft: Draft) -> str:
    """The architecture's name, where it is a GGUF."""
    return f" (architecture {draft.gguf.architecture})" if draft.gguf else ""


def maker(draft: Draft) -> str:
    """Who made a GGUF, as far as it says; empty for a checkpoint."""
    if draft.gguf is None:
        return ""
    ask, arch = draft.gguf.ask, draft.gguf.architecture
    version = ask.integer(f"{arch}.format_version") or ask.integer(f"{arch}.dflash.format_version")
    who = (
        f"dflash-convert, format {version}" if version else "another converter (no format_version)"
    )
    revision = ask.text("general.source.revision")
    return f"{who}, from revision {revision}" if revision else who


def in_words(flags: tuple[bool, ...], yes: str, no: str) -> str:
    """`all sliding`, or the layers by number."""
    if len(set(flags)) == 1:
        return f"all {yes if flags[0] else no}"
    chosen = [str(i) for i, flag in enumerate(flags) if flag]
    return f"{yes} in {' '.join(chosen)}, {no} in the others"


def runtimes_in_words(draft: Draft) -> list[Row]:
    """A row for each runtime."""
    words = {True: "loads it", False: "does not load it", None: "not known"}

    def row(v: Verdict) -> Row:
        texts = "".join(f"; {text}" for text in (*v.reasons, *v.remarks))
        return "runtime", f"{v.runtime}: {words[v.loads]}{texts}"

    return [row(v) for v in verdicts(draft)] or [("runtime", "none: a checkpoint has to be converted first")]  # fmt: skip


def numbers(values: tuple[int, ...]) -> str:
    """Numbers with spaces between."""
    return " ".join(map(str, values))
