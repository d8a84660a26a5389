"""Which UM options the proxies of a portal have beyond those of their context: what the files say by topic or pattern.

Most configurations say nothing by topic; then every answer is None, which means the options of the context. Equal
answers are one object, so ten thousand topics need no more memory than one. What the options forbid was asked before,
see `portals.endpoint.access`.

Source: UM configuration file rules, 4.3 and 4.6. As in the original, what holds for topics does not hold for the
sources that a wildcard receiver finds.
"""

from __future__ import annotations

from dro.config.options import UmOptions
from dro.config.um_layers import RECEIVER, SOURCE, WILDCARD_RECEIVER, ContextOptions
from portals.messages import PATTERN_REGEX


class ProxyOptions:
    """See the module text. Answers raise ConfigError for an object that the options do not permit."""

    def __init__(self, sending: ContextOptions, receiving: ContextOptions) -> None:
        self._sending = sending if sending.by_topic else None
        self._receiving = receiving if receiving.by_topic else None
        self._known: dict[UmOptions, UmOptions] = {}

    def source(self, topic: bytes) -> UmOptions | None:
        """Of a proxy source."""
        return None if self._sending is None else self._of(SOURCE, self._sending.source(_text(topic)))

    def receiver(self, topic: bytes) -> UmOptions | None:
        """Of a proxy receiver."""
        return None if self._receiving is None else self._of(RECEIVER, self._receiving.receiver(_text(topic)))

    def wildcard_receiver(self, pattern: bytes, kind: int) -> UmOptions | None:
        """Of a proxy wildcard receiver."""
        if self._receiving is None:
            return None
        options = self._receiving.wildcard_receiver(_text(pattern), "regex" if kind == PATTERN_REGEX else "pcre")
        return self._of(WILDCARD_RECEIVER, options)

    def _of(self, scope: str, options: UmOptions) -> UmOptions:
        """The options of that scope alone: the context has its own, which may be more than the files say."""
        own = UmOptions({key: value for key, value in options.explicit.items() if key[0] == scope})
        return self._known.setdefault(own, own)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
