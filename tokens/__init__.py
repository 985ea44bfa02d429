"""Exact tokenizers, for those who ask for one: split patterns, byte-pair merges, their files, the tiktoken library."""
