"""Tokenizer, chat template, streaming detokenizer and stop strings. It never imports torch."""
