"""The kernels of a device of this process, loaded when they are first used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

from blinkrun.types import DType

THREADS = 512  # of a block, as kernels.cu is compiled


class Kernels:
    """The kernels of one device, by element type; its device is current when they are asked for.

    Parameters
    ----------
    driver : module
        cupy's, of the driver.
    multiprocessors : int
        Of the device.
    image : callable
        ``image(dtype)`` returns the compiled kernel.

    Attributes
    ----------
    functions : list of int
        Handles by element type; 0: not loaded yet.
    """

    def __init__(
        self, driver: ModuleType, multiprocessors: int, image: Callable[[DType], bytes]
    ) -> None:
        self.functions = [0] * len(DType)
        self._driver = driver
        self._multiprocessors = multiprocessors
        self._image = image
        self._lock = threading.Lock()

    def most(self) -> int:
        """Return how many blocks of any kernel run at a time.

        Their launch bounds promise one per multiprocessor, of some types there is room for more.
        """
        function = self.function(int(DType.FLOAT32))
        each = self._driver.occupancyMaxActiveBlocksPerMultiprocessor(function, THREADS, 0)
        return min(int(each), 1) * self._multiprocessors

    def function(self, dtype: int) -> int:
        """Return the kernel for `dtype`."""
        with self._lock:
            if not self.functions[dtype]:
                self.functions[dtype] = self._load(DType(dtype))
            return self.functions[dtype]

    def _load(self, dtype: DType) -> int:
        from blinkrun.executors import kernel_source  # noqa: PLC0415 - few need it

        module = self._driver.moduleLoadData(self._image(dtype))
        function = self._driver.moduleGetFunction(module, kernel_source.entry_point(dtype.label))
        # Asking has the driver load it now, and not at a launch, for which it might wait.
        self._driver.funcGetAttribute(self._driver.CU_FUNC_ATTRIBUTE_NUM_REGS, function)
        return int(function)
