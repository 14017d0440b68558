{{- /* What the values amount to: each of these is `true` or empty. */ -}}

{{- define "epp.leaderElection" -}}
{{- $epp := .Values.router.epp -}}
{{- if hasKey $epp.flags "ha-enable-leader-election" -}}
{{- if eq (toString (index $epp.flags "ha-enable-leader-election")) "true" }}true{{ end -}}
{{- else if and (gt (int $epp.replicas) 1) (not $epp.autoscaling.enabled) (not .Values.router.sharedState.url) -}}
true
{{- end -}}
{{- end -}}

{{- define "epp.several" -}}
{{- $epp := .Values.router.epp -}}
{{- if or (gt (int $epp.replicas) 1) $epp.autoscaling.enabled }}true{{ end -}}
{{- end -}}

{{- define "epp.proxy.sidecar" -}}
{{- if and .Values.router.proxy.enabled (eq .Values.router.proxy.mode "sidecar") }}true{{ end -}}
{{- end -}}

{{- define "epp.proxy.service" -}}
{{- if and .Values.router.proxy.enabled (eq .Values.router.proxy.mode "service") }}true{{ end -}}
{{- end -}}

{{- define "epp.secureServing" -}}
{{- if ne (toString (index .Values.router.epp.flags "secure-serving")) "false" }}true{{ end -}}
{{- end -}}

{{- /* A service port named `http` that a values file has for the proxy, as llm-d's chart wants it. */ -}}
{{- define "epp.namesHttpPort" -}}
{{- range .Values.router.extraServicePorts }}{{ if eq .name "http" }}true{{ end }}{{ end -}}
{{- end -}}
