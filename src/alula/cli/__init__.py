"""The command line: one module per command; it parses, calls and prints."""
