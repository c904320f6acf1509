"""onnx's version converter in a process of its own: where it crashes, ours goes on.

``python -m ortopt.opset_conversion.child`` reads requests from standard input, each a target version, a length and a
serialized model, and answers each with a flag, a length and the converted model or what went wrong.
"""

from __future__ import annotations

import struct
import sys
from typing import BinaryIO, Final

from ortopt.system.child_processes import end_with, take_streams

REQUEST: Final = struct.Struct("<II")
ANSWER: Final = struct.Struct("<?I")


def _convert(data: bytes, version: int) -> bytes:
    import onnx
    import onnx.version_converter

    converted = onnx.version_converter.convert_version(onnx.ModelProto.FromString(data), version)
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {"": version}
    for node in converted.graph.node:
        onnx.checker.check_node(node, context)
    result: bytes = converted.SerializeToString(deterministic=True)
    return result


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""
    while head := requests.read(REQUEST.size):
        version, length = REQUEST.unpack(head)
        data = requests.read(length)
        try:
            good, answer = True, _convert(data, version)
        except Exception as error:  # the C++ side raises many kinds
            good, answer = False, str(error).encode()
        answers.write(ANSWER.pack(good, len(answer)) + answer)
        answers.flush()


if __name__ == "__main__":
    requests, answers = take_streams()  # the converter prints
    end_with(int(sys.argv[1]))
    with answers:
        main(requests, answers)
