{{- /* Where pods run; several of a kind are spread over nodes and zones. Takes root, selector and several. */ -}}

{{- define "epp.placement" -}}
{{- $epp := .root.Values.router.epp -}}
{{- with $epp.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $epp.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $epp.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- if $epp.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml $epp.topologySpreadConstraints | nindent 0 }}
{{- else if .several }}
topologySpreadConstraints:
{{- $selector := .selector }}
{{- range tuple "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- $selector | nindent 6 }}
{{- end }}
{{- end }}
{{- end -}}
