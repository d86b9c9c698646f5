"""From a canonical GGUF to a quantised one, through native K-quant code."""

from .native import dequantize_rows, quantize_rows

__all__ = ["dequantize_rows", "quantize_rows"]
