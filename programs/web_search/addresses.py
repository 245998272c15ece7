"""Which network addresses pages may be read from: public ones, and private ones that the user has named."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether a numeric IPv4 or IPv6 address belongs to the public internet.

    An IPv6 address that wraps an IPv4 one (mapped, 6to4, NAT64) is judged by both.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(str(wrapped))
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


def named_hosts(entries: Iterable[str]) -> frozenset[tuple[str, int]]:
    """The (host, port) pairs of entries such as `127.0.0.1:8000`, `localhost:80` or `[::1]:8000`.

    Raises `ValueError` for an entry that is not of this form.
    """
    return frozenset(_host_and_port(entry) for entry in entries)


def _host_and_port(entry: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{entry}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.netloc != entry or parts.username is not None:
        raise ValueError(f"private_hosts takes host:port, such as 127.0.0.1:8000, got {entry!r}")
    return host, port
