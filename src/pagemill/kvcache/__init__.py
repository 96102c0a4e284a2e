"""The KV cache's accounting: which block belongs to whom (the bytes live in a runner)."""

from pagemill.kvcache.manager import KVCacheManager

__all__ = ["KVCacheManager"]
