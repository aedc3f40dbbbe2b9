"""Requests in, tokens out: scheduler, runner and the LLM a program talks to."""
