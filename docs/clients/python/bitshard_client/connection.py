"""How to talk to the service: the options of a client, and the channel arguments and service config made of them."""

from __future__ import annotations

import dataclasses
import json

import grpc

_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
_MAX_GRPC_ATTEMPTS, _MAX_RETRY_TOKENS = 5, 1000  # gRPC takes no more
# The longest request that the service takes. A request beyond gRPC's own 256 KiB would not be kept for a retry.
_RETRY_BUFFER_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True)
class TlsOptions:
    """TLS; with key and certificate, mutual TLS. PEM."""

    root_certificates: bytes | None = None  # None: the system's
    private_key: bytes | None = None
    certificate_chain: bytes | None = None
    server_name: str = ""  # when the certificate's name is not the target's


@dataclasses.dataclass(frozen=True)
class ClientOptions:
    """The defaults suit interactive use. Times are in seconds."""

    # A call without a timeout of its own gets this one: no call waits for ever.
    default_timeout: float = 300.0
    # gRPC's own tries of a call that has brought nothing yet, the first included; 1 = no retries, at most 5. While
    # nothing listens, 4 of them take about 1.4 s, whatever the timeout.
    max_attempts: int = 4
    # True: calls wait for a connection to a service that is ready, up to their deadline, in place of failing at once.
    wait_for_ready: bool = False
    # How often a stream that the service took and that broke is resumed without a new token, at most; 0 = never. Tries
    # to go on that the service does not take are not counted: it is away, and only the deadline ends them.
    max_resumes: int = 5
    # TCP connections to each address. One carries hundreds of streams; thousands go faster over several.
    connections: int = 1
    # None: plaintext.
    tls: TlsOptions | None = None
    # Sent with every call: authorization, traceparent.
    metadata: tuple[tuple[str, str], ...] = ()
    # Addresses whose grpc.health.v1 service of this name is not SERVING get no calls; None = take them all.
    health_service: str | None = "readiness"
    # A silent connection is tried so often, and given up after so long without an answer. The service tolerates pings
    # every 5 s or slower.
    keepalive_time: float = 10.0
    keepalive_timeout: float = 5.0
    # Retries stop while more than half of these tokens are spent: a failure takes one, a success gives `ratio` back.
    # They are shared by all clients of a process that have the same target.
    retry_tokens: int = 100
    retry_token_ratio: float = 0.5
    # The longest answer; prompt log-probabilities are long.
    max_receive_bytes: int = 64 << 20

    def __post_init__(self):
        if not self.default_timeout > 0:
            raise ValueError(f"default_timeout must be above 0, not {self.default_timeout}")
        if not 1 <= self.max_attempts <= _MAX_GRPC_ATTEMPTS:
            raise ValueError(f"max_attempts must be 1 to {_MAX_GRPC_ATTEMPTS}, not {self.max_attempts}")
        if self.max_resumes < 0 or self.connections < 1:
            raise ValueError("max_resumes must be at least 0 and connections at least 1")
        if not (self.keepalive_time > 0 and self.keepalive_timeout > 0):
            raise ValueError("keepalive_time and keepalive_timeout must be above 0")
        if not 1 <= self.retry_tokens <= _MAX_RETRY_TOKENS or not self.retry_token_ratio > 0:
            raise ValueError(f"retry_tokens must be 1 to {_MAX_RETRY_TOKENS} and retry_token_ratio above 0")


def resolvable(target: str) -> str:
    """"host:port" through DNS, all of its addresses; other gRPC names as they are."""
    return target if target.startswith(_SCHEMES) else f"dns:///{target}"


def service_config(options: ClientOptions) -> str:
    """gRPC's service config: balance over all addresses, retry what was refused, keep away from what is not ready."""
    method: dict = {"name": [{"service": "bitshard.v1.Inference"}]}
    config: dict = {"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [method]}
    if options.max_attempts > 1:
        method["retryPolicy"] = {
            "maxAttempts": options.max_attempts,
            # Of UNAVAILABLE. With RESOURCE_EXHAUSTED the service says how long (grpc-retry-pushback-ms).
            "initialBackoff": "0.2s",
            "maxBackoff": "5s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
        }
        config["retryThrottling"] = {"maxTokens": options.retry_tokens, "tokenRatio": options.retry_token_ratio}
    if options.health_service is not None:
        config["healthCheckConfig"] = {"serviceName": options.health_service}
    return json.dumps(config)


def channel_arguments(options: ClientOptions) -> list[tuple[str, object]]:
    arguments: list[tuple[str, object]] = [
        ("grpc.service_config", service_config(options)),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_retries", 1),
        ("grpc.per_rpc_retry_buffer_size", _RETRY_BUFFER_BYTES),
        ("grpc.keepalive_time_ms", int(options.keepalive_time * 1000)),
        ("grpc.keepalive_timeout_ms", int(options.keepalive_timeout * 1000)),
        # A stream that waits for its first token is silent: without these two gRPC stops pinging it.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # A service that restarts is back in seconds.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5000),
        ("grpc.max_receive_message_length", options.max_receive_bytes),
        # Details of errors are metadata.
        ("grpc.max_metadata_size", 64 << 10),
        ("grpc.primary_user_agent", "bitshard-python"),
    ]
    if options.connections > 1:
        arguments.append(("grpc.use_local_subchannel_pool", 1))  # else gRPC shares one connection among channels
    if options.tls and options.tls.server_name:
        arguments.append(("grpc.ssl_target_name_override", options.tls.server_name))
    return arguments


def credentials(tls: TlsOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=tls.root_certificates, private_key=tls.private_key, certificate_chain=tls.certificate_chain)
