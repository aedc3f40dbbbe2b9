"""From a configuration, a GGUF header or a name to the shape of a model."""
