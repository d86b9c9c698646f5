"""The pair's tokenizer: byte-level BPE of exactly VOCAB_SIZE tokens, split as Qwen2 splits.

Knows the special tokens and their ids; the corpus comes from outside.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 1024
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
EOS_ID, IM_START_ID, IM_END_ID, MASK_ID = range(VOCAB_SIZE - len(SPECIALS), VOCAB_SIZE)
# The pattern llama.cpp calls "qwen2": words with at most one leading mark, single digits, runs of marks.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer learnt from `texts`; ids 0..1019 are BPE tokens, the last four the specials."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS),
        show_progress=False,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    missing = VOCAB_SIZE - len(SPECIALS) - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([f"<|unused_{i}|>" for i in range(missing)])
    tokenizer.add_special_tokens(list(SPECIALS))
    if tokenizer.token_to_id(SPECIALS[-1]) != MASK_ID:
        raise AssertionError("the special tokens are not the last ids")
    return tokenizer
