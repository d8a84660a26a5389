"""The part of lz4.frame that this project uses; the package brings no types."""

BLOCKSIZE_MAX64KB: int

class LZ4FrameCompressor:
    def __init__(self, *, block_size: int = ..., block_linked: bool = ..., auto_flush: bool = ...) -> None: ...
    def begin(self) -> bytes: ...
    def compress(self, data: bytes) -> bytes: ...

def compress(
    data: bytes,
    *,
    block_size: int = ...,
    block_linked: bool = ...,
    content_checksum: bool = ...,
    block_checksum: bool = ...,
    store_size: bool = ...,
) -> bytes: ...
def decompress(data: bytes) -> bytes: ...
