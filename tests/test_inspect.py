"""dflash-inspect: what it is, what is wrong, what mends it, who loads it; and the drafts that are known by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import drafts
import numpy as np
import pytest
import tiny
import trained_pair
from click.testing import CliRunner, Result
from dflash_gguf.convert import fields as f
from dflash_gguf.convert.causality import causality
from dflash_gguf.convert.cli import main
from dflash_gguf.convert.draft import read_draft
from dflash_gguf.convert.errors import InputError, UsageError
from dflash_gguf.convert.ggml import BY_NAME
from dflash_gguf.convert.gguf import read_gguf
from dflash_gguf.convert.gguf_writer import GgufOutput
from dflash_gguf.convert.inspect_cli import main as inspect_main
from dflash_gguf.convert.pairing import checks
from dflash_gguf.convert.published import (
    Published,
    by_name,
    candidates,
    parse_table,
    published,
    recognise,
)
from dflash_gguf.convert.spec import Conv, DraftSpec, Selector
from dflash_gguf.convert.target import read_target
from hostile import edited, run_alone


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny v2 draft in every dialect, and its target."""
    folder = tmp_path_factory.mktemp("files")
    found = {"target": tiny.write_target_gguf(folder / "target.gguf")}
    for v2 in (False, True):
        draft = tiny.write_draft(folder / f"d{v2}", v2)
        for dialect in ("canonical", "lucebox", "ik"):
            name = f"{dialect}{2 if v2 else 1}"
            found[name] = folder / f"{name}.gguf"
            arguments = [
                str(draft),
                str(found[name]),
                "--target",
                str(found["target"]),
                "--dialect",
                dialect,
            ]
            assert 0 == CliRunner().invoke(main, arguments).exit_code
    return found


def inspect(*arguments: Any) -> Result:
    """dflash-inspect with these arguments."""
    return CliRunner().invoke(inspect_main, [str(a) for a in arguments])


def report(*arguments: Any) -> dict[str, Any]:
    """Its JSON."""
    body: dict[str, Any] = json.loads(inspect(*arguments, "--json").stdout)["inspection"]
    return body


def loads(path: Path) -> dict[str, Any]:
    """Runtime to whether it loads the file."""
    return {v["runtime"]: v["loads"] for v in report(path)["runtimes"]}


def test_each_dialect_is_loaded_by_its_own_runtime(files: dict[str, Path]) -> None:
    """The verdicts differ by the file alone; what was never seen is said to be unknown.

    Lucebox's loader takes ik's spellings of a v1 draft too (models.md, section 8).
    """
    assert {
        "llama.cpp": True,
        "Lucebox": False,
        "ik_llama.cpp": False,
        "dflash-validate": True,
    } == loads(files["canonical1"])
    assert {
        "llama.cpp": False,
        "Lucebox": True,
        "ik_llama.cpp": False,
        "dflash-validate": True,
    } == loads(files["lucebox1"])
    assert {
        "llama.cpp": False,
        "Lucebox": True,
        "ik_llama.cpp": True,
        "dflash-validate": True,
    } == loads(files["ik1"])
    assert {
        "llama.cpp": True,
        "Lucebox": False,
        "ik_llama.cpp": False,
        "dflash-validate": True,
    } == loads(files["canonical2"])
    assert (None, None) == (
        loads(files["lucebox2"])["Lucebox"],
        loads(files["ik2"])["ik_llama.cpp"],
    )


LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("target_layers is missing", {"drop": ("dflash.target_layers",)}),
    ("mask_token_id is missing", {"drop": ("tokenizer.ggml.mask_token_id",)}),
    ("tokens is missing", {"drop": ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")}),
    (
        "last layer is captured",
        {"dflash__target_layer_ids": f.i32s([0, 3]), "dflash__target_layers": f.i32s([1, 4])},
    ),
    ("does not say so", {"dflash__attention__causal_pattern": f.booleans([True, True])}),
    ("names it does not know (dflash_fc.weight)", {"rename": {"fc.weight": "dflash_fc.weight"}}),
]


@pytest.mark.parametrize(("what", "fault"), LOSSES, ids=[x[0] for x in LOSSES])
def test_llama_cpp_is_told_why_not(
    tmp_path: Path, files: dict[str, Path], what: str, fault: dict[str, Any]
) -> None:
    """What its loader or its first draft would stumble over is named."""
    drop = fault.pop("drop", ())
    special = (
        tuple(k for k in tiny.target_fields() if k.endswith("_token_id"))
        if "tokenizer.ggml.tokens" in drop
        else ()
    )
    path = edited(files["canonical1"], tmp_path / "x.gguf", (*drop, *special), **fault)
    verdict = next(v for v in report(path)["runtimes"] if v["runtime"] == "llama.cpp")

    assert verdict["loads"] is False
    assert any(what in reason for reason in verdict["reasons"]), verdict


def test_mixed_causality_is_a_remark(files: dict[str, Path]) -> None:
    """llama.cpp loads a draft whose layers differ, and simplifies it: that is said."""
    assert "one flag" in inspect(files["canonical1"]).stdout


def test_every_missing_field_is_listed_with_the_command_that_mends_it(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    """Three losses at once are three defects, exit 3, and what had to be made up is not shown as a fact."""
    path = edited(
        files["canonical1"],
        tmp_path / "x.gguf",
        (
            "dflash.block_size",
            "dflash.mask_token_id",
            "tokenizer.ggml.mask_token_id",
            "dflash.rope.freq_base",
        ),
    )
    result, body = inspect(path), report(path)

    assert 3 == result.exit_code
    for option in ("--block-size ROWS", "--mask-token-id ID", "--rope-theta BASE"):
        assert option in body["repair"]["command"]
    assert f"mend by     {body['repair']['command']}" in result.stdout
    assert 3 == len(body["defects"])
    assert (None, None, None) == tuple(
        body["spec"][k] for k in ("block_size", "mask_token_id", "rope_theta")
    )
    assert "mask token  " not in result.stdout


def test_reading_goes_on_behind_unknown_layer_ids(tmp_path: Path, files: dict[str, Path]) -> None:
    """Layer ids that nobody can know and a missing block size: both are listed, with their commands."""
    path = edited(
        files["canonical1"],
        tmp_path / "x.gguf",
        ("dflash.block_size", "dflash.target_layers", "dflash.target_layer_ids"),
    )
    found = {d["what"] for d in report(path)["defects"]}

    assert {"draft does not say its block_size", "draft does not say its target_layer_ids"} == found


def test_reading_ends_at_what_no_option_mends(tmp_path: Path, files: dict[str, Path]) -> None:
    """A missing block size and heads that do not divide: both are listed, and no draft is described."""
    path = edited(
        files["canonical1"],
        tmp_path / "x.gguf",
        ("dflash.block_size",),
        dflash__attention__head_count=f.u32(3),
    )
    body = report(path)

    assert 2 == len(body["defects"])
    assert "dialect" not in body
    assert 3 == inspect(path).exit_code


def test_json_of_an_unsound_draft_is_one_object(tmp_path: Path, files: dict[str, Path]) -> None:
    """stdout stays one object, with ok false and the exit code of the process."""
    path = edited(files["canonical1"], tmp_path / "x.gguf", ("dflash.block_size",))
    result = inspect(path, "--json")
    body = json.loads(result.stdout)

    assert (False, 3, 3) == (body["ok"], body["exit_code"], result.exit_code)


def spec_of(p: Published) -> DraftSpec:
    """A spec that is exactly the published draft, what is not known filled in."""
    known = dict(p.fields)
    layers = known["num_hidden_layers"]
    sliding = known.pop("sliding_layers", (False,) * layers)
    v2 = known["variant"] == "dflash2"
    filler = {
        "vocab_size": 300_000, "context_length": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "mask_token_id": 0,
        "rope_dimension_count": known["head_dim"], "target_hidden_size": known["hidden_size"], "sliding_window": 0,
    }  # fmt: skip
    return DraftSpec(
        **(filler | known), sliding_layers=sliding, causal_layers=causality(p.causal, sliding),
        conv=Conv(2, 16) if v2 else None, selector=Selector(32, 8) if v2 else None,
    )  # fmt: skip


@pytest.mark.parametrize("p", published(), ids=lambda p: p.name)
def test_published_draft_is_sound_and_recognised(p: Published) -> None:
    """Every row of the tables is a spec that passes the checks, and is recognised without a difference."""
    found = recognise(spec_of(p))

    assert found is not None
    assert [] == found[1]


def test_pair_manifest_is_what_the_checkpoints_say() -> None:
    """The two drafts in examples/pair are recognised without a difference, each by its own row."""
    for folder, name in (("draft-v1", "Pair-DFlash"), ("draft-v2", "Pair-DFlash2")):
        found = recognise(read_draft(trained_pair.PAIR / folder).spec)

        assert found is not None
        assert (f"dflash-gguf/{name}", []) == (found[0].name, found[1])


def without_window(p: Published) -> DraftSpec:
    """The published draft as a converter that forgot windows wrote it."""
    layers = p.fields["num_hidden_layers"]
    return replace(
        spec_of(p), sliding_window=0, sliding_layers=(False,) * layers, causal_layers=(False,) * layers
    )  # fmt: skip


WINDOWED = [p for p in published() if p.fields.get("sliding_window")]


@pytest.mark.parametrize("p", WINDOWED, ids=lambda p: p.name)
def test_lost_window_of_every_published_draft_is_damage(p: Published) -> None:
    """It is among the drafts that the file can be, first where the file names it, and the table can give it back."""
    spec = without_window(p)
    assert p.is_damaged(spec)
    assert p in candidates(spec)
    likely = recognise(spec, p.name)

    assert likely is not None
    assert likely[0].named_in(p.name)
    assert p.supplied()["sliding_window"] == p.fields["sliding_window"]


def test_name_in_the_file_decides_between_equal_tensors() -> None:
    """Without its window Qwen3.6-27B is Qwen3.5-27B of before June, field for field: only the name can tell."""
    p = by_name("z-lab/Qwen3.6-27B-DFlash")
    spec = without_window(p)

    assert [] == recognise(spec)[1]  # type: ignore[index]
    assert p is recognise(spec, "Qwen3.6 27B DFlash")[0]  # type: ignore[index]


def test_another_mask_makes_another_draft_and_no_damage() -> None:
    """A lost window and another mask token: it is said what differs, and nothing is called a defect."""
    p = by_name("z-lab/Qwen3.6-27B-DFlash")
    spec = replace(without_window(p), mask_token_id=9)

    assert not p.is_damaged(spec)
    assert any("mask_token_id is 9, published was 248070" in d for d in p.differences(spec))


def test_file_that_may_be_a_damaged_other_is_told_so(tmp_path: Path) -> None:
    """A sound draft of known tensors gets no such warning."""
    body = report(trained_pair.draft_gguf("v1"))

    assert ([], []) == (body["warnings"], body["defects"])
    assert "dflash-gguf/Pair-DFlash" == body["published"]["name"]


def test_difference_from_the_published_draft_is_a_warning(tmp_path: Path) -> None:
    """Another RoPE base: exit 0, and both values are named."""
    path = edited(trained_pair.draft_gguf("v1"), tmp_path / "x.gguf", dflash__rope__freq_base=f.f32(1e4))  # fmt: skip
    result = inspect(path)

    assert 0 == result.exit_code
    assert "warning     it looks like dflash-gguf/Pair-DFlash, but rope_theta is 10000.0, published was 1000000.0" in result.stdout  # fmt: skip


SOURCES = {
    "canonical1": ("dflash.mask_token_id, tokenizer.ggml.mask_token_id", "dflash.attention.sliding_window", "dflash.rope.freq_base",
                   "dflash.block_size", "dflash.target_layer_ids", "dflash.attention.causal_pattern"),
    "lucebox1": ("dflash-draft.dflash.mask_token_id", "dflash-draft.attention.sliding_window", "dflash-draft.rope.freq_base",
                 "dflash-draft.dflash.block_size", "dflash-draft.dflash.target_layer_ids", "dflash-draft.attention.causal_pattern"),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_every_value_of_a_gguf_names_its_key(files: dict[str, Path], name: str) -> None:
    """In JSON and in words: mask token, window, RoPE, block, layer ids, causality."""
    fields = ("mask_token_id", "sliding_window", "rope_theta", "block_size", "target_layer_ids", "causal_layers")  # fmt: skip
    found = report(files[name])["sources"]
    text = inspect(files[name]).stdout

    assert SOURCES[name] == tuple(found[k] for k in fields)
    assert all(key in text for key in SOURCES[name])


def test_value_that_no_key_says_names_the_rule(tmp_path: Path, files: dict[str, Path]) -> None:
    """Causality without a key follows the reference's rule, and a missing window is said to have no key."""
    lost = ("attention.causal_pattern", "attention.sliding_window", "attention.sliding_window_pattern")  # fmt: skip
    path = edited(files["canonical1"], tmp_path / "x.gguf", tuple(f"dflash.{k}" for k in lost))
    text = inspect(path).stdout

    assert "all two-sided (no key: by the reference's rule, sliding layers are)" in text
    assert "window      none (no key)" in text


def test_options_and_published_manifests_are_named_as_sources(tmp_path: Path) -> None:
    """dflash-convert --dry-run says of every value whether the file, an option or a published draft gave it."""
    path = edited(
        trained_pair.draft_gguf("v1"), tmp_path / "x.gguf", ("dflash.mask_token_id", "tokenizer.ggml.mask_token_id")
    )  # fmt: skip
    words = [str(path), str(tmp_path / "o.gguf"), "--published", "Pair-DFlash", "--block-size", "8", "--dry-run", "--json"]  # fmt: skip
    found = json.loads(CliRunner().invoke(main, words).stdout)["plan"]["sources"]

    assert ("published Pair-DFlash", "option", "dflash.embedding_length") == tuple(
        found[k] for k in ("mask_token_id", "block_size", "hidden_size")
    )


def poisoned(source: Path, output: Path, name: str, kind: str, at: int, value: float) -> Path:
    """A copy whose tensor `name` has the type `kind` and `value` (or a block's scale of it) at weight `at`."""
    file, raw = read_gguf(source), source.read_bytes()
    table = [(t.name, BY_NAME[kind].id if t.name == name else t.type, t.shape) for t in file.tensors.values()]  # fmt: skip
    with GgufOutput(output, file.fields, table) as writer:
        for t in file.tensors.values():
            data = raw[t.offset : t.offset + t.nbytes]
            if t.name == name:
                x = np.ones(t.nbytes // 2, np.float32)
                x[at] = value
                data = {
                    "F32": x.tobytes, "F16": x.astype(np.float16).tobytes, "BF16": tiny.bf16(x).tobytes,
                    "Q8_0": lambda x=x: b"".join(np.float16(s).tobytes() + bytes(32) for s in x.reshape(-1, 32)[:, at % 32]),
                }[kind]()  # fmt: skip
            writer.write(t.name, data)
    return output


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_found_by_tensor_and_index(
    tmp_path: Path, files: dict[str, Path], kind: str, value: float
) -> None:
    """Only --weights reads them; then exit 3, the tensor and the index of the weight, and no command that could mend it."""
    path = poisoned(files["canonical1"], tmp_path / "x.gguf", "fc.weight", kind, 128 * 5 + 64, value)  # fmt: skip
    assert 0 == inspect(path).exit_code
    body = report(path, "--weights")
    (defect,) = body["defects"]

    assert 3 == inspect(path, "--weights").exit_code
    assert f"{path}: fc.weight[5, 64]" == defect["where"]
    assert f"{np.float32(value)} in {kind}" in defect["found"]
    assert (None, False) == (body["repair"], defect["mended_by_convert"])


def test_all_damaged_tensors_are_listed(tmp_path: Path, files: dict[str, Path]) -> None:
    """Two damaged tensors are two defects."""
    one = poisoned(files["canonical1"], tmp_path / "a.gguf", "fc.weight", "BF16", 0, np.nan)
    two = poisoned(one, tmp_path / "b.gguf", "blk.1.ffn_down.weight", "BF16", 7, np.inf)

    assert ["fc.weight[0, 0]", "blk.1.ffn_down.weight[0, 7]"] == [
        d["where"].rpartition(": ")[2] for d in report(two, "--weights")["defects"]
    ]


def test_sound_weights_are_said_to_be_read(files: dict[str, Path]) -> None:
    """GGUF and checkpoint: nothing found, and the report says that it looked."""
    assert ("not read", "read") == (report(files["canonical2"])["weights"], report(files["canonical2"], "--weights")["weights"])  # fmt: skip
    assert 0 == inspect(trained_pair.PAIR / "draft-v2", "--weights").exit_code


def test_weights_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """A sparse draft of 700 MB: the peak of the whole process stays below 128 MiB."""
    path = drafts.write_sparse(tmp_path / "x.gguf", drafts.spec_of(layers=4, ff=200_000))
    assert path.stat().st_size > 600 << 20
    done = run_alone("dflash-inspect", path, "--weights")

    assert 0 == done.code, done.output
    assert done.peak < 128 << 20


def test_pairing_names_every_fact(files: dict[str, Path]) -> None:
    """Vocabulary, hidden size, depth, layer ids, mask token, tokenizer: both sides, and whether they fit."""
    found = report(files["canonical1"], "--target", files["target"])["pairing"]

    assert found["fits"]
    assert ["vocabulary size", "hidden size", "number of layers", "captured layers", "mask token", "tokenizer"] == [
        c["name"] for c in found["checks"]
    ]  # fmt: skip
    assert {True} == {c["fits"] for c in found["checks"]}


MISFITS = {
    "vocabulary size": {"vocab_size": 310},
    "hidden size": {"hidden_size": 128},
    "number of layers": {"num_hidden_layers": 5},
    "captured layers": {"num_hidden_layers": 2},
}


@pytest.mark.parametrize("name", MISFITS)
def test_each_fact_that_does_not_fit_is_a_verdict_of_no(
    tmp_path: Path, files: dict[str, Path], name: str
) -> None:
    """Exit 4 and the fact by its name, in words and in JSON."""
    goal = tiny.write_target(tmp_path / "t")
    config = tiny.target_config() | MISFITS[name]
    (goal / "config.json").write_text(json.dumps(config))
    result = inspect(files["canonical1"], "--target", goal)
    facts = report(files["canonical1"], "--target", goal)["pairing"]["checks"]

    assert 4 == result.exit_code
    assert name in [c["name"] for c in facts if c["fits"] is False]
    assert any(line.startswith(f"pairing     {name}") and line.endswith("DOES NOT FIT") for line in result.stdout.splitlines())  # fmt: skip


def test_mask_token_outside_the_target_embedding_does_not_fit(files: dict[str, Path]) -> None:
    """The mask token needs a row of the target's embedding."""
    goal = read_target(files["target"])
    small = replace(goal, spec=replace(goal.spec, vocab_size=tiny.MASK))
    found = {c.name: c.fits for c in checks(read_draft(files["canonical1"]), small)}

    assert (False, True) == (found["mask token"], found["captured layers"])


def test_another_tokenizer_does_not_fit(tmp_path: Path, files: dict[str, Path]) -> None:
    """One merge more is another tokenizer."""
    goal = edited(files["target"], tmp_path / "t.gguf", tokenizer__ggml__merges=f.texts(["h e", "e l"]))  # fmt: skip
    result = inspect(files["canonical1"], "--target", goal)

    assert (4, True) == (result.exit_code, "tokenizer" in result.stderr)


def test_bytes_are_counted_for_each_type(files: dict[str, Path]) -> None:
    """The sum is the data of the file."""
    found, file = report(files["canonical1"])["bytes_by_type"], read_gguf(files["canonical1"])

    assert {"BF16", "F32"} == set(found)
    assert sum(t.nbytes for t in file.tensors.values()) == sum(found.values())


def test_maker_and_card_are_spoken_of(tmp_path: Path, files: dict[str, Path]) -> None:
    """Which converter made it, and that BF16 is slow on a P40 (bugs 13 and 48)."""
    other = edited(files["canonical1"], tmp_path / "x.gguf", ("dflash.format_version",))

    assert "made by     dflash-convert, format 1" in inspect(files["canonical1"]).stdout
    assert "another converter" in inspect(other).stdout
    assert "q8_0" in inspect(files["canonical1"]).stdout


def test_names_of_published_drafts_are_found_with_and_without_the_owner() -> None:
    """`Qwen3.8-27B-DFlash2` is enough; an unknown name is a usage error that lists the known ones."""
    assert by_name("Qwen3.8-27B-DFlash2") is by_name("z-lab/Qwen3.8-27B-DFlash2")
    with pytest.raises(UsageError, match="no published draft"):
        by_name("x")


def test_unknown_geometry_is_not_recognised() -> None:
    """A draft of nobody's shape has no name."""
    assert recognise(tiny.tiny_spec()) is None


ROW = """[[draft]]
name = "x/y"
variant = "dflash1"
num_hidden_layers = 2
hidden_size = 64
intermediate_size = 96
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 16
captures = 2
target_layer_ids = [0, 2]
layers = "sf"
sliding_window = 8
"""

BROKEN_TABLES = {
    "not UTF-8": b"\xff", "not TOML": b"a", "no rows": b"a = 1", "rows a number": b"draft = 1", "row a number": b"draft = [1]",
    "other part": ROW.encode() + b"[more]\n", "target a number": b"target = 1\n" + ROW.encode(),
    "field missing": ROW.replace("head_dim = 16\n", "").encode(), "field unknown": (ROW + "speed = 9").encode(),
    "size a string": ROW.replace("= 64", '= "64"').encode(), "size a bool": ROW.replace("= 64", "= true").encode(),
    "ids of another number": ROW.replace("captures = 2", "captures = 3").encode(), "ids strings": ROW.replace("[0, 2]", '["0", "2"]').encode(),
    "layers of another number": ROW.replace('"sf"', '"sff"').encode(), "layers of other letters": ROW.replace('"sf"', '"sx"').encode(),
    "variant unknown": ROW.replace("dflash1", "dflash9").encode(), "causality unknown": (ROW + 'causal = "often"').encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_TABLES)
def test_broken_table_of_published_drafts_is_refused(name: str) -> None:
    """The table and the row are named; the sound table is read."""
    assert 1 == len(parse_table(ROW.encode(), "x.toml"))
    with pytest.raises(InputError, match=r"x\.toml"):
        parse_table(BROKEN_TABLES[name], "x.toml")


def headed(path: Path, arch: str, keys: str) -> Path:
    """A GGUF of architecture `arch` whose keys are another's, with one tensor."""
    fields = {"general.architecture": f.text(arch), f"{keys}.block_count": f.u32(2), f"{keys}.embedding_length": f.u32(64)}  # fmt: skip
    with GgufOutput(path, fields, [("fc.weight", BY_NAME["F32"].id, (128, 64))]) as writer:
        writer.write("fc.weight", bytes(4 * 128 * 64))
    return path


@pytest.mark.parametrize(
    ("arch", "keys"),
    [("dflash", "dflash"), ("dflash-draft", "dflash-draft"), ("dflash", "dflash-draft"), ("dflash-draft", "dflash")],
)  # fmt: skip
def test_header_of_each_scheme_is_told_which_keys_are_there_and_which_are_wanted(
    tmp_path: Path, arch: str, keys: str
) -> None:
    """Right name and scheme with fields missing, and the name of one with the keys of the other (bugs 15)."""
    result = inspect(headed(tmp_path / "x.gguf", arch, keys))

    assert 3 == result.exit_code
    assert f"{keys}.block_count" in result.output
    assert f"{arch}." in result.output
