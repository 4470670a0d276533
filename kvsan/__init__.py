"""kvsan: the sanitizer for KV caches."""
