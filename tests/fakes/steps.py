"""Work in steps of the interpreter, in the place of time: the same on every machine, however loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(call: Callable[[], object]) -> int:
    """How many instructions of Python code `call` takes; what C code does within one is not seen."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ANN401  as `sys.settrace` has it
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
