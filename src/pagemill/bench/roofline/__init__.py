"""``pagemill bench roofline``: how much of what this machine allows each op of the kernels uses.

The machine's limits are measured, not looked up (`peaks`), with our own loops on our own threads:

    read bandwidth   bytes a second that all threads together read of a buffer that no cache holds
    8-bit peak       multiply-adds a second of bytes, by the instructions of the set in use for
                     weights of 8 bits (`vpdpbusd` on AVX-512 VNNI), on a few operands that stay
                     in the first cache
    float32 peak     fused multiply-adds a second, likewise (a product and a sum without FMA)

Then each op is timed as the engine runs it, as part of a recorded program (`linear`, `attention`,
`rows`), at M = 1, 8, 32 and 256 rows. For each:

    bytes            what it must move: packed weights as they lie in memory, padding included,
                     keys and values of the contexts, rows read and written; each once
    MACs             M * N * K in a linear map; in attention two products of head_dim for each
                     query head and each token that a row sees; row ops have none to speak of
    share of the bandwidth    bytes / read bandwidth / time
    share of the arithmetic   MACs / peak / time: the 8-bit peak for quantized weights, else float32

The larger share is the one that binds: with the other work free, the op could not take less than
its time times this share. (AVX2 sums products of fewer bits in 16 bits, several at a time: their
share of the 8-bit peak may be above 100%.) A share is against the peaks measured just before and
after (`op`), and is the median of the repeats.

Weights, keys and values come from memory, as in a model, where every layer has its own: copies
take turns, together at least four times as large as the last level cache. Linear maps are also
measured with weights that stay in the cache, if they fit: the kernel itself, when memory does not
hold it up.
"""

from pagemill.bench.roofline.command import RooflineCommand, measured_read_bandwidth

__all__ = ["RooflineCommand", "measured_read_bandwidth"]
