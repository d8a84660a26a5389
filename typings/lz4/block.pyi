"""The part of lz4.block that this project uses; the package brings no types."""

class LZ4BlockError(Exception): ...

def compress(source: bytes, *, store_size: bool = ...) -> bytes: ...
def decompress(
    source: bytes | memoryview,
    *,
    uncompressed_size: int = ...,
    dict: bytes | memoryview = ...,  # noqa: A002  the name in the package
) -> bytes: ...
