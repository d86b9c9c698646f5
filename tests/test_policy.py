"""A scheme gives every tensor the type it says, and llama-quantize's recipes are llama-quantize's."""

from __future__ import annotations

import contextlib
from typing import Any

import drafts
import pytest
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.convert.ggml import BF16, F32, type_name
from dflash_gguf.convert.matrices import why_kept
from dflash_gguf.quantize.policy import Facts, Override, Tensor, decide, file_order
from dflash_gguf.quantize.schemes import CONDITIONS, packaged, parse_file
from hypothesis import given
from hypothesis import strategies as st


def types(
    scheme: str, layers: int = 5, kv_heads: int = 2, more: Any = (), overrides: Any = ()
) -> dict[str, str]:
    """Name to type of a DFlash 2 draft with the 27B's row lengths where they matter."""
    spec = drafts.spec_of(layers, kv_heads, rank=256)
    tensors = [
        Tensor(name, BF16 if drafts.is_matrix(name, shape) else F32, shape)
        for name, shape in [*drafts.shapes_of(spec).items(), *more]
    ]
    tied = "output.weight" not in {t.name for t in tensors}
    facts = Facts(layers, drafts.HEADS // kv_heads, tied)
    return {
        d.name: type_name(d.type) for d in decide(packaged()[scheme], tensors, facts, overrides)
    }


EMBEDDING, HEAD = ("token_embd.weight", (256, 300)), ("output.weight", (256, 300))
OTHERS = ("fc", "selector_predecessor", "selector_hidden", "blk.0.attn_conv_proj", "blk.3.ffn_conv_proj", "blk.1.attn_q", "blk.4.attn_k", "blk.2.ffn_up", "blk.0.ffn_gate")  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "other", "attn_v", "attn_output", "ffn_down"),
    [
        ("q8_0", "Q8_0", ["Q8_0"] * 5, "Q8_0", ["Q8_0"] * 5),
        ("q2_k", "Q2_K", ["Q4_K"] * 5, "Q3_K", ["Q3_K"] * 5),
        ("q3_k_m", "Q3_K", ["Q5_K", "Q5_K", "Q4_K", "Q4_K", "Q4_K"], "Q4_K", ["Q4_K"] * 5),
        ("q4_k_m", "Q4_K", ["Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q6_K"], "Q4_K", ["Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q6_K"]),
        ("q5_k_m", "Q5_K", ["Q5_K", "Q5_K", "Q6_K", "Q5_K", "Q6_K"], "Q5_K", ["Q5_K", "Q5_K", "Q6_K", "Q5_K", "Q6_K"]),
        ("q6_k", "Q6_K", ["Q6_K"] * 5, "Q6_K", ["Q6_K"] * 5),
    ],
)  # fmt: skip
def test_recipes_are_llama_quantizes(
    scheme: str, other: str, attn_v: list[str], attn_output: str, ffn_down: list[str]
) -> None:
    """A five-layer draft with four query heads a KV head gets llama-quantize's type in every tensor."""
    found = types(scheme)

    assert attn_v == [found[f"blk.{i}.attn_v.weight"] for i in range(5)]
    assert ffn_down == [found[f"blk.{i}.ffn_down.weight"] for i in range(5)]
    assert {attn_output} == {found[f"blk.{i}.attn_output.weight"] for i in range(5)}
    assert {other} == {found[f"{name}.weight"] for name in OTHERS}


def test_q2_k_gives_attn_v_less_when_fewer_than_four_heads_share_it() -> None:
    """Three query heads or fewer a KV head: Q3_K, not Q4_K."""
    assert "Q3_K" == types("q2_k", kv_heads=4)["blk.0.attn_v.weight"]


@pytest.mark.parametrize(
    ("scheme", "head"),
    [("q2_k", "Q6_K"), ("q4_k_m", "Q6_K"), ("q6_k", "Q6_K"), ("q8_0", "Q8_0"), ("q4-mix", "Q8_0")],
)
def test_the_output_matrix_gets_more_and_a_tied_embedding_counts_as_one(
    scheme: str, head: str
) -> None:
    """output.weight, or token_embd.weight where there is none, is kept precise."""
    assert head == types(scheme, more=[EMBEDDING])["token_embd.weight"]
    assert head == types(scheme, more=[EMBEDDING, HEAD])["output.weight"]


def test_an_embedding_beside_an_output_matrix_gets_the_default() -> None:
    """token_embd.weight is an ordinary matrix when output.weight exists."""
    assert "Q2_K" == types("q2_k", more=[EMBEDDING, HEAD])["token_embd.weight"]


def test_more_bits_goes_to_the_ends_and_every_third_layer_between() -> None:
    """16 layers: llama-quantize's use_more_bits picks 0, 1, 4, 7, 10, 13, 14 and 15."""
    found = types("q4_k_m", layers=16)

    assert [0, 1, 4, 7, 10, 13, 14, 15] == [
        i for i in range(16) if found[f"blk.{i}.ffn_down.weight"] == "Q6_K"
    ]


def test_q3_k_m_gives_ffn_down_more_in_the_first_sixteenth() -> None:
    """32 layers: blocks 0 and 1 get Q5_K, counted as numbers and not as names."""
    found = types("q3_k_m", layers=32)

    assert ["Q5_K", "Q5_K", "Q4_K"] == [found[f"blk.{i}.ffn_down.weight"] for i in (0, 1, 10)]


def test_q4_mix_keeps_all_but_the_backbone_in_8_bits() -> None:
    """Every matrix of a block is Q4_0; fc and the selector are Q8_0."""
    found = {name: kind for name, kind in types("q4-mix").items() if kind != "F32"}

    assert {"Q4_0"} == {kind for name, kind in found.items() if name.startswith("blk.")}
    assert {"Q8_0"} == {kind for name, kind in found.items() if not name.startswith("blk.")}


@pytest.mark.parametrize("scheme", packaged())
def test_no_scheme_touches_norms_convolution_bases_or_vectors(scheme: str) -> None:
    """What is not a matrix stays F32."""
    found = types(
        scheme, more=[("d2t", (300,)), ("conf_proj.weight", (288, 1)), ("x.bias", (4, 4))]
    )

    kept = {n for n in found if "norm" in n or "base" in n} | {"d2t", "conf_proj.weight", "x.bias"}
    assert {"F32", "BF16"} >= {found[name] for name in kept}


@pytest.mark.parametrize(
    ("name", "shape", "kept"),
    [
        ("conf_proj.weight", (288, 1), True), ("blk.0.attn_conv_base", (64, 2, 2), True), ("blk.0.attn_norm.weight", (64,), True),
        ("blk.0.attn_q_norm.weight", (64, 64), True), ("fc.weight", (64, 64, 1, 1), False), ("blk.0.ffn_gate_inp.weight", (64, 8), True),
        ("blk.0.ffn_gate_exps.weight", (64, 64, 8), False), ("fc.weights", (64, 64), True), ("markov_w1.weight", (64, 300), False),
    ],
)  # fmt: skip
def test_what_counts_as_a_matrix(name: str, shape: tuple[int, ...], kept: bool) -> None:
    """Two dimensions after dropping trailing ones, a name that ends in weight, and not a norm or a gate."""
    assert kept == bool(why_kept(name, shape))


def test_tensors_come_in_llama_quantizes_order() -> None:
    """What is outside the blocks first, then block by number, then by name."""
    names = [
        "blk.10.a.weight",
        "blk.2.b.weight",
        "output.weight",
        "blk.2.a.weight",
        "fc.weight",
        "Z",
    ]

    assert [
        "Z",
        "fc.weight",
        "output.weight",
        "blk.2.a.weight",
        "blk.2.b.weight",
        "blk.10.a.weight",
    ] == sorted(names, key=file_order)


def test_an_override_wins_and_the_first_of_two_decides() -> None:
    """--tensor-type beats the scheme; `keep` leaves the source type; the first matching pattern decides."""
    overrides = [
        Override("fc.weight", "keep"),
        Override("blk.0.*", "q6_k"),
        Override("blk.*.attn_q.weight", "q5_0"),
    ]

    found = types("q2_k", overrides=overrides)

    assert ("BF16", "Q6_K", "Q5_0") == tuple(
        found[n] for n in ("fc.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight")
    )


@pytest.mark.parametrize("pattern", ["blk.9.*", "fc", "output_norm.weight", "BLK.0.*"])
def test_an_override_that_matches_no_matrix_is_refused(pattern: str) -> None:
    """A typing error must not pass silently, nor a pattern that names only norms."""
    with pytest.raises(UsageError) as caught:
        types("q2_k", overrides=[Override(pattern, "q8_0")])

    assert pattern == caught.value.found


def test_a_fallback_says_what_was_wanted() -> None:
    """A row of 288 cannot be Q4_K: the decision names both types."""
    (decision,) = decide(
        packaged()["q4_k_m"], [Tensor("fc.weight", BF16, (288, 4))], Facts(1, 4, True)
    )

    assert ("Q5_0", "q4_k") == (type_name(decision.type), decision.wanted)


SCHEME = 'default = "q4_k"\nrules = [{ match = ["fc.*", "x"], type = "keep", when = "more-bits", count = "blocks" }]'


def test_a_users_scheme_file_is_read_bare_or_as_one_table() -> None:
    """Both spellings give the same rules."""
    bare, named = parse_file(SCHEME, "s.toml"), parse_file("[mine]\n" + SCHEME, "s.toml")

    assert ("custom", "mine") == (bare.name, named.name)
    assert bare.rules == named.rules
    assert ("fc.*", "x") == bare.rules[0].match


@pytest.mark.parametrize(
    "text",
    [
        "", "default", "[a]\ndefault = 'q8_0'\n[b]\ndefault = 'q8_0'", "default = 'q9_k'", "default = 8", "default = 'q8_0'\nfile_type = -1",
        "default = 'q8_0'\nfile_type = true", "default = 'q8_0'\nextra = 1", "default = 'q8_0'\nrules = [1]", "default = 'q8_0'\nrules = 'a'",
        "default = 'q8_0'\nrules = [{ match = 'a' }]", "default = 'q8_0'\nrules = [{ type = 'q8_0' }]",
        "default = 'q8_0'\nrules = [{ match = [], type = 'q8_0' }]", "default = 'q8_0'\nrules = [{ match = [1], type = 'q8_0' }]",
        "default = 'q8_0'\nrules = [{ match = 'a', type = 'Q8_0' }]", "default = 'q8_0'\nrules = [{ match = 'a', type = 'q8_0', when = 'never' }]",
        "default = 'q8_0'\nrules = [{ match = 'a', type = 'q8_0', count = 'rows' }]", "a = 1",
    ],
)  # fmt: skip
def test_an_unsound_scheme_file_is_refused(text: str) -> None:
    """Every field is checked; nothing unknown passes."""
    with pytest.raises(InputError):
        parse_file(text, "s.toml")


@given(st.text(max_size=200))
def test_any_text_is_a_scheme_or_refused(text: str) -> None:
    """A scheme file from a stranger raises nothing but InputError."""
    with contextlib.suppress(InputError):
        parse_file(text, "s.toml")


def test_every_condition_is_used_and_every_scheme_says_what_it_is() -> None:
    """No dead condition, no scheme without a summary or a file type."""
    used = {rule.when for scheme in packaged().values() for rule in scheme.rules}

    assert set(CONDITIONS) == used | {""}
    assert all(s.summary and s.file_type for s in packaged().values())
