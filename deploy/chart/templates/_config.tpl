{{- /* The picker's configuration, and its command line. */ -}}

{{- define "epp.commonPlugins" -}}
{{- $router := .Values.router -}}
{{- $source := $router.epp.metricsDataSource -}}
- type: metrics-data-source
  parameters:
    scheme: {{ $source.scheme }}
    path: {{ $source.path }}
    insecureSkipVerify: {{ $source.insecureSkipVerify }}
- type: core-metrics-extractor
  parameters:
    defaultEngine: {{ $router.modelServers.type }}
{{- range $router.epp.parsers }}
- type: {{ . }}
{{- end }}
{{- if .Values.router.epp.clusters.hubObjects }}
- type: cluster-data-source
{{- end }}
{{- end -}}

{{- define "epp.dataLayer" -}}
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
{{- with .Values.router.epp.parsers }}
requestHandler:
  parsers:
  {{- range . }}
  - pluginRef: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* What runs without a configuration: config/adaptive.yaml, with what the values say of engines and parsers. */ -}}
{{- define "epp.defaultPlugins" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: accelerator-data-source
- type: endpoint-rates-producer
- type: work-seconds-scorer
  parameters: {requestsBehind: 1, delayWeight: 0.25, adapterLoadSeconds: 1}
{{ include "epp.commonPlugins" . }}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: work-seconds-scorer}
{{ include "epp.dataLayer" . }}
{{- end -}}

{{- /* llm-d's default: queue, KV cache and prefix, by weight. */ -}}
{{- define "epp.llmdDefault" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
{{- if .Values.router.epp.accelerators.clusterObjects }}
- type: accelerator-data-source
{{- end }}
{{ include "epp.commonPlugins" . }}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
{{ include "epp.dataLayer" . }}
{{- end -}}

{{- /* llm-d's profile of predicted latency. */ -}}
{{- define "epp.predictedLatency" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: predicted-latency-producer
- name: strict-affinity-filter
  type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.99, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
- name: loose-affinity-filter
  type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.80, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
- type: latency-scorer
- type: weighted-random-picker
- type: slo-headroom-tier-filter
- type: latency-slo-admitter
{{- if .Values.router.epp.accelerators.clusterObjects }}
- type: accelerator-data-source
{{- end }}
{{ include "epp.commonPlugins" . }}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: strict-affinity-filter}
  - {pluginRef: slo-headroom-tier-filter}
  - {pluginRef: loose-affinity-filter}
  - {pluginRef: latency-scorer}
  - {pluginRef: weighted-random-picker}
{{ include "epp.dataLayer" . }}
{{- end -}}

{{- define "epp.payloadAgnostic" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: passthrough-parser
- type: active-request-scorer
- type: session-affinity-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: session-affinity-scorer, weight: 10}
requestHandler:
  parsers:
  - pluginRef: passthrough-parser
{{- end -}}

{{- define "epp.arguments" -}}
{{- $router := .Values.router -}}
{{- $flags := deepCopy $router.epp.flags -}}
{{- if not (hasKey $flags "drain-timeout") -}}
{{- $_ := set $flags "drain-timeout" (printf "%ds" (sub (int $router.epp.terminationGracePeriodSeconds) 10)) -}}
{{- end -}}
{{- if $router.inferencePool.create -}}
- --pool-name
- {{ .Release.Name }}
- --pool-namespace
- {{ .Release.Namespace }}
- --pool-group
- inference.networking.k8s.io
{{- else -}}
- --endpoint-selector
- {{ include "epp.endpointSelector" . | quote }}
- --endpoint-target-ports
- {{ include "epp.targetPorts" . | quote }}
{{- end }}
{{- if not (hasKey $flags "zap-encoder") }}
- --zap-encoder
- json
{{- end }}
- --config-file
- /config/{{ $router.epp.pluginsConfigFile }}
{{- if and (include "epp.leaderElection" .) (not (hasKey $flags "ha-enable-leader-election")) }}
- --ha-enable-leader-election
{{- end }}
- --grpc-health-port
- {{ $router.epp.grpcHealthPort | quote }}
{{- if gt (int $router.epp.workers) 1 }}
- --workers={{ int $router.epp.workers }}
{{- end }}
{{- with $router.sharedState.url }}
- {{ printf "--shared-state=%s" . | quote }}
- --shared-quotas-when-alone={{ $router.sharedState.quotasWhenAlone }}
{{- end }}
{{- range $name, $value := $flags }}
- {{ printf "--%s=%s" $name (include "epp.plain" $value) | quote }}
{{- end }}
{{- if not (hasKey $flags "metrics-endpoint-auth") }}
- --metrics-endpoint-auth={{ $router.monitoring.prometheus.auth.enabled }}
{{- end }}
{{- if not (hasKey $flags "tracing") }}
- --tracing={{ $router.tracing.enabled }}
{{- end }}
{{- end -}}

{{- /* A value as text: numbers of a values file are floats, which Go writes as 3.3e+07. */ -}}
{{- define "epp.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- define "epp.endpointSelector" -}}
{{- $pairs := list -}}
{{- range $name, $value := .Values.router.modelServers.matchLabels }}{{ $pairs = append $pairs (printf "%s=%s" $name $value) }}{{ end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "epp.targetPorts" -}}
{{- $ports := list -}}
{{- range .Values.router.modelServers.targetPorts }}{{ $ports = append $ports (toString .number) }}{{ end -}}
{{- join "," $ports -}}
{{- end -}}

{{- define "epp.environment" -}}
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- with .Values.router.sharedState.passwordSecret }}
{{- if .name }}
- name: EPP_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {{ dict "name" .name "key" .key | toJson }}}
{{- end }}
{{- end }}
{{- if .Values.router.tracing.enabled }}
{{- $tracing := .Values.router.tracing }}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: OTEL_SERVICE_NAME
  value: llm-d-router/epp
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ $tracing.otelExporterEndpoint | quote }}
- name: OTEL_TRACES_EXPORTER
  value: otlp
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name=$(NAMESPACE),k8s.node.name=$(NODE_NAME),k8s.pod.name=$(POD_NAME)
- name: OTEL_TRACES_SAMPLER
  value: {{ $tracing.sampling.sampler | quote }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $tracing.sampling.samplerArg | quote }}
{{- end }}
{{- with .Values.router.epp.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
