"""The Envoy bootstrap as typed resources: one listener that asks the picker, and what stands behind it."""

from __future__ import annotations

from datetime import timedelta

from betterproto2 import Casing
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as OneHeaderMutation
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.overload.v3 import OverloadManager, ResourceMonitor
from envoy_data_plane.envoy.config.route.v3 import (
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.access_loggers.stream.v3 import StdoutAccessLog
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation, Mutations
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
)
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import (
    DownstreamConnectionsConfig,
)
from envoy_data_plane.google.protobuf import Any

from epp.framework.headers import DESTINATION, OBEYED_BY_ENDPOINTS
from epp.gateway._addresses import envoy_address
from epp.gateway._endpoint_picker import endpoint_picker, external_processor
from epp.gateway._limits import NO_LIMIT
from epp.gateway._model_servers import model_servers, retry_policy
from epp.gateway.settings import LISTENER, MODEL_SERVERS, ClusterType, FailureMode, GatewaySettings, parse_address

__all__ = ["Casing", "build_bootstrap"]

_NEVER = timedelta(0)


def build_bootstrap(settings: GatewaySettings) -> Bootstrap:
    """Return the whole configuration of one Envoy."""
    return Bootstrap(
        node=_node(settings),
        admin=_admin(settings),
        static_resources=BootstrapStaticResources(
            listeners=[_listener(settings)],
            clusters=[model_servers(settings), endpoint_picker(settings)],
        ),
        overload_manager=_connection_limit(),
    )


def _node(settings: GatewaySettings) -> Node | None:
    # Whoever follows a file of endpoints must have a name, Envoy says.
    return Node(id=LISTENER, cluster=LISTENER) if settings.cluster_type is ClusterType.OVERRIDE_HOST else None


def _admin(settings: GatewaySettings) -> Admin | None:
    if settings.admin_address is None:
        return None
    return Admin(address=envoy_address(parse_address(settings.admin_address, setting="admin_address")))


def _connection_limit() -> OverloadManager:
    # Envoy warns at every start when there is no limit at all.
    limit = DownstreamConnectionsConfig(max_active_downstream_connections=NO_LIMIT)
    monitor = ResourceMonitor(
        name="envoy.resource_monitors.global_downstream_max_connections", typed_config=Any.pack(limit)
    )
    return OverloadManager(resource_monitors=[monitor])


def _listener(settings: GatewaySettings) -> Listener:
    manager = HttpConnectionManager(
        stat_prefix=LISTENER,
        access_log=_access_logs(settings),
        route_config=_routes(settings),
        http_filters=[
            HttpFilter(
                name="envoy.filters.http.header_mutation", typed_config=Any.pack(_nothing_for_endpoints(settings))
            ),
            HttpFilter(name="envoy.filters.http.ext_proc", typed_config=Any.pack(external_processor(settings))),
            HttpFilter(name="envoy.filters.http.router", typed_config=Any.pack(Router())),
        ],
        # A model may think for minutes before its first token.
        stream_idle_timeout=_NEVER,
        use_remote_address=True,
        # The caller's request id is what decisions are looked up by.
        preserve_external_request_id=True,
    )
    return Listener(
        name=LISTENER,
        address=envoy_address(settings.listen),
        filter_chains=[
            FilterChain(
                filters=[Filter(name="envoy.filters.network.http_connection_manager", typed_config=Any.pack(manager))],
            ),
        ],
        per_connection_buffer_limit_bytes=settings.buffer_limit_bytes,
    )


def _access_logs(settings: GatewaySettings) -> list[AccessLog]:
    if not settings.access_log:
        return []
    return [AccessLog(name="envoy.access_loggers.stdout", typed_config=Any.pack(StdoutAccessLog()))]


def _routes(settings: GatewaySettings) -> RouteConfiguration:
    to_model_servers = Route(match=RouteMatch(prefix="/"), route=RouteAction(cluster=MODEL_SERVERS, timeout=_NEVER))
    if settings.cluster_type is ClusterType.OVERRIDE_HOST and to_model_servers.route is not None:
        to_model_servers.route.retry_policy = retry_policy()
        # What is held of a body for a retry, or for a picker that is shown bodies whole.
        to_model_servers.request_body_buffer_limit = settings.max_body_bytes
    everything = VirtualHost(name=MODEL_SERVERS, domains=["*"], routes=[to_model_servers])
    return RouteConfiguration(name=MODEL_SERVERS, virtual_hosts=[everything])


def _nothing_for_endpoints(settings: GatewaySettings) -> HeaderMutation:
    # Envoy goes wherever the destination header says. When a request passes without the picker, a client could
    # otherwise choose its server, and those that the server's sidecar calls.
    names = [DESTINATION]
    if settings.failure_mode is FailureMode.FAIL_OPEN:
        names += sorted(OBEYED_BY_ENDPOINTS)
    return HeaderMutation(mutations=Mutations(request_mutations=[OneHeaderMutation(remove=name) for name in names]))
