"""Calls of CUDA's driver and compiler, whose libraries are stand-ins here."""

import ctypes

import pytest
import torch

from fastloader.direct import _compiler, _driver, _row_kernel
from fastloader.direct._cuda_error import CudaCallError


class Library:
    """A driver that notes what it is asked."""

    def __init__(self, same_addresses=1, status=0):
        self.same_addresses = same_addresses
        self.status = status
        self.modes = []
        self.launched = None

    def cuCtxGetDevice(self, device):  # noqa: N802 - CUDA's name
        device._obj.value = 3
        return self.status

    def cuDeviceGetAttribute(self, value, attribute, device):  # noqa: N802 - CUDA's name
        assert (attribute, device.value) == (91, 3)
        value._obj.value = self.same_addresses
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode):  # noqa: N802 - CUDA's name
        self.modes.append(mode._obj.value)
        mode._obj.value = 0
        return 0

    def cuLaunchKernel(self, function, *options):  # noqa: N802 - CUDA's name
        *sizes, stream, addresses, _extra = options
        values = [
            ctypes.cast(address, ctypes.POINTER(ctypes.c_longlong))[0] for address in addresses
        ]
        self.launched = function, tuple(sizes), stream.value, values
        return self.status


@pytest.fixture
def library(monkeypatch):
    fake = Library()
    monkeypatch.setattr(_driver, "_library", lambda: fake)
    return fake


@pytest.mark.parametrize("same_addresses", [0, 1])
def test_a_device_tells_whether_addresses_are_the_same(library, same_addresses):
    library.same_addresses = same_addresses

    assert _driver.reads_host_addresses() == bool(same_addresses)


def test_a_refusal_is_an_error_with_its_number(library):
    library.status = 700

    with pytest.raises(CudaCallError, match="700"):
        _driver.reads_host_addresses()


def test_without_a_driver_there_is_nothing_to_capture(monkeypatch):
    def refuse():
        raise CudaCallError("none")

    _driver._exchange_of_modes.cache_clear()
    monkeypatch.setattr(_driver, "_library", refuse)

    with _driver.uncaptured():
        pass

    _driver._exchange_of_modes.cache_clear()


def test_the_mode_of_capture_is_put_back(library):
    with _driver.uncaptured():
        assert library.modes == [2]

    assert library.modes == [2, 0]


@pytest.mark.parametrize(
    ("rows", "stride_bytes", "row_bytes", "unit"),
    [(64, 4096, 4096, 16), (72, 4096, 4096, 8), (64, 4100, 4096, 4), (64, 4096, 4088, 8)],
)
def test_rows_are_read_in_the_largest_units_that_fit(
    library, monkeypatch, rows, stride_bytes, row_bytes, unit
):
    kernels = {16: "by 16", 8: "by 8", 4: "by 4"}
    monkeypatch.setattr(_row_kernel, "prepare_kernels", lambda _device: kernels)
    positions = torch.tensor([5, 0, 7])
    target = torch.empty((3, row_bytes), dtype=torch.uint8)
    stream = type("Stream", (), {"cuda_stream": 11})

    _row_kernel.read_rows(rows, stride_bytes, positions, target, stream)

    function, sizes, handle, values = library.launched
    assert function == kernels[unit]
    assert sizes == (2, 1, 1, 1024, 1, 1, 0)
    assert handle == 11
    assert values == [
        rows, stride_bytes, positions.data_ptr(), 3, target.data_ptr(), row_bytes // unit
    ]  # fmt: skip


def test_without_the_compiler_it_is_said_which_one_is_missing(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    monkeypatch.setattr(_compiler, "_library", _compiler._library.__wrapped__)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))

    with pytest.raises(CudaCallError, match=r"libnvrtc\.so\.99"):
        _compiler.compile_for(torch.device("cuda:0"), "")


def test_a_device_that_would_look_elsewhere_gets_no_kernel(library, monkeypatch):
    library.same_addresses = 0
    monkeypatch.setattr(torch, "zeros", lambda *_shape, device: None)

    with pytest.raises(CudaCallError, match="other addresses"):
        _row_kernel.prepare_kernels.__wrapped__(torch.device("cuda:0"))
