"""One gRPC channel per address, shared by all threads."""

from __future__ import annotations

import threading

import grpc

#: Largest message of the API, bytes.
MESSAGE_LIMIT = 4 << 20

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    # A restarted service is to be found again within seconds.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


class Channels:
    """Opens channels when first asked for and closes them at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}

    def get(self, address: str) -> grpc.Channel:
        """The channel to ``host:port``."""
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = grpc.insecure_channel(address, options=OPTIONS)
            return channel

    def close(self) -> None:
        """Closes all channels; calls on them end with CANCELLED."""
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()
