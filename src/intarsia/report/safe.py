"""Text from outside, made safe to show: names and paths are whatever a stranger wrote."""

from __future__ import annotations

import json
from typing import Any

from intarsia.errors import visible

_IN_A_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


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
