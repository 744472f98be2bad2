"""Is attention explanation, here? The experiments of the debate, each one call on the user's own model."""

from attnflow.audit.finding import Finding

__all__ = ["Finding"]
