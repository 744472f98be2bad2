"""Is attention explanation, here? The experiments of the debate, each one call on the user's own model."""

from attnflow.audit.adversary import adversary
from attnflow.audit.correlation import correlation
from attnflow.audit.finding import Finding
from attnflow.audit.permutation import permutation

__all__ = ["Finding", "adversary", "correlation", "permutation"]
