"""The parts of tools/train_pair.py: corpus, tokenizer, models, training, evaluation, export."""
