"""Pages, prefix hash, the key-value pool and its commit. It knows no model."""
