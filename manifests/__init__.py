"""Data: published drafts, prompt sets and recorded references."""
