"""The package's own models and tokenizers, and how any model is loaded by name."""
