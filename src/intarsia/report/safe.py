"""Text from outside, made safe to show: names and paths are whatever a stranger wrote."""

from __future__ import annotations

import json
from typing import Any

_IN_A_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def visible(text: str) -> str:
    r"""The same text with characters that show nothing, or turn the line around, written out.

    >>> visible("a\u202eb\n")
    'a\\u202eb\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def html(text: object) -> str:
    """Text as it stands between tags or in a quoted attribute.

    >>> html("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    from html import escape

    return escape(visible(str(text)))


def script(value: Any) -> str:
    r"""A value as JSON inside a script element, which no string of it can end.

    >>> script("</script>")
    '"\\u003c/script\\u003e"'
    """
    return json.dumps(value, separators=(",", ":")).translate(_IN_A_SCRIPT)
