"""Answers as documents: for a terminal, an issue, a page, a program."""
