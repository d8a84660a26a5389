"""Options of a TIR by name."""

from __future__ import annotations

from dro.wire.lbmr.options import (
    ContextInstance,
    Cost,
    DomainId,
    ExtendedFunctionality,
    LateJoin,
    OtidOption,
    TirOption,
    TirOptions,
)


def tir_options(
    *,
    otid: bytes | None = None,
    cost: Cost | None = None,
    domain_id: int | None = None,
    context_instance: bytes | None = None,
    extended: ExtendedFunctionality | None = None,
    late_join: LateJoin | None = None,
) -> TirOptions:
    """What is given, in ascending order of code, as UM sends it."""
    items: list[TirOption | None] = [
        late_join,
        cost,
        None if otid is None else OtidOption(otid),
        None if context_instance is None else ContextInstance(context_instance),
        None if domain_id is None else DomainId(domain_id),
        extended,
    ]
    return TirOptions(tuple(item for item in items if item is not None))
