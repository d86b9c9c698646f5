"""From a draft checkpoint or any GGUF dialect to the canonical GGUF."""
