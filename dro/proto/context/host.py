"""Carries out the effects of a context's engine one by one, until there are none: what its hosts have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from dro.proto.context.effects import ContextEffect
from dro.proto.context.engine import ContextEngine


class ContextHost(ABC):
    """Runs an engine. Each input is followed by `pump`, which does nothing while an effect is carried out."""

    def __init__(self, engine: ContextEngine) -> None:
        self.engine = engine
        self.is_closed = False
        self._is_pumping = False
        self._together = 0

    @abstractmethod
    def now_ns(self) -> int: ...

    @abstractmethod
    def perform(self, effect: ContextEffect) -> None: ...

    @abstractmethod
    def on_pumped(self) -> None:
        """Send what the engine has to say, and set the timer."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send what is wanted and opened within together at the end, in few datagrams; found sources come then."""
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
            self.pump()

    def pump(self) -> None:
        """Carry out what the engine asks for until it asks for nothing more."""
        if self._is_pumping or self._together or self.is_closed:
            return
        self._is_pumping = True
        try:
            for effect in self.engine.take_effects(self.now_ns()):
                self.perform(effect)
                if self.is_closed:
                    return
        finally:
            self._is_pumping = False
        self.on_pumped()
