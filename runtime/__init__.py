"""The speculative runtime and the verdict on a draft."""
