{{- /* Names and labels. The release's name is the pool's; everything else is called after it. */ -}}

{{- define "epp.name" -}}
{{ .Release.Name | lower | trunc 40 | trimSuffix "-" }}-epp
{{- end -}}

{{- define "epp.proxy.name" -}}
{{ include "epp.name" . }}-proxy
{{- end -}}

{{- define "epp.pickers.name" -}}
{{ include "epp.name" . }}-pickers
{{- end -}}

{{- define "epp.modelServers.name" -}}
{{ include "epp.name" . }}-model-servers
{{- end -}}

{{- define "epp.clusterName" -}}
{{ .Release.Namespace }}-{{ include "epp.name" . }}
{{- end -}}

{{- define "epp.metricsReader" -}}
{{ include "epp.name" . }}-metrics-reader
{{- end -}}

{{- define "epp.labels" -}}
{{ include "epp.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "epp.selectorLabels" -}}
app.kubernetes.io/name: inference-epp
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: endpoint-picker
{{- end -}}

{{- define "epp.proxy.labels" -}}
{{ include "epp.proxy.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "epp.proxy.selectorLabels" -}}
app.kubernetes.io/name: inference-epp
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: proxy
{{- end -}}

{{- define "epp.image" -}}
{{- $image := .Values.router.epp.image -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- /* What the picker's Lease is called; the program has the same rule. */ -}}
{{- define "epp.lease" -}}
epp-{{ .Release.Namespace }}-{{ include "epp.poolName" . }}.llm-d.ai
{{- end -}}

{{- define "epp.poolName" -}}
{{- if .Values.router.inferencePool.create }}{{ .Release.Name }}{{ else }}{{ include "epp.name" . }}{{ end -}}
{{- end -}}
