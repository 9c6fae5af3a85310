"""What crosses the boundary: frames as bytes, lossless codecs, and the gate that checks every reply."""

from fedstrata.core.codec import Codec, Form, Shapes
from fedstrata.storage.container import Limits
from fedstrata.wire.codec import CODECS, Bits, Dense, find_codec, pack, packed_shapes, unpack
from fedstrata.wire.frame import Frame, MessageSize, decode, encode, size
from fedstrata.wire.gate import Bounds, Refusal, inspect

__all__ = [
    "Frame",
    "encode",
    "decode",
    "size",
    "MessageSize",
    "Limits",
    "Form",
    "Shapes",
    "Codec",
    "CODECS",
    "Dense",
    "Bits",
    "find_codec",
    "packed_shapes",
    "pack",
    "unpack",
    "inspect",
    "Bounds",
    "Refusal",
]
