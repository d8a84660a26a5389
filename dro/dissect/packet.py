"""The dissector: any packet as named fields, with the names and printed forms of the standard dissectors.

`umdump` prints the result, tests compare it with recorded output of an independent decoder. Fields of the frame layer
of such a decoder (`frame.*`, `_ws.*`) are not included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.dissect.fields import FieldList, Fields
from dro.dissect.lbmc import lbmc_fields
from dro.dissect.lbmr import lbmr_fields
from dro.dissect.lbmsrs import lbmsrs_fields
from dro.dissect.transport import lbtrm_fields, lbtru_fields, lbttcp_fields
from dro.errors import DecodeError, LocalProtocolError

_DISSECTORS: Final[dict[str, Callable[[bytes, FieldList], None]]] = {
    "lbmr": lbmr_fields,
    "lbmc": lbmc_fields,
    "lbtrm": lbtrm_fields,
    "lbtru": lbtru_fields,
    "lbttcp": lbttcp_fields,
    "lbmsrs": lbmsrs_fields,
}
PROTOCOLS: Final = tuple(_DISSECTORS)


def fields(proto: str, data: bytes) -> Fields:
    """The fields of one datagram or, for `lbmc` and `lbttcp`, of a run of whole LBMC messages; for `lbmsrs` of frames.

    `proto` is one of `PROTOCOLS`. A fault is returned in `error`, beside the fields that stand before it.
    Raises: LocalProtocolError for another `proto`, nothing else.
    """
    dissector = _DISSECTORS.get(proto)
    if dissector is None:
        raise LocalProtocolError(f"no dissector for {proto!r}; there are {', '.join(PROTOCOLS)}")
    out = FieldList()
    error: DecodeError | None = None
    try:
        dissector(data, out)
    except DecodeError as e:
        error = e
    return Fields(out.as_dict(), error)
