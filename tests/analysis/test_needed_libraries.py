"""What a library's file says that it needs, and what `usable` makes of it for CUDA."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import onnxruntime
import pytest

from ortopt.analysis import providers
from ortopt.analysis.needed_libraries import needed_libraries

CAPI = Path(onnxruntime.__file__).parent / "capi"


def elf(names: list[str]) -> bytes:
    """As much of a shared library as the loader reads to find what it needs; addresses are 0x1000 beyond places."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    offsets = [strings.index(name.encode()) for name in names]
    place = 64 + 2 * 56
    dynamic = b"".join(struct.pack("<QQ", 1, offset) for offset in offsets)
    dynamic += struct.pack("<QQQQ", 5, 0x1000 + place, 0, 0) + struct.pack("<QQ", 1, 0)  # behind the end: no entry
    where = place + len(strings)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0, where, where, 0)
    table = struct.pack("<IIQQQQQQ", 2, 6, where, 0x1000 + where, 0, len(dynamic), len(dynamic), 8)
    return header + load + table + strings + dynamic


def pe(names: list[str]) -> bytes:
    """As much of a DLL: one section, whose addresses are 0x1000 beyond its place."""
    optional = struct.pack("<H", 0x20B) + bytes(110) + bytes(8) + struct.pack("<II", 0x1200, 0) + bytes(14 * 8)
    header = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, len(optional), 0)
    section = b".idata\0\0" + struct.pack("<IIII", 0x400, 0x1200, 0x400, 0x200) + bytes(16)
    start = b"MZ" + bytes(0x3A) + struct.pack("<I", 0x40) + header + optional + section
    table = 20 * (len(names) + 1)
    texts, offsets = b"", []
    for name in names:
        offsets.append(0x1200 + table + len(texts))
        texts += name.encode() + b"\0"
    rows = b"".join(struct.pack("<IIIII", 0, 0, 0, offset, 0) for offset in offsets) + bytes(20)
    return start.ljust(0x200, b"\0") + rows + texts + bytes(0x100)


@pytest.mark.parametrize("make", [elf, pe])
@pytest.mark.parametrize("names", [[], ["libcublas.so.13"], ["cudart64_12.dll", "cudnn64_9.dll", "KERNEL32.dll"]])
def test_the_names_are_those_in_the_file(tmp_path: Path, make, names: list[str]) -> None:
    (tmp_path / "library").write_bytes(make(names))
    assert needed_libraries(tmp_path / "library") == tuple(names)


@pytest.mark.parametrize("make", [elf, pe])
def test_a_broken_file_needs_nothing_that_can_be_told(tmp_path: Path, make) -> None:
    whole = make(["libcudart.so.13", "libcublas.so.13"])
    file = tmp_path / "library"
    for length in range(0, len(whole), 3):
        file.write_bytes(whole[:length])
        assert isinstance(needed_libraries(file), tuple)
    for place in range(0, len(whole), 2):
        file.write_bytes(whole[:place] + b"\xff" * 4 + whole[place + 4 :])
        assert isinstance(needed_libraries(file), tuple)


@pytest.mark.skipif(sys.platform != "linux", reason="a library of Linux")
def test_a_library_of_onnx_runtime_needs_what_the_system_has() -> None:
    file = next(CAPI.glob("onnxruntime_pybind11_state*.so"))
    assert "libc.so.6" in needed_libraries(file)


@pytest.mark.skipif(not (CAPI / "libonnxruntime_providers_cuda.so").exists(), reason="a wheel without CUDA")
def test_cuda_of_the_installed_release_needs_its_runtime_and_no_more_than_nvidias() -> None:
    needed = providers._needed_by_cuda(CAPI)
    assert any(name.startswith("libcudart.so.") for name in needed)
    assert all(name.startswith(("libcu", "libnv")) and not name.startswith("libcuda.") for name in needed)


@pytest.mark.parametrize(
    ("needed", "absent", "works"),
    [
        (["libcudart.so.13", "libcublas.so.13"], {"libcudnn.so.9", "libcufft.so.12"}, True),  # as 1.31
        (["libcudart.so.13", "libcublas.so.13"], {"libcublas.so.13"}, False),
        (["libcudart.so.12", "libcudnn.so.9", "libcufft.so.11"], {"libcudnn.so.9"}, False),  # as older ones
        (["libcudart.so.12", "libcudnn.so.9", "libcufft.so.11"], set(), True),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="names of Linux")
def test_cuda_is_usable_without_what_its_provider_opens_only_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needed: list[str], absent: set[str], works: bool
) -> None:
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime_providers_cuda.so").write_bytes(elf([*needed, "libdl.so.2", "libcuda.so.1"]))
    monkeypatch.setattr(onnxruntime, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [providers.CUDA])
    monkeypatch.setattr(providers, "_cuda_devices", lambda: (1, ""))
    asked: list[str] = []
    monkeypatch.setattr(providers, "_loadable", lambda name: asked.append(name) or name not in absent)
    found, reason = providers._cuda_usable()
    assert found == works, reason
    if not works:
        assert reason.startswith(f"cannot load {', '.join(sorted(absent))} (")
        return
    assert set(asked) >= {"libcudnn.so.9"}  # a wheel's is loaded, so that the provider finds it
    assert "libdl.so.2" not in asked
