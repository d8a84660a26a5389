"""UM options of a portal's proxies beyond those of their context: those that files set by topic or pattern.

Most configurations set nothing by topic; then every result is None, which means the options of the context. Equal
results are one object, so ten thousand topics need no more memory than one. Topics that the options forbid are handled
before, see `portals.decisions.acl_enforcement`.

Source: UM configuration file rules, 4.3 and 4.6. As in the original, options by topic do not apply to the sources that
a wildcard receiver finds.
"""

from __future__ import annotations

from dro.config.um.layers import RECEIVER, SOURCE, WILDCARD_RECEIVER, ContextOptions
from dro.config.um.options import UmOptions
from portals.decisions.acl_enforcement import name_text
from portals.decisions.messages import PATTERN_REGEX


class ProxyOptions:
    """See the module text. Answers raise ConfigError for an object that the options do not permit."""

    def __init__(self, sending: ContextOptions, receiving: ContextOptions) -> None:
        self._sending = sending if sending.by_topic else None
        self._receiving = receiving if receiving.by_topic else None
        self._known: dict[UmOptions, UmOptions] = {}

    def source(self, topic: bytes) -> UmOptions | None:
        return None if self._sending is None else self._of(SOURCE, self._sending.source(name_text(topic)))

    def receiver(self, topic: bytes) -> UmOptions | None:
        return None if self._receiving is None else self._of(RECEIVER, self._receiving.receiver(name_text(topic)))

    def wildcard_receiver(self, pattern: bytes, kind: int) -> UmOptions | None:
        if self._receiving is None:
            return None
        options = self._receiving.wildcard_receiver(name_text(pattern), "regex" if kind == PATTERN_REGEX else "pcre")
        return self._of(WILDCARD_RECEIVER, options)

    def _of(self, scope: str, options: UmOptions) -> UmOptions:
        """Return the options of that scope alone: the context has its own, which may be more than the files say."""
        own = UmOptions({key: value for key, value in options.explicit.items() if key[0] == scope})
        return self._known.setdefault(own, own)
