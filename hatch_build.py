"""The page of the package index: the README with absolute links, which that page needs, and the project's addresses.

The address of the repository is ``repository-code`` of CITATION.cff, or ATTNFLOW_REPOSITORY in the environment,
which the release workflow sets. Without either the README goes in as it is.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling with the table ``[project]``."""
        root = Path(self.root)
        found = re.search(r'^repository-code: "?([^"\n]+)', (root / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
        address = os.environ.get("ATTNFLOW_REPOSITORY") or (found.group(1) if found else "")
        text = (root / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, address) if address else text}
        if address:
            metadata["urls"] = {
                "Repository": address,
                "Documentation": f"{address}/tree/main/docs",
                "Changelog": f"{address}/blob/main/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }


def absolute(text: str, address: str) -> str:
    """Markdown whose relative links lead to the repository; pictures come as files, pages as pages."""
    text = re.sub(r"(!\[[^\]]*\])\((?!https?:|#)([^)]+)\)", rf"\1({address}/raw/main/\2)", text)
    return re.sub(r"(?<!!)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)", rf"\1({address}/blob/main/\2)", text)
