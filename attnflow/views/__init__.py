"""Views of a result: terminal, page and plot. A view shows scores; it never computes one."""
