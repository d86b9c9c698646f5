"""From a canonical GGUF to a quantised one, through native K-quant code."""
