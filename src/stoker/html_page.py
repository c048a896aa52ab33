"""Reports as self-contained HTML files: a template with data and the script that draws them."""

from __future__ import annotations

import json
import math
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


REPORTS = os.path.join(os.path.dirname(__file__), "ui", "dist")
"""Scripts and styles that are built from ui/src/report."""
TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main id="report"><noscript><p>This report needs JavaScript.</p></noscript></main>
<script type="application/json" id="data">{data}</script>
<script>
{script}
</script>
</body>
</html>
"""


def render_report(name: str, title: str, data: object) -> str:
    """Return a report with its data, style and script."""
    from html import escape

    def read(ending: str) -> str:
        with open(os.path.join(REPORTS, f"report-{name}.{ending}"), encoding="utf-8") as file:
            return file.read()

    return TEMPLATE.format(
        title=escape(title), style=read("css"), data=json_for_script(data), script=read("js")
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
