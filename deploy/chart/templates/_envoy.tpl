{{- /* The Envoy of the stand-alone flavour: its configuration, from files/ with what this release decides, and its
container. */ -}}

{{- define "epp.envoy" -}}
{{- $proxy := .Values.router.proxy -}}
{{- $mode := printf "fail-%s%s" (ternary "open" "close" $proxy.failOpen) (ternary "-buffered" "" (eq $proxy.bodyMode "buffered")) -}}
{{- $envoy := .Files.Get (printf "files/envoy-%s.yaml" $mode) | fromYaml -}}
{{- $maxBody := include "epp.maxRequestBody" . -}}
{{- range $listener := $envoy.static_resources.listeners -}}
{{- $address := $listener.address.socket_address -}}
{{- $_ := set $address "port_value" (ternary $proxy.statusPort $proxy.port (eq $listener.name "status")) -}}
{{- $manager := (index (index $listener.filter_chains 0).filters 0).typed_config -}}
{{- range $route := (index $manager.route_config.virtual_hosts 0).routes -}}
{{- if and $maxBody (hasKey $route "request_body_buffer_limit") -}}
{{- $_ := set $route "request_body_buffer_limit" (int64 $maxBody) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $cluster := $envoy.static_resources.clusters -}}
{{- if eq $cluster.name "endpoint_picker" -}}
{{- if not (include "epp.secureServing" $) }}{{ $_ := unset $cluster "transport_socket" }}{{ end -}}
{{- if include "epp.proxy.service" $ -}}
{{- $host := printf "%s.%s.svc.%s" (include "epp.pickers.name" $) $.Release.Namespace $.Values.router.clusterDomain -}}
{{- $_ := set $cluster "type" "STRICT_DNS" -}}
{{- $_ := set $cluster "dns_lookup_family" "V4_PREFERRED" -}}
{{- $_ := set $cluster "lb_policy" "LEAST_REQUEST" -}}
{{- $_ := set $cluster "load_assignment" (include "epp.envoy.addresses" (dict "cluster" $cluster.name "host" $host "ports" (list 9002)) | fromYaml) -}}
{{- end -}}
{{- else if eq $cluster.name "any_model_server" -}}
{{- $host := printf "%s.%s.svc.%s" (include "epp.modelServers.name" $) $.Release.Namespace $.Values.router.clusterDomain -}}
{{- $ports := list -}}
{{- range $.Values.router.modelServers.targetPorts }}{{ $ports = append $ports .number }}{{ end -}}
{{- $_ := set $cluster "load_assignment" (include "epp.envoy.addresses" (dict "cluster" $cluster.name "host" $host "ports" $ports) | fromYaml) -}}
{{- end -}}
{{- if and (has $cluster.name (list "model_servers" "any_model_server")) (eq $.Values.router.modelServers.protocol "grpc") -}}
{{- $options := index $cluster.typed_extension_protocol_options "envoy.extensions.upstreams.http.v3.HttpProtocolOptions" -}}
{{- $_ := set $options "explicit_http_config" (dict "http2_protocol_options" dict) -}}
{{- end -}}
{{- end -}}
{{- $heap := include "epp.envoy.heapBytes" . -}}
{{- $monitors := list -}}
{{- range $monitor := $envoy.overload_manager.resource_monitors -}}
{{- if eq $monitor.name "envoy.resource_monitors.fixed_heap" -}}
{{- if $heap -}}
{{- $_ := set $monitor.typed_config "max_heap_size_bytes" (int64 $heap) -}}
{{- $monitors = append $monitors $monitor -}}
{{- end -}}
{{- else -}}
{{- $_ := set $monitor.typed_config "max_active_downstream_connections" $proxy.maxConnections -}}
{{- $monitors = append $monitors $monitor -}}
{{- end -}}
{{- end -}}
{{- $_ := set $envoy.overload_manager "resource_monitors" $monitors -}}
{{- if not $heap }}{{ $_ := unset $envoy.overload_manager "actions" }}{{ end -}}
{{- toYaml $envoy -}}
{{- end -}}

{{- define "epp.envoy.addresses" -}}
{{- $host := .host -}}
cluster_name: {{ .cluster }}
endpoints:
- lb_endpoints:
{{- range .ports }}
  - endpoint: {address: {socket_address: {address: {{ $host }}, port_value: {{ . }} }}}
{{- end }}
{{- end -}}

{{- /* Four fifths of the container's memory limit; empty without one in Mi or Gi. */ -}}
{{- define "epp.envoy.heapBytes" -}}
{{- $limits := .Values.router.proxy.resources.limits | default dict -}}
{{- $memory := toString (index $limits "memory") -}}
{{- if regexMatch "^[0-9]+Gi$" $memory -}}
{{- div (mul (trimSuffix "Gi" $memory | int) 1073741824 4) 5 -}}
{{- else if regexMatch "^[0-9]+Mi$" $memory -}}
{{- div (mul (trimSuffix "Mi" $memory | int) 1048576 4) 5 -}}
{{- end -}}
{{- end -}}

{{- /* The picker's --max-request-body in bytes; empty where it has its default. */ -}}
{{- define "epp.maxRequestBody" -}}
{{- with index .Values.router.epp.flags "max-request-body" -}}
{{- $size := trimSuffix "B" (toString .) -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 -}}
{{- if not (kindIs "string" .) -}}
{{- int64 . -}}
{{- else if regexMatch "^[0-9]+([kMG]|[KMG]i)?$" $size -}}
{{- mul (regexFind "^[0-9]+" $size | int64) (get $units (regexFind "[a-zA-Z]*$" $size)) -}}
{{- else -}}
{{- fail (printf "router.epp.flags.max-request-body %s is not a size that Envoy can be told too: write a whole number of bytes, or one with Ki, Mi or Gi" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "epp.proxy.container" -}}
{{- $proxy := .Values.router.proxy -}}
- name: envoy
  image: {{ $proxy.image | quote }}
  imagePullPolicy: {{ $proxy.imagePullPolicy }}
  command: [envoy]
  args: [--config-path, /etc/envoy/envoy.yaml, --disable-hot-restart, --log-level, warn, --concurrency, {{ $proxy.concurrency | quote }}]
  ports:
  - {name: http, containerPort: {{ $proxy.port }}, protocol: TCP}
  - {name: status, containerPort: {{ $proxy.statusPort }}, protocol: TCP}
  livenessProbe:
    httpGet: {path: /ready, port: status}
    initialDelaySeconds: 5
    periodSeconds: 10
    timeoutSeconds: 5
  readinessProbe:
    httpGet: {path: /ready, port: status}
    periodSeconds: 2
    timeoutSeconds: 2
  # Requests that are under way go on; Envoy itself ends at once when it is told to.
  lifecycle: {preStop: {sleep: {seconds: {{ $proxy.drainSeconds }} }}}
  {{- with $proxy.resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- toYaml .Values.router.epp.securityContext | nindent 4 }}
  volumeMounts:
  - {name: envoy, mountPath: /etc/envoy, readOnly: true}
{{- end -}}
