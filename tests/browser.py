"""A Chromium for the tests, the screenshots and the benchmark of the page."""

from __future__ import annotations

import shutil
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for path in map(shutil.which, NAMES) if path), "")
# No sandbox: containers that run as root have none. The rest keeps the browser from calling home.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def launch(play: Any) -> Any:
    """The browser, headless, for ``with sync_playwright() as play``."""
    return play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
