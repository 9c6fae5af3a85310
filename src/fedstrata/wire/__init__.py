"""What crosses the boundary between server and client: frames as bytes, lossless codecs, and the gate that checks every
reply.
"""

from fedstrata.storage.container import Form, Limits, Shapes
from fedstrata.wire.codec import CODECS, Codec, pack, packed_shapes, register, unpack
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
    "register",
    "packed_shapes",
    "pack",
    "unpack",
    "inspect",
    "Bounds",
    "Refusal",
]
