"""Where swapped-out blocks are: memory of this process, or a file that is mapped into it."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from pagemill.errors import ConfigError


class SwapMemory:
    """``num_slots`` slots, each for one block in all layers.

    In memory, pages that were never written cost nothing. A file gets its whole size at once, so
    that a full disk is found out here and not in the middle of a step; it has no name any more once
    it is open, and so is gone with the process, however that ends.

    Args:
        num_slots: how many.
        slot_bytes: of one.
        path: of a file that does not exist yet; None: memory.

    Raises:
        ConfigError: there is no memory as large, or the file cannot be created, or not as large.
    """

    def __init__(self, num_slots: int, slot_bytes: int, path: str | None = None) -> None:
        shape = (num_slots, slot_bytes)
        self.slots: npt.NDArray[np.uint8]
        """``[num_slots, slot_bytes]``."""
        if path is None or num_slots == 0:
            try:
                self.slots = np.empty(shape, np.uint8)
            except MemoryError as error:
                raise ConfigError(
                    f"swap_space: the system gives no {num_slots * slot_bytes} bytes of memory; "
                    f"lower it, or give swap_path to have it on disk"
                ) from error
            return
        try:
            with open(path, "xb+") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, num_slots * slot_bytes)
                    self.slots = np.memmap(file, np.uint8, "r+", shape=shape)
                finally:
                    os.unlink(path)
        except OSError as error:
            raise ConfigError(
                f"swap_path={path!r}: no file of {num_slots * slot_bytes} bytes (swap_space) can "
                f"be created there: {error.strerror or error}"
            ) from error

    @classmethod
    def none(cls) -> SwapMemory:
        """No slots at all."""
        return cls(0, 0)

    @property
    def address(self) -> int:
        """Of the first slot."""
        return self.slots.ctypes.data
