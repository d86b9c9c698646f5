"""Which tensors may be quantised: those that llama-quantize would touch. Pure."""

from __future__ import annotations

NOT_MATRICES = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
)  # fmt: skip
"""Parts of names whose tensors llama-quantize never touches (those that a text model can have)."""


def why_kept(name: str, shape: tuple[int, ...]) -> str:
    """Why llama-quantize would never touch the tensor (canonical name, GGUF shape); empty for a matrix."""
    dims = list(shape)
    while len(dims) > 1 and dims[-1] == 1:
        dims.pop()
    if len(dims) < 2:
        return "one-dimensional"
    if not name.endswith("weight"):
        return "its name does not end in weight"
    part = next((part for part in NOT_MATRICES if part in name), "")
    return f"{part} tensors stay" if part else ""
