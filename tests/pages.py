"""What a page holds."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any


def data_of(text: str) -> Any:
    """The data that the page's script reads."""
    found = re.search(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', text)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))
