"""Self-contained HTML pages: a template with a style, data and the scripts that draw it."""

from __future__ import annotations

import json
import math
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def render_page(directory: str, title: str, data: object, scripts: Sequence[str]) -> str:
    """Return the page of `page.html` and `page.css` in a directory, with its data and scripts."""
    from html import escape

    def read(name: str) -> str:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            return file.read()

    return read("page.html").format(
        title=escape(title),
        style=read("page.css"),
        data=json_for_script(data),
        script="\n".join(read(name) for name in scripts),
    )


def json_for_script(data: object) -> str:
    """Return JSON that cannot close the script element around it."""
    text = json.dumps(replace_non_finite(data), separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinities by None, which JSON can represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    return value
