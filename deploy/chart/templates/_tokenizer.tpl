{{- /* A server beside the picker that makes token ids of prompts. */ -}}

{{- define "epp.tokenizer.container" -}}
{{- $tokenizer := .Values.router.tokenizer -}}
{{- $image := $tokenizer.image -}}
- name: vllm-render
  image: {{ printf "%s/%s:%s" $image.registry $image.repository $image.tag | quote }}
  imagePullPolicy: {{ $image.pullPolicy }}
  {{- if $tokenizer.command }}
  command: {{- toYaml $tokenizer.command | nindent 4 }}
  {{- else if eq $tokenizer.flavor "rust" }}
  command: [vllm-rs, render]
  {{- else }}
  command: [vllm, launch, render]
  {{- end }}
  args:
  {{- if $tokenizer.args }}
  {{- toYaml $tokenizer.args | nindent 2 }}
  {{- else }}
  - {{ $tokenizer.modelName | quote }}
  - --port={{ int $tokenizer.port }}
  {{- end }}
  {{- with $tokenizer.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  env:
  # The image is made for root; the pod's user has neither a name nor a home there.
  - {name: HOME, value: /model-cache}
  - {name: USER, value: vllm}
  {{- with $tokenizer.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - {name: render-http, containerPort: {{ int $tokenizer.port }}, protocol: TCP}
  {{- with $tokenizer.readinessProbe }}
  readinessProbe: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $tokenizer.resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- toYaml $tokenizer.securityContext | nindent 4 }}
  volumeMounts:
  - {name: model-cache, mountPath: /model-cache}
  - {name: model-cache, mountPath: /tmp, subPath: tmp}
  {{- with $tokenizer.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
