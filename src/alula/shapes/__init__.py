"""What config.json or a GGUF header says about a model. It never imports torch."""
